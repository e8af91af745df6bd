"""The rows of a race: their statistics, as a file, and on other machines."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from refsgd._version import __version__
from refsgd.cluster.machine import Machine
from refsgd.effects import Array
from refsgd.experiment.arguments import Usage
from refsgd.experiment.prepare import Experiment, prepare
from refsgd.experiment.race import runs
from refsgd.experiment.race.standing import Interval, interval, letters, separated
from refsgd.experiment.race.target import EXPLODED, Heat, Target, crossing, of_iterations, same_everywhere
from refsgd.problems.shapes import NoContents, in_shape_only
from refsgd.trace.schema import ANY, COUNT, NUMBER, OBJECT, TEXT, Row, as_number, json_text, misfit

FORMAT = 1  #: version of the JSON format of races
SHIPPED = Path(__file__).parent  #: races of the library, by name
_ROW = {"label": TEXT, "arguments": OBJECT, "workers": COUNT, "rate": NUMBER, "per_pass": COUNT,
        "runs": [{"gradients": ANY, "seconds": ANY, "ended": TEXT,
                  "points": [Row({"seconds": NUMBER, "gradients": COUNT, "value": ANY})]}]}
SCHEMA: dict[str, Any] = {"race": TEXT, "machine": OBJECT, "seeds": [COUNT], "tuning": [COUNT],
                          "references": OBJECT, "problem": OBJECT, "rows": [_ROW]}


@dataclass(frozen=True)
class Entry:
    """One algorithm of a race."""

    label: str  #: its name, with the options by which rows differ
    arguments: dict[str, Any]  #: of `prepare`, with `algorithm`, without rate and seed
    workers: int
    rate: float  #: its own, from the tuning
    tried: dict[float, float]  #: median seconds of each rate that was tried
    heats: list[Heat]  #: runs at its rate, by seed
    per_pass: int  #: gradients in a pass over the data
    pace: float = math.nan  #: predicted seconds of a pass, on the machine of the race
    kind: str = ""  #: of that prediction
    #: how the seconds of its runs were obtained: simulated; exact: from the schedule of another machine,
    #: where the same parameters have the same losses; predicted: passes times predicted seconds
    how: str = "simulated"
    measured: float = math.nan  #: seconds of a run as processes, to the target
    common: list[Heat] = field(default_factory=list)  #: runs at the common rate, if there is one

    def experiment(self, seed: int = 0, machine: Machine | None = None, steps: int = 1) -> Experiment:
        """Its experiment at its rate."""
        if not self.arguments:
            raise Usage(f"{self.label} had a problem or a function of your own, which no file has; expected "
                        "another race, on the other machine")
        more = {} if machine is None else {"machine": machine}
        return prepare(**{**self.arguments, "lr": self.rate, "seed": seed, "steps": steps, **more})

    @property
    def seconds(self) -> float:
        """The median; infinite if most runs never reached the target."""
        return statistics.median(heat.seconds for heat in self.heats)

    @property
    def passes(self) -> float:
        """The median of passes over the data until the target."""
        return statistics.median(heat.gradients for heat in self.heats) / self.per_pass

    @property
    def interval(self) -> Interval:
        """The interval of the median seconds."""
        return interval([heat.seconds for heat in self.heats])

    @property
    def predicted(self) -> float:
        """Simulated passes times predicted seconds of a pass."""
        return self.passes * self.pace

    def band(self, times: Sequence[float]) -> Array:
        """Deciles 1, 5 and 9 of the runs' values at times, (3, len(times)); an ended run keeps its last."""
        each = []
        for heat in self.heats:
            values = np.nan_to_num([p.value for p in heat.points], nan=EXPLODED).clip(1e-30, EXPLODED)
            each.append(np.interp(times, [p.seconds for p in heat.points], np.log(values)))
        return np.asarray(np.exp(np.quantile(each, (0.1, 0.5, 0.9), axis=0)))

    @property
    def reached(self) -> int:
        """How many runs reached the target."""
        return sum(heat.ended == "reached" for heat in self.heats)


