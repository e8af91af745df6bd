"""Results as tables and sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from refsgd.cluster.prices import mean_gradient
from refsgd.cluster.units import counted
from refsgd.experiment.compare import HARD, Comparison, Row
from refsgd.experiment.result import Result, samples_of
from refsgd.experiment.sweep import Sweep
from refsgd.theory.prediction import STANDARD_ERROR
from refsgd.trace import CAUSES
from refsgd.trace.metrics import METRICS, Metric

NAME = 16  #: characters after which an algorithm's options get a separate line
#: smaller differences in test accuracy may be chance: two standard errors at 97 % of 360 images are 0.025
CHANCE = 0.03
#: what a comparison shows besides the metrics of its runs
SHOWN = {**METRICS,
         "accuracy": Metric("accuracy", "1", "", "", head="test\naccuracy", pattern="{:.1%}"),
         "residual": Metric("residual", "1", "", "time per iteration against the line above", head="Δ time",
                            pattern="{:+.1%}"),
         "memory": METRICS["memory_worker"]._replace(meaning="of the node that holds most",
                                                     head="memory\nMB")}
#: columns of a comparison, each with its priority for leaving it out
COLUMNS = {"accuracy": 2, "seconds_per_iteration": 0, "images_per_second": 4, "residual": 5,
           "staleness_mean": 3, "staleness_max": 6, "idle_ratio": 1, "bytes_sent": 7, "memory": 8}
#: columns that the caption explains, and how it calls them
EXPLAINED = {"residual": "Δ time", "staleness_mean": "staleness", "idle_ratio": "idle", "memory": "memory"}
ROLES = ("memory_worker", "memory_server", "memory_stage")  #: whose fullest node's memory is predicted
#: no ranking if the processes' time differs from the simulated time by a larger share
OFF = 0.25
#: what the letters of formulas mean, by a pattern of the formulas that have them
SYMBOLS = {
    r"\bn\b(?! steps)": "n workers", r"\bT\b|T_": "T a gradient", r"\bu\b": "u an update",
    r"\bM\b(?!_)": "M bytes of parameters", r"/K": "K servers", r"\bK - ": "K stages", r"\bw\b": "w = M beta",
    r"\bw\b|beta(?!')": "beta = 1/bandwidth", r"alpha(?!')": "alpha = latency",
    r"alpha'": "alpha', beta' inside a host", r"gamma": "gamma = the reduction of a byte",
    r"\bm beta": "m bytes of a chunk", r"\(m-1\)": "m hosts", r"\bg\b": "g ranks of a host",
    r"\bq\b": "q = 2^floor(log2 n)", r"\bf\b": "f = 1 if n > q, else 0", r"(\d|-|: )s\b": "s the slack",
    r"\bH\b": "H the period", r"\bb\b": "b images of a batch",
}
SIGN = {"exact": "", "numerical": "", "simulated": "", "approximation": "~", "lower": "≥", "upper": "≤"}


class Column(NamedTuple):
    """A column of a table."""

    head: str
    cells: list[str]
    rank: int = 0  #: if the table is too wide, the highest ranks are left out; 0: never
    right: bool = True  #: alignment


def fitted(columns: Sequence[Column], width: int, **options: Any) -> Table:
    """A table of the columns that fit, with all cells in full."""
    for most in sorted({c.rank for c in columns}, reverse=True):
        table = Table(box=box.HORIZONTALS, title_justify="left", caption_justify="left", **options)
        shown = [c for c in columns if c.rank <= most]
        for c in shown:
            table.add_column(c.head, justify="right" if c.right else "left", no_wrap=True)
        for cells in zip(*(c.cells for c in shown), strict=True):
            table.add_row(*cells)
        if Console(width=10_000, markup=False).measure(table).maximum <= width:
            break
    return table


def _predicted(row: Row, key: str) -> str:
    held = [row.predicted[role] for role in ROLES if role in row.predicted]
    found = max(held, key=lambda p: p["value"], default=None) if key == "memory" else row.predicted.get(key)
    if found is None:
        return "-"
    value = "∞" if found["value"] is None else SHOWN[key].text(found["value"])
    error = SHOWN[key].text(found["terms"].get(STANDARD_ERROR, 0.0))
    if found["kind"] == "numerical" and error.strip("0.%"):  # visible at this precision
        value = f"{value.removesuffix('%')}±{error}"
    return SIGN[found.get("bound") or found["kind"]] + value


def _seen(row: Row, result: Result | None, against: str) -> dict[str, Any]:
    """The values of a run, under the names of `COLUMNS`."""
    return {} if result is None else {
        **result.measured, "accuracy": result.accuracy.get("test"), "residual": residual(row, against)}


def residual(row: Row, against: str) -> float | None:
    """Relative difference in iteration time, of simulated from "predicted" or measured from "simulated"."""
    times = [row.predicted.get("seconds_per_iteration", {}).get("value"),
             *(r.measured["seconds_per_iteration"] if r else None for r in (row.simulated, row.measured))]
    low, high = times[:2] if against == "predicted" else times[1:]
    return high / low - 1 if low and high else None


def explain(row: Row, large: float = 0.03) -> list[str]:
    """The main cause of each difference above `large` between the three answers for an algorithm."""
    out = []
    off = residual(row, "predicted")
    if off is not None and abs(off) > large and row.simulated is not None and (
        why := _off_formula(row, row.simulated, off)):
        out.append(f"{row.label}: the simulation is {off:+.1%} off the formula: {why}.")
    off = residual(row, "simulated")
    if off is not None and abs(off) > large and row.measured is not None:
        out.append(f"{row.label}: the processes are {off:+.1%} off the simulation: "
                   f"{_off_simulation(row.measured, off)}.")
    return out


def _off_formula(row: Row, s: Result, off: float) -> str | None:
    """Why the simulated iteration time is `off` from the formula; None if nothing was drawn or traced."""
    expected = mean_gradient(s.machine)
    if s.machine.compute is None or s.trace is None:
        return None
    found = row.predicted["seconds_per_iteration"]
    run = row.predicted.get("seconds", {}).get("value")
    whole = s.measured["seconds"] / run - 1 if run else off
    if abs(whole) < abs(off) / 4:
        return ("the formula gives the iteration of a long run, and this run began differently: its total "
                f"time is {whole:+.1%} off the formula's")
    total = off * found["value"]
    excess = {"": 0.0}
    for cause, share in s.measured["idle_by_cause"].items():
        more = share * s.measured["seconds_per_iteration"] - found["terms"].get(cause, 0.0)
        if more * total > 0:  # of the same sign
            excess[cause] = more
    worst = max(excess, key=lambda cause: abs(excess[cause]))
    drawn = {w: s.trace.busy[w] / max(1, s.trace.iterations[w]) for w in s.trace.workers}
    mean = sum(d * s.machine.speed(rank) for rank, d in enumerate(drawn.values())) / len(drawn)
    luck = mean / expected - 1 if expected else 0.0
    if abs(luck * expected) >= max(0.5 * abs(total), abs(excess[worst])) and luck * total > 0:
        return (f"the draws of this seed are {luck:+.1%} off their mean; more --steps or --seeds average "
                "that out")
    if s.steps < 50:
        return f"{s.steps} iterations are few, so the common start and the end of the run matter"
    waiting = f"waiting ({worst}: {CAUSES[worst]})" if worst else "waiting"
    return (f"{waiting} takes {abs(excess[worst]) * 1e3:.2f} ms an iteration "
            f"{'more' if excess[worst] > 0 else 'less'} than the formula says")


def _off_simulation(measured: Result, off: float) -> str:
    """Why the measured iteration time is `off` from the simulated one."""
    overrun = measured.measured["overrun_ratio"]
    late = measured.trace.lateness.values() if measured.trace is not None else []
    if late and not any(each["drawn"] for each in late):
        return ("unpaced, this computer was not as fast as the machine describes; end other work, and "
                "calibrate with this net")
    slipped = max((t["slipped"] for t in late), default=0.0) / max(measured.measured["seconds"], 1e-9)
    if overrun > 0.02 or slipped > 0.5 * abs(off):
        return (f"gradients took {overrun:.1%} longer than the emulated durations because this machine is "
                "busy or too slow; use a longer --compute or fewer workers")
    return "messages arrived in a different order, so other workers waited"


def comparison_table(comparison: Comparison, width: int = 120) -> Table:
    """A row per algorithm, with a line for each of predicted, simulated and, if available, measured."""
    real = any(row.measured for row in comparison.rows)
    columns = [Column("algorithm", [], right=False), Column("", [], right=False),
               *(Column(SHOWN[key].head, [], rank) for key, rank in COLUMNS.items())]
    for row in comparison.rows:
        best = row.measured or row.simulated
        size = [counted(best.workers, "worker"), counted(best.steps, "step")] if best else []
        runs = [_seen(row, row.simulated, "predicted"), _seen(row, row.measured, "simulated")][:1 + real]
        cells = [[*wrap(row.label, NAME, break_long_words=False, break_on_hyphens=False), *size],
                 ["predicted", "simulated", "measured"][:1 + len(runs)]]
        for key in COLUMNS:
            values = [seen.get(key) for seen in runs]
            cells.append([_predicted(row, key), *("-" if v is None else SHOWN[key].text(v) for v in values)])
        for column, lines in zip(columns, cells, strict=True):
            column.cells.append("\n".join(lines))
    table = fitted(columns, width, title=f"{comparison.machine}", show_lines=True)
    table.caption = " ".join([
        "predicted: by formula; simulated: in virtual time" + "; measured: on OS processes" * real + ".",
        "~ approximation, ± standard error, if visible at this precision, ≤ ≥ bound.",
        *(f"{word}: {SHOWN[key].meaning}." for key, word in EXPLAINED.items()
          if SHOWN[key].head in [c.header for c in table.columns]),
        *dict.fromkeys(f"{each[0].upper()}{each[1:]}." for r in comparison.results.values()
                       for each in samples_of(r.problem))])
    return table


def prediction_lines(predictions: Mapping[str, Any], absent: Mapping[str, str] | None = None,
                     width: int = 120) -> list[str]:
    """Each metric with its value, kind, terms and formula; why others are missing; the symbols."""
    def indented(head: str, text: str) -> list[str]:
        return wrap(text, width, initial_indent=head, subsequent_indent=" " * len(head),
                    break_long_words=False, break_on_hyphens=False)

    out = list[str]()
    name = max(map(len, [*predictions, *(absent or {})]), default=0) + 2
    for key, p in predictions.items():
        unit = "" if p.unit == "1" else " " + p.unit
        error = f" ± {p.error:.2g}" if p.error else ""
        out.append(f"{key:{name}}{SIGN[p.bound or p.kind]}{p.value:.6g}{error}{unit}  "
                   f"({f'{p.bound} {p.kind}'.strip()})")
        terms = [f"{term} {value:.6g}" + f" {p.units.get(term, '')}".removesuffix(" 1").rstrip()
                 for term, value in p.terms.items() if term != STANDARD_ERROR]
        out += [*indented("  terms    ", "; ".join(terms)), *indented("  formula  ", p.formula)]
    for key, reason in (absent or {}).items():
        out += indented(f"{key:{name}}", f"none: {reason}")
    formulas = " | ".join(p.formula for p in predictions.values() if p.kind != "simulated")
    found = [meaning for pattern, meaning in SYMBOLS.items() if re.search(pattern, formulas)]
    return out + indented("symbols  ", "; ".join(found)) * bool(found)


def sweep_table(found: Sweep, width: int = 120) -> Table:
    """A row per algorithm, a column per value of the quantity, or of an even selection if they do not fit."""
    bits = len(found.values).bit_length()
    columns = [Column(found.quantity, list(found.curves), right=False)]
    columns += [Column(f"{found.values[i]:.4g}",
                       ["-" if points[i] is None else f"{points[i]:.4g}" for points in found.curves.values()],
                       bits + 1 - (i & -i).bit_length() if i else 0)  # leave out every second one first
                for i in range(len(found.values))]
    return fitted(columns, width, title=f"{found.metric} [{found.unit}]")


def sentences(comparison: Comparison) -> list[str]:
    """The results in a few sentences; no ranking if processes are far from their simulation."""
    far = {row.label: off for row in comparison.rows if (off := residual(row, "simulated")) is not None
           and abs(off) > OFF}
    out = _unranked(comparison, far) if far else [*_ranked(comparison.results), *_agreement(comparison)]
    for row in comparison.rows:
        out += explain(replace(row, measured=None) if row.label in far else row)
        if row.failed:
            out.append(f"{row.label} diverged: {row.failed}.")
    if comparison.hard is not None:
        out += _parting(comparison.hard)
    return out


def _ranked(seen: Mapping[str, Result]) -> list[str]:
    """Sentences on idle time, staleness and the time to an accuracy."""
    out = []
    many = {name: r for name, r in seen.items() if r.workers > 1}
    if many:
        idle = {name: r.measured["idle_ratio"] for name, r in many.items()}
        most, least = max(idle, key=idle.__getitem__), min(idle, key=idle.__getitem__)
        causes = many[most].measured["idle_by_cause"]
        mostly = f", mostly {max(causes, key=causes.__getitem__)}" if idle[most] >= 0.005 else ""
        out.append(f"Workers of {most} are idle {idle[most]:.0%} of the time{mostly}"
                   + (f"; those of {least} {idle[least]:.0%}." if most != least else "."))
        stalest = max(many, key=lambda name: many[name].measured["staleness_mean"])
        s = many[stalest].measured
        if s["staleness_max"]:
            out.append(f"A gradient of {stalest} misses {s['staleness_mean']:.1f} updates on average and "
                       f"{s['staleness_max']} at most.")
        out += _despite_staleness(many)
    histories = [r.history for r in seen.values() if r.history and r.accuracy]
    if histories:
        goal = 0.01 * int(100 * min(max(h[4] for h in history) for history in histories))
        # until the test accuracy first reached it
        times = {name: reached[0] for name, r in seen.items() if r.accuracy
                 and (reached := [h[0] for h in r.history if h[4] >= goal])}
        first, *others = sorted(times, key=times.__getitem__)
        shown = others if len(others) < 9 else [*others[:3], others[-1]]
        sample = seen[first].problem.get("samples", {}).get("test")
        out.append(f"{first} reaches {goal:.0%} test accuracy {f'({sample}) ' * bool(sample)}"
                   f"{'first, ' * bool(others)}after "
                   f"{times[first]:.2f} s" + "".join(f"; {a} after {times[a]:.2f} s" for a in shown)
                   + ("; at one common rate and one seed (refsgd race tunes each)" if others else "") + ".")
    return out


def _despite_staleness(many: Mapping[str, Result]) -> list[str]:
    """Why stale gradients led to higher accuracy, if they did by more than chance."""
    fresh = {name: r for name, r in many.items() if r.accuracy and not r.measured["staleness_max"]}
    if not fresh:
        return []
    base = min(fresh, key=lambda name: fresh[name].measured["updates"])
    better = {name: r.accuracy["test"] for name, r in many.items()
              if r.accuracy and (r.workers, r.steps) == (fresh[base].workers, fresh[base].steps)
              and r.accuracy["test"] > fresh[base].accuracy["test"] + CHANCE
              and r.measured["staleness_max"]
              and r.measured["updates"] >= 2 * fresh[base].measured["updates"]}
    if not better:
        return []
    name = max(better, key=better.__getitem__)
    return [f"{name} ends with {better[name]:.1%} test accuracy and {base} with "
            f"{fresh[base].accuracy['test']:.1%}, although gradients of {name} are stale: it makes "
            f"{many[name].measured['updates'] / fresh[base].measured['updates']:.0f} times as many updates "
            "from the same number of images."]


def _agreement(comparison: Comparison) -> list[str]:
    """Sentences on the difference between the processes and their simulation."""
    out = []
    both = [(row.label, row.simulated, row.measured) for row in comparison.rows
            if row.simulated and row.measured]
    off = {label: real.measured["seconds"] / virtual.measured["seconds"] - 1 for label, virtual, real in both
           if virtual.measured["seconds"]}
    if off:
        worst = max(off, key=lambda label: abs(off[label]))
        out.append("The processes' time differs from the simulated time by "
                   f"{off[worst]:+.1%}{f' at most ({worst})' * (len(off) > 1)}.")
    same = [label for label, virtual, real in both if virtual.parameters_sha256 == real.parameters_sha256]
    if same:
        out.append(f"Simulator and processes ended with the same bits under {', '.join(same)}.")
    return out


def _unranked(comparison: Comparison, far: Mapping[str, float]) -> list[str]:
    """Why processes that are far from their simulation are not ranked."""
    worst = max(far, key=lambda name: abs(far[name]))
    why = next(_off_simulation(row.measured, far[worst]) for row in comparison.rows if row.label == worst
               and row.measured)
    return [f"No ranking: the processes of {', '.join(far)} are "
            f"{'up to ' * (len(far) > 1)}{far[worst]:+.0%} off their simulation, so they do not show the "
            f"described machine: {why}."]


def _parting(hard: Comparison) -> list[str]:
    """Sentences on the harder comparison, whose workers each see only some of the digits."""
    diverged = [row.label for row in hard.rows if row.failed]
    final = {name: r.accuracy["test"] for name, r in hard.results.items() if r.accuracy and r.workers > 1}
    if not final:
        return []
    best, *_, worst = [*sorted(final, key=final.__getitem__, reverse=True), min(final, key=final.__getitem__)]
    spread = {name: r.consensus_distance for name, r in hard.results.items() if name in final}
    drifted = max(spread, key=spread.__getitem__)
    text = ("With 8 workers that each see only some of the digits (simulated, one rate for all), "
            f"{best} ends with {final[best]:.0%} test accuracy")
    if worst != best:
        text += f" and {worst} with {final[worst]:.0%}"
    if spread[drifted] > 0:
        text += f"; the replicas of {drifted} drift furthest apart"
    if diverged:
        text += f"; {', '.join(diverged)} diverged"
    fewest = min(r.measured["updates"] for r in hard.results.values() if r.workers > 1)
    hasty = [name for name, accuracy in final.items() if accuracy < final[best] - 0.1
             and (m := hard.results[name].measured)["staleness_max"]
             and m["updates"] > HARD["workers"] / 2 * fewest]  # each push is an update at the full rate
    if not (hasty or diverged):
        return [text + "."]
    return [f"{text}.", f"The learning rate is one cause for {', '.join([*hasty, *diverged])}: a smaller "
            f"--lr, e.g. lr/{HARD['workers']}, may change the order (docs/defaults.md); at its own rate each "
            "is in refsgd race --from digits-by-label."]
