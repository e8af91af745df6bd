"""A race as a table and sentences, and its curves as a file for plotting elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from rich.table import Table

from refsgd.cluster.units import counted
from refsgd.display.tables import SIGN, Column, fitted
from refsgd.experiment.race.entries import Entry, Race
from refsgd.experiment.race.standing import LEVEL, abridged
from refsgd.experiment.race.target import METRICS, SAMPLE

POINTS = 60  #: times of a curve
MANY = 4  #: groups of rows that are not separated, above which the letters alone say so


def short(value: float) -> str:
    """Three digits; a value that was never reached is "never", one that is not known "-".

    >>> short(0.7561), short(math.inf), short(math.nan)
    ('0.756', 'never', '-')
    """
    return "-" if math.isnan(value) else "never" if value == math.inf else f"{value:.3g}"


def predicted(row: Entry) -> str:
    """Simulated passes times predicted seconds of a pass."""
    sign = SIGN["approximation"] if math.isfinite(row.predicted) else ""
    return sign + short(row.predicted)


def _simulated(row: Entry) -> str:
    low, high, _ = row.interval
    return f"{short(row.seconds)} [{short(low)}, {short(high)}]"


def race_table(race: Race, width: int) -> Table:
    """The rows, the fastest first."""
    rows, linear = race.rows, next(iter(race.references.values()), math.nan)
    coverage = f"[{rows[0].interval.coverage:.0%}]" if rows else ""
    columns = [Column("", [abridged(race.letters[row.label]) for row in rows], right=False),
               Column("algorithm", [row.label for row in rows], right=False),
               Column("predicted\nseconds", [predicted(row) for row in rows], 2)]
    if race.trained is None:
        columns.append(Column(f"simulated\nseconds {coverage}", [_simulated(row) for row in rows]))
    else:
        columns[2:] = [Column(f"seconds\n{coverage}", [("" if row.how == "exact" else SIGN["approximation"])
                                                       + _simulated(row) for row in rows])]
    if any(not math.isnan(row.measured) for row in rows):
        columns.append(Column("measured\nseconds", [short(row.measured) for row in rows]))
    columns += [
        Column("passes at\nown rate", [short(row.passes) for row in rows]),
        Column("s a\npass", [SIGN.get(row.kind, "") + short(row.pace) for row in rows], 4),
        Column("own\nrate", [short(row.rate) if row.reached else "-" for row in rows]),
        Column("reached", [f"{row.reached}/{len(row.heats)}" for row in rows], 3)]
    if not math.isnan(linear):
        columns.append(Column("x linear\nspeed-up", [short(row.seconds / linear) for row in rows], 5))
    if race.common_rate:
        columns.append(Column(f"seconds at\nrate {race.common_rate:g}",
                              [short(float(np.median([h.seconds for h in row.common]))) for row in rows]))
    return fitted(columns, width)


def heading(race: Race) -> str:
    """What was trained, where, and to which target."""
    said = race.problem
    workers = max((row.workers for row in race.rows), default=1)
    of = f" on {SAMPLE} images" if race.target.metric == "loss" else ""
    return (f"{said['net']} on {said['data']}, {counted(workers, 'worker')}, batch {said['batch']}; to a "
            f"{METRICS[race.target.metric]} of {race.target.value:g}{of}; {race.machine}")


def sentences(race: Race) -> list[str]:
    """What the table does not say by itself."""
    out = ["; ".join(f"{name}: {short(value)} s" for name, value in race.references.items())
           + " (reference lines, not bounds)."] if race.references else []
    groups = sorted({letter for text in race.letters.values() for letter in text})
    together = [[row.label for row in race.rows if letter in race.letters[row.label]] for letter in groups]
    together = [names for names in together if len(names) > 1]
    seeds = len(race.seeds)
    if 2 / 2**seeds >= LEVEL and len(race.rows) > 1:
        out.append(f"{seeds} seeds tell no two algorithms apart; six do, if all agree.")
    elif len(together) > MANY:
        runs = any("-" in abridged(text) for text in race.letters.values())
        span = "; a-e is all from a to e" if runs else ""
        out.append(f"Rows with a letter in common are not separated by {seeds} seeds{span}.")
    else:
        out += [f"{', '.join(names[:-1])} and {names[-1]}: not separated by {seeds} seeds."
                for names in together]
    near = min((b / a for row in race.rows for a, b in pairwise(sorted(row.tried))), default=0.0)
    out.append(f"Rates were tuned on {counted(len(race.tuning), 'other seed')}"
               + f", the closest a factor of {near:.2g} apart" * bool(near) + ".")
    if race.trained is not None:
        out.append(f"Passes are those of a race on: {race.trained}. Without ~: the schedule simulated here, "
                   "exact; with ~: passes times predicted seconds a pass.")
    if race.rows and not any(row.reached for row in race.rows):
        values = [p.value for row in race.rows for heat in row.heats for p in heat.points]
        best = min(values) if race.target.metric == "loss" else max(values)
        easier = best * (1.2 if race.target.metric == "loss" else 0.95)
        out.append(f"No run reached {race.target}; the best value was {best:.3g}: try --target "
                   f"{race.target.metric}={easier:.2g}, or more --passes.")
    return out


def times(rows: Sequence[Entry]) -> Sequence[float]:
    """Common times for curves, to a little after the last median."""
    ends = [row.seconds for row in rows if math.isfinite(row.seconds)] or [
        heat.points[-1].seconds for row in rows for heat in row.heats]
    return [float(t) for t in np.linspace(0, 1.1 * max(ends), POINTS)]


def curves_csv(race: Race) -> str:
    """The curves with their bands, one line for each algorithm and time."""
    lines = ["algorithm,seconds,low,median,high"]
    at = times(race.rows)
    for row in race.rows:
        lines += [f"{row.label},{t:.6g},{low:.6g},{median:.6g},{high:.6g}"
                  for t, low, median, high in zip(at, *row.band(at))]
    return "\n".join(lines)