@dataclass(frozen=True)
class Race:
    """The rows of a race, the fastest first.

    Parameters
    ----------
    target : Target
    machine : Machine
    rows : list of Entry
    seeds, tuning : list of int
        Of the runs that are shown, and of those that found the rates: never the same.
    references : dict of str to float
        Seconds of each reference line, see `refsgd.theory.phenomena.speedup`.
    problem : dict
        Its description, as in a result.
    common_rate : float or None
    trained : Machine or None
        The machine on which the runs were simulated, if that is another one.
    """

    target: Target
    machine: Machine
    rows: list[Entry]
    seeds: list[int]
    tuning: list[int]
    references: dict[str, float]
    problem: dict[str, Any]
    common_rate: float | None = None
    trained: Machine | None = None

    @cached_property
    def letters(self) -> dict[str, str]:
        """Letters by label; two rows with a letter in common are not told apart."""
        times = {row.label: [heat.seconds for heat in row.heats] for row in self.rows}
        return letters(list(times), lambda a, b: separated(times[a], times[b]))

    def on(self, machine: Machine) -> Race:
        """The race on another machine, without training.

        Where the parameters are the same on every machine, the schedule alone is simulated there, which is
        exact.  Elsewhere the passes of this race are taken over, times the predicted seconds of a pass.

        Parameters
        ----------
        machine : Machine

        Returns
        -------
        Race

        Raises
        ------
        Usage
            If the race had a problem or an algorithm of your own, which a file does not have.
        """
        check_paced(machine)
        rows = [_retimed(row, self, machine) for row in self.rows]
        return replace(self, machine=machine, rows=ordered(rows), trained=self.trained or self.machine,
                       references={}, common_rate=None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"refsgd": __version__, "format": FORMAT, "race": str(self.target),
                "machine": self.machine.to_json(), "trained": self.trained and self.trained.to_json(),
                "seeds": self.seeds, "tuning": self.tuning, "references": self.references,
                "common_rate": self.common_rate, "problem": self.problem,
                "rows": [_to_json(row, self.letters[row.label]) for row in self.rows]}

    def to_json(self) -> str:
        """The race as JSON, one row a line."""
        said = self.to_dict()
        rows = ",\n".join(json_text(row, separators=(",", ":")) for row in said.pop("rows"))
        return json_text(said)[:-2] + f',\n "rows": [\n{rows}\n]}}'

    @classmethod
    def load(cls, path: str | Path) -> Race:
        """A race from a file that `to_json` wrote, or one of those of the library, such as ``digits``."""
        known = SHIPPED / f"{path}.json"
        try:
            text = (known if known.exists() else Path(path)).read_text(encoding="utf-8")
            said = json.loads(text)
        except OSError as error:
            names = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.json")))
            raise Usage(f"race {path}: {error.strerror}; expected a file that race --json wrote, or one of "
                        f"{names}") from None
        except ValueError:
            raise Usage(f"race {path} is not JSON; expected a file that race --json wrote") from None
        if not isinstance(said, dict) or said.get("format") != FORMAT or "race" not in said:
            raise Usage(f"race {path} is not a race of format {FORMAT}; expected a file that race --json "
                        "wrote")
        if wrong := misfit(said, SCHEMA):
            raise Usage(f"race {path}: {wrong}")
        trained = said.get("trained")
        return cls(Target.read(said["race"]), Machine.from_json(said["machine"]),
                   ordered([_from_json(row) for row in said["rows"]]), said["seeds"], said["tuning"],
                   said["references"], said["problem"], said.get("common_rate"),
                   trained and Machine.from_json(trained))


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with the race as far as it is complete."""

    def __init__(self, race: Race) -> None:
        super().__init__()
        self.race = race


def check_paced(machine: Machine) -> None:
    """Refuse a machine without compute times, on which a race has no seconds."""
    if not machine.paced:
        raise Usage("a race on a machine without compute times has no seconds; expected one with them, such "
                    "as --compute 15ms")


def ordered(rows: list[Entry]) -> list[Entry]:
    """The fastest first, of equal ones in the order of their labels."""
    return sorted(rows, key=lambda row: (row.seconds, row.passes, row.label))


def paced(row: Entry, machine: Machine | None = None) -> Entry:
    """A row with predicted seconds of a pass: those of a run of as many passes as it needs."""
    if not row.arguments:
        return row
    epoch = int(row.experiment(machine=machine).problem.describe.get("steps_per_epoch", 100))
    passes = row.passes if math.isfinite(row.passes) else 1.0
    found = row.experiment(machine=machine, steps=max(1, round(passes * epoch))).predictions()
    pace = found.get("seconds_per_iteration")
    return row if pace is None else replace(row, pace=float(pace.value * epoch), kind=pace.kind)


def _retimed(row: Entry, race: Race, machine: Machine) -> Entry:
    """A row on another machine: exactly, or by prediction."""
    if row.workers == 1:
        machine = machine.for_workers(1)
    row = paced(row, machine)
    steps = 1 + max(int(heat.points[-1].gradients) for heat in row.heats)
    experiments = [row.experiment(seed, machine, steps) for seed in race.seeds]
    if exact := same_everywhere(experiments[0]):
        heats = [_rescheduled(heat, each, race.target) for heat, each in zip(row.heats, experiments)]
    else:
        second = row.pace / row.per_pass
        heats = [heat._replace(seconds=heat.gradients * second,
                               points=[p._replace(seconds=p.gradients * second) for p in heat.points])
                 for heat in row.heats]
    return replace(row, heats=heats, how="exact" if exact else "predicted", measured=math.nan, common=[])


def _rescheduled(heat: Heat, experiment: Experiment, target: Target) -> Heat:
    """A run with the times of another machine's schedule, which is simulated without contents."""
    shape = in_shape_only(experiment.problem, [max(b, 1) for b in experiment.batches])
    try:
        times = _times(heat, replace(experiment, problem=shape))
    except NoContents:  # the algorithm reads them
        times = _times(heat, experiment)
    if unknown := [p.gradients for p in heat.points if p.gradients not in times]:
        raise Usage(f"{experiment.name} is not evaluated after {unknown[0]} gradients here, as the race is; "
                    "expected a race of this version: run it again")
    points = [p._replace(seconds=times[p.gradients]) for p in heat.points]
    found = crossing(points[-3:], target) if heat.ended == "reached" else None
    return heat._replace(seconds=found[0] if found else math.inf, points=points)


