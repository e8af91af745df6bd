"""Results as tables and plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from refsgd.comparison import Comparison, Row
from refsgd.result import Result

#: what a worker does meanwhile, by cause of its idleness
WAITING = {"transfer": "waiting for messages on the wire (transfer)", "queueing": "waiting behind others' messages at a link or server (queueing)",
           "straggling": "waiting for slower workers (straggling)", "slack": "waiting at the bound on clocks (slack)",
           "partner": "waiting for a partner that computes (partner)", "update": "waiting for updates to be computed (update)",
           "idleness": "waiting"}
SIGN = {"exact": "", "approximation": "~", "bound": "≤"}


def _predicted(row: Row, key: str, scale: float, pattern: str) -> str:
    found = row.predicted.get(key)
    if found is None:
        return "-"
    return ("≥" if found.get("side") == "lower" else SIGN[found["kind"]]) + pattern.format(found["value"] * scale)


def _cells(row: Row, pattern: str, key: str, scale: float, seen: Any) -> str:
    lines = [_predicted(row, key, scale, pattern)]
    lines += [pattern.format(seen(r) * scale) if r is not None else "-" for r in (row.simulated, row.measured)]
    return "\n".join(lines)


def residual(row: Row, against: str) -> float | None:
    """Relative difference in time per iteration: "predicted" of simulated from predicted, "simulated" of measured from simulated.

    Parameters
    ----------
    row : Row
    against : {"predicted", "simulated"}
        What it is compared with.

    Returns
    -------
    float or None
        None where one of the two is missing.
    """
    low = row.predicted.get("seconds_per_iteration", {}).get("value") if against == "predicted" else _iteration(row.simulated)
    high = _iteration(row.simulated if against == "predicted" else row.measured)
    return high / low - 1 if low and high else None


def _iteration(result: Result | None) -> float | None:
    return result.measured["seconds_per_iteration"] if result is not None else None


def _residuals(row: Row) -> str:
    found = [residual(row, "predicted"), residual(row, "simulated")]
    return "\n".join(["-", *("-" if r is None else f"{r:+.1%}" for r in found)])


def explain(row: Row, large: float = 0.03) -> list[str]:
    """Why the three answers of one algorithm part, where they do by more than `large`; the term with the most to say.

    Parameters
    ----------
    row : Row
    large : float
        Relative difference in time per iteration.

    Returns
    -------
    list of str
    """
    out = []
    off = residual(row, "predicted")
    if off is not None and abs(off) > large and row.simulated is not None and (why := _off_formula(row, row.simulated, off)):
        out.append(f"{row.label}: simulation {off:+.1%} from the formula; {why}.")
    off = residual(row, "simulated")
    if off is not None and abs(off) > large and row.measured is not None:
        out.append(f"{row.label}: processes {off:+.1%} from the simulation; {_off_simulation(row.measured, off)}.")
    return out


def _off_formula(row: Row, s: Result, off: float) -> str | None:
    """Why the simulation's iteration is `off` from the formula's; None where nothing was drawn or traced."""
    law = s.machine.compute
    if law is None or s.trace is None:
        return None
    found = row.predicted["seconds_per_iteration"]
    run = row.predicted.get("seconds", {}).get("value")
    whole = s.measured["seconds"] / run - 1 if run else off
    if abs(whole) < abs(off) / 4:
        return f"the formula's iteration is that of a long run, and this one began otherwise: its seconds in all are {whole:+.1%} from the formula's"
    total = off * found["value"]
    excess = {cause: share * s.measured["seconds_per_iteration"] - found["terms"].get(cause, 0.0) for cause, share in s.measured["idle_by_cause"].items()}
    excess = {cause: e for cause, e in excess.items() if e * total > 0} or {"idleness": 0.0}  # what pulls the same way
    worst = max(excess, key=lambda cause: abs(excess[cause]))
    drawn = {w: s.trace.busy[w] / max(1, s.trace.iterations[w]) for w in s.trace.workers}
    luck = sum(d * s.machine.speed(w) for w, d in drawn.items()) / len(drawn) / law.mean - 1
    if abs(luck * law.mean) >= max(0.5 * abs(total), abs(excess[worst])) and luck * total > 0:
        return f"the draws of this seed were {luck:+.1%} off their mean: more --steps, or --seeds, average that out"
    if s.steps < 50:
        return f"{s.steps} iterations are few: the first, in which all start together, and the last weigh in"
    return f"{WAITING[worst]} takes {abs(excess[worst]) * 1e3:.2f} ms an iteration {'more' if excess[worst] > 0 else 'less'} than the formula says"


def _off_simulation(measured: Result, off: float) -> str:
    """Why the processes' iteration is `off` from the simulation's."""
    overrun = measured.measured["overrun_ratio"]
    late = measured.trace.lateness.values() if measured.trace is not None else []
    slipped = max((t["slipped"] for t in late), default=0.0) / max(measured.measured["seconds"], 1e-9)
    if overrun > 0.02 or slipped > 0.5 * abs(off):
        return (f"real computing overran its drawn times by {overrun:.1%} (overrun), since this machine is busy or too slow: "
                "a longer --compute or fewer workers")
    return "messages came in another order, so that other workers waited"


def comparison_table(comparison: Comparison) -> Table:
    """Rows: algorithm, on three lines predicted, simulated and measured; ~ approximation, ≤ and ≥ bounds.

    Parameters
    ----------
    comparison : Comparison

    Returns
    -------
    rich.table.Table
    """
    table = Table(title=f"{comparison.machine}", title_justify="left", caption="staleness in updates; ~ approximation, ≤ ≥ bound",
                  caption_justify="left", show_lines=True)
    for name in ("algorithm", "", "test\naccuracy", "ms per\niteration", "images/s", "residual", "staleness\nmean", "\nmax", "idle", "MB sent"):
        table.add_column(name, justify="left" if name in ("algorithm", "") else "right", no_wrap=name != "algorithm")
    for row in comparison.rows:
        accuracies = [f"{r.accuracy['test']:.1%}" if r is not None and r.accuracy else "-" for r in (row.simulated, row.measured)]
        best = row.measured or row.simulated
        head = f"{row.label}\n{best.workers} worker{'s' if best.workers > 1 else ''}, {best.steps} steps" if best else row.label
        table.add_row(
            head, "predicted\nsimulated\nmeasured", "\n".join(["-", *accuracies]),
            _cells(row, "{:.2f}", "seconds_per_iteration", 1e3, lambda r: r.measured["seconds_per_iteration"]),
            _cells(row, "{:.0f}", "images_per_second", 1, lambda r: r.measured["images_per_second"]),
            _residuals(row),
            _cells(row, "{:.2f}", "staleness_mean", 1, lambda r: r.measured["staleness"]["mean"]),
            _cells(row, "{:.0f}", "staleness_max", 1, lambda r: r.measured["staleness"]["max"]),
            _cells(row, "{:.1%}", "idle_ratio", 1, lambda r: r.measured["idle_ratio"]),
            _cells(row, "{:.3f}", "bytes_sent", 1e-6, lambda r: sum(r.measured["bytes_sent"].values())),
        )
    return table


def prediction_table(predictions: Mapping[str, Any], absent: Mapping[str, str] | None = None) -> Table:
    """One line per figure: value, kind, its terms, the formula; and why the others have none.

    Parameters
    ----------
    predictions : mapping of str to Prediction
    absent : mapping of str to str, optional
        See `refsgd.theory.absent`.

    Returns
    -------
    rich.table.Table
    """
    table = Table(show_lines=True)
    for name in ("figure", "value", "kind", "terms", "formula"):
        table.add_column(name, justify="right" if name == "value" else "left", overflow="fold")
    for key, p in predictions.items():
        terms = "\n".join(f"{name}: {value:.6g}" for name, value in p.terms.items())
        table.add_row(key, f"{p.value:.6g}" + (f" {p.unit}" if p.unit != "1" else ""), f"{p.bound} {p.kind}".strip(), terms, p.formula)
    for key, reason in (absent or {}).items():
        table.add_row(key, "none", "", "", reason)
    return table


def time_to(result: Result, accuracy: float) -> float | None:
    """Seconds until the test accuracy first reached a value, None if it never did.

    Parameters
    ----------
    result : Result
    accuracy : float
        In [0, 1].

    Returns
    -------
    float or None
    """
    for seconds, _, _, _, reached in result.history:
        if reached >= accuracy:
            return float(seconds)
    return None


def sentences(comparison: Comparison) -> list[str]:
    """What the comparison shows, in a few plain sentences.

    Parameters
    ----------
    comparison : Comparison

    Returns
    -------
    list of str
    """
    seen = comparison.results
    out = []
    many = {name: r for name, r in seen.items() if r.workers > 1}
    if many:
        idlest = max(many, key=lambda name: many[name].measured["idle_ratio"])
        m = many[idlest].measured
        cause = max(m["idle_by_cause"], key=lambda c: m["idle_by_cause"][c])
        busiest = min(many, key=lambda name: many[name].measured["idle_ratio"])
        out.append(f"Workers of {idlest} are idle {m['idle_ratio']:.0%} of the time, most of it {cause}; "
                   f"those of {busiest} {many[busiest].measured['idle_ratio']:.0%}.")
        stalest = max(many, key=lambda name: many[name].measured["staleness"]["mean"])
        s = many[stalest].measured["staleness"]
        if s["max"]:
            out.append(f"The price is age: a gradient of {stalest} misses {s['mean']:.1f} updates on average and up to {s['max']}.")
    accuracies = {name: r.accuracy["test"] for name, r in seen.items() if r.accuracy}
    if accuracies:
        goal = 0.01 * int(100 * min(max(h[4] for h in r.history) for r in seen.values() if r.history))
        times = {name: t for name, r in seen.items() if (t := time_to(r, goal)) is not None}
        if times:
            first, *others = sorted(times, key=lambda name: times[name])
            shown = others if len(others) < 9 else [*others[:3], others[-1]]
            out.append(f"{first} is the first to reach {goal:.0%} test accuracy, after {times[first]:.2f} s"
                       + "".join(f"; {name} after {times[name]:.2f} s" for name in shown) + ".")
    if comparison.runtime != "simulator":
        both = [row for row in comparison.rows if row.simulated and row.measured]
        off = {row.label: row.measured.measured["seconds"] / row.simulated.measured["seconds"] - 1  # type: ignore[union-attr]
               for row in both if row.simulated.measured["seconds"]}  # type: ignore[union-attr]
        if off:
            worst = max(off, key=lambda name: abs(off[name]))
            out.append(f"Processes took {off[worst]:+.1%} of the simulated time at most ({worst}).")
        same = [row.label for row in both
                if row.simulated.parameters_sha256 == row.measured.parameters_sha256]  # type: ignore[union-attr]
        if same:
            out.append(f"Simulator and processes ended with the same bits under {', '.join(same)}.")
    for row in comparison.rows:
        out += explain(row)
        if row.failed:
            out.append(f"{row.label} diverged: {row.failed}.")
    if comparison.hard is not None:
        out += _parting(comparison.hard)
    return out


def _parting(hard: Comparison) -> list[str]:
    """What the second panel shows."""
    diverged = [row.label for row in hard.rows if row.failed]
    final = {name: r.accuracy["test"] for name, r in hard.results.items() if r.accuracy and r.workers > 1}
    if not final:
        return []
    best, worst = max(final, key=lambda name: final[name]), min(final, key=lambda name: final[name])
    spread = {name: r.consensus_distance for name, r in hard.results.items() if name in final}
    drifted = max(spread, key=lambda name: spread[name])
    text = (f"Where they part (8 workers, each with only some of the digits; simulated): {best} ends with {final[best]:.0%} test accuracy, "
            f"{worst} with {final[worst]:.0%}")
    if spread[drifted] > 0:
        text += f"; the replicas of {drifted} are furthest apart, since nothing else shows them the other digits"
    if diverged:
        text += f"; {', '.join(diverged)} diverged"
    return [text + "."]
