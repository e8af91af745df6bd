"""A result as a picture, and in the step player."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsgd.cluster.units import counted
from refsgd.display.player import LIMIT, Player, player_html
from refsgd.experiment.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: pictures of one run, and whether from its trace
PLOTS = {"accuracy_against_time": False, "accuracy_against_updates": False, "idle_by_cause": False,
         "staleness_histogram": False, "timeline": True, "layers": True, "staleness_over_time": True,
         "communication": True, "replica_spread": False}


def player(result: Result, path: str | Path | None = None, *, events: tuple[int, int] | None = None,
           limit: int = LIMIT) -> Player:
    """A run in the step player: a self-contained HTML page that steps forwards and backwards and highlights
    the programs' lines.

    Parameters
    ----------
    result : Result
        Of `refsgd.run` or `refsgd.replay`.
    path : path, optional
        Also write the page there.
    events : (int, int), optional
        Show the events first, ..., last - 1.
    limit : int
        Number of events to show from the start if `events` is not given.

    Returns
    -------
    Player
        Displayed by notebooks; ``.html`` is the document.

    Raises
    ------
    ValueError
        For a result read from JSON, which has no trace, or for events outside the run.
    """
    if result.trace is None:
        raise ValueError("a result read from JSON has no trace; expected one that run() or replay() returned")
    name = f"{result.label}: {counted(result.workers, 'worker')}, {result.runtime}, seed {result.seed}"
    return Player(player_html(result.trace, result.deploy, name=name, events=events, limit=limit), path)


def plot(result: Result, kind: str, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw one of the pictures of `refsgd.display.plots` for a run.

    Parameters
    ----------
    result : Result
        Of a run, or read from JSON.
    kind : str
        A key of `PLOTS`, e.g. "timeline", "idle_by_cause", "staleness_over_time".
    ax : Axes, optional
        Where to draw; by default on pyplot's current axes, which notebooks show.
    **options
        Of the function of that name, e.g. ``end=0.2, causes=True`` of `refsgd.display.plots.timeline`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        For an unknown kind, or if the picture needs a trace and the result was read from JSON.
    """
    if kind not in PLOTS:
        raise ValueError(f"plot {kind!r}; expected one of {', '.join(PLOTS)}")
    from refsgd.display import plots

    of_trace = PLOTS[kind]
    if of_trace and result.trace is None:
        raise ValueError(f"plot {kind!r} of a result read from JSON, which has no trace; expected one that "
                         "run() or replay() returned")
    what = result.trace if of_trace else {result.algorithm: result}
    drawn: Axes = getattr(plots, kind)(what, ax, **options)
    return drawn
