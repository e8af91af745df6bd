"""Plots, in colours that colour-blind readers can distinguish.

Each function of `runs` and `traces` draws on `ax` (by default the current axes) and returns it.  An algorithm
has the same colour everywhere.  `figures` puts several panels on one page.

Examples
--------
>>> import refsgd
>>> from matplotlib.figure import Figure
>>> result = refsgd.run("bsp", data="quadratic", steps=20)
>>> timeline(result.trace, Figure().subplots(), end=0.1).get_xlabel()
'seconds'
"""

from refsgd.display.plots.colors import CAUSE_COLORS, COLORS, WORK_COLOR, color_of
from refsgd.display.plots.figures import (
    approach_figure,
    comparison,
    race_bars,
    race_curves,
    race_figure,
    run,
    save,
    sweep_figure,
)
from refsgd.display.plots.machines import machine_figure
from refsgd.display.plots.resources import resources, resources_figure
from refsgd.display.plots.runs import (
    accuracy_against_time,
    accuracy_against_updates,
    idle_by_cause,
    iteration_times,
    predicted_against_measured,
    replica_spread,
    staleness_histogram,
    sweep,
    throughput_against_workers,
)
from refsgd.display.plots.traces import (
    causes_key,
    causes_of,
    communication,
    layers,
    staleness_over_time,
    timeline,
)

__all__ = [
    "CAUSE_COLORS", "COLORS", "WORK_COLOR", "accuracy_against_time", "accuracy_against_updates",
    "approach_figure", "causes_key", "causes_of", "color_of", "communication",
    "comparison", "idle_by_cause", "iteration_times", "layers", "machine_figure",
    "predicted_against_measured", "race_bars", "race_curves", "race_figure",
    "replica_spread", "resources", "resources_figure", "run", "save", "staleness_histogram",
    "staleness_over_time", "sweep", "sweep_figure", "throughput_against_workers", "timeline",
]