def _times(heat: Heat, experiment: Experiment) -> dict[int, float]:
    """The seconds after which all workers have computed so many gradients, up to those of the last point."""
    times = {0: 0.0}
    for seconds, gradients, _ in of_iterations(experiment, 1):
        times[gradients] = round(seconds, 6)
        if gradients >= heat.points[-1].gradients:
            break
    return times


def _to_json(row: Entry, letter: str) -> dict[str, Any]:
    """A row as JSON values; the seconds and passes of a race are there for readers."""
    said = {name: value for name, value in vars(row).items() if name not in ("heats", "common", "tried")}
    given = {name: value.to_json() if isinstance(value, Machine) else value
             for name, value in row.arguments.items()}
    low, high, coverage = row.interval
    return {**said, "arguments": given, "letters": letter, "seconds": row.seconds, "passes": row.passes,
            "interval": [low, high], "coverage": coverage, "predicted": row.predicted,
            "tried": [list(each) for each in sorted(row.tried.items())],
            "runs": [runs.as_json(heat) for heat in row.heats],
            "common": [runs.as_json(heat) for heat in row.common]}


def _from_json(said: dict[str, Any]) -> Entry:
    """The row that `_to_json` described."""
    given = dict(said["arguments"])
    if "machine" in given:
        given["machine"] = Machine.from_json(given["machine"])
    pace, measured = (as_number(said.get(name)) for name in ("pace", "measured"))
    heats, common = ([runs.from_json(each) for each in said.get(name, [])] for name in ("runs", "common"))
    return Entry(said["label"], given, said["workers"], said["rate"],
                 {rate: as_number(median) for rate, median in said.get("tried", [])},
                 heats, said["per_pass"], pace, said.get("kind", ""), said.get("how", "simulated"), measured,
                 common)
