"""Published comparisons at one learning rate, again as races in which each row has its own rate.

``python -m benchmarks.fair run`` holds the races and writes benchmarks/results/fair/NAME.json (some minutes on
two cores); ``page`` writes docs/studies/races.md from them.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from statistics import median
from typing import Any

import refsgd
from refsgd.display.races import short
from refsgd.experiment.prepare import DEFAULT_MACHINE
from refsgd.experiment.race.entries import Entry, Race
from refsgd.experiment.race.standing import interval

RESULTS = Path(__file__).parent / "results" / "fair"
PAGE = Path(__file__).parent.parent / "docs" / "studies" / "races.md"
COMMON = 0.15  #: the default rate, at which `refsgd compare` trains all
SEVEN = ["bsp", "asp", "ssp staleness=1", "ssp staleness=3", "ssp staleness=10", "easgd period=1", "easgd period=4",
         "easgd period=8", "gosgd p=1.0", "gosgd p=0.1", "gosgd p=0.01", "adpsgd"]
BATCHES = [f"sequential batch={batch}" for batch in (2, 4, 8, 16, 32, 64, 128)]
FEW, MANY = (DEFAULT_MACHINE.with_(compute=f"straggler(0.015,{p},8)") for p in (0.02, 0.3))
#: races by name: algorithms and arguments
RACES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "ko-4": (SEVEN, {"workers": 4, "common_rate": COMMON}),
    "ko-16": (SEVEN, {"workers": 16, "common_rate": COMMON}),
    "batches": (BATCHES, {"workers": 1}),
    **{f"batches-{net}": (BATCHES, {"workers": 1, "net": net}) for net in ("mlp", "softmax")},
    "few-stragglers": (["bsp", "ssp staleness=3"], {"machine": FEW}),
    "many-stragglers": (["bsp", "ssp staleness=3"], {"machine": MANY}),
    "staleness": (["bsp", "asp", "softsync", "staleness-aware"], {"common_rate": COMMON})}


def run(jobs: int) -> None:
    """Hold all races."""
    RESULTS.mkdir(exist_ok=True)
    for name, (algorithms, more) in RACES.items():
        found = refsgd.race(algorithms, **{"workers": 8, "passes": 15.0, "jobs": jobs, "say": print, **more})
        (RESULTS / f"{name}.json").write_text(found.to_json() + "\n")


def between(values: list[float], scale: float = 1.0) -> str:
    """A median with its interval."""
    low, high, _ = interval(values)
    return f"{short(median(values) / scale)} [{short(low / scale)}, {short(high / scale)}]"


def passes(row: Entry) -> str:
    """Passes to the target, with their interval."""
    return between([heat.gradients for heat in row.heats], row.per_pass)


def table(race: Race, common: bool = False) -> list[str]:
    """A race as a table of the page."""
    heads = ["", "algorithm", "rate", "passes", "seconds", "reached",
             *[f"seconds at {COMMON}", f"reached at {COMMON}"] * common]
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join(["---", "---", *["---:"] * (len(heads) - 2)]) + " |"]
    for row in race.rows:
        cells = [race.letters[row.label], row.label, short(row.rate) if row.reached else "-", passes(row),
                 between([heat.seconds for heat in row.heats]), f"{row.reached}/{len(row.heats)}"]
        if common:
            cells += [short(median(heat.seconds for heat in row.common)),
                      f"{sum(heat.ended == 'reached' for heat in row.common)}/{len(row.common)}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def rows(name: str) -> dict[str, Entry]:
    """The rows of a race by label."""
    return {row.label: row for row in Race.load(RESULTS / f"{name}.json").rows}


def curve(found: dict[str, Entry]) -> list[float]:
    """Passes with batches of 32, 64 and 128, relative to the mean of those with 2 to 16."""
    by_batch = {int(label.partition("=")[2]): row.passes for label, row in found.items()}
    small = [by_batch[batch] for batch in (2, 4, 8, 16)]
    return [by_batch[batch] / (sum(small) / len(small)) for batch in (32, 64, 128)]


def verdict(holds: bool, part: bool = False) -> str:
    """Whether a race agrees with a claim, or with a part of it."""
    return "yes" if holds else "in part" if part else "no"


def claims() -> list[tuple[str, str, str, str]]:
    """Claims of the papers: where, what, what the race shows, and whether it agrees."""
    four, sixteen, batches = rows("ko-4"), rows("ko-16"), rows("batches")
    few, many, stale = rows("few-stragglers"), rows("many-stragglers"), rows("staleness")
    together = {label: median(heat.gradients for heat in row.common) / row.per_pass for label, row in stale.items()}

    def grows(label: str) -> float:
        return sixteen[label].passes / four[label].passes

    def gain(found: dict[str, Entry]) -> float:
        return found["bsp"].seconds / found["ssp staleness=3"].seconds

    curves = {net: curve(rows(name)) for net, name in
              (("tiny", "batches"), ("mlp", "batches-mlp"), ("softmax", "batches-softmax"))}
    best = min(batches.values(), key=lambda row: row.passes)
    size = int(best.label.partition("=")[2])
    hopeless = [label for label, row in sixteen.items()
                if not math.isfinite(median(heat.seconds for heat in row.common)) and math.isfinite(row.seconds)]
    sizes = {label: grows(label) for label in ("bsp", "asp", "adpsgd", "easgd period=4", "gosgd p=0.1")}
    slack = [sixteen[f"ssp staleness={s}"].passes for s in (1, 3, 10)]
    period = [four[f"easgd period={k}"].passes for k in (1, 4, 8)]
    return [
        ("Ko et al., Table III", "replicas (EASGD, GoSGD) lose most with the number of workers, BSP, ASP and AD-PSGD "
         "hardly", "passes to the target, 16 workers by 4: " + ", ".join(
             f"{label} {short(ratio)}" for label, ratio in sizes.items()),
         verdict(max(sizes["bsp"], sizes["asp"], sizes["adpsgd"]) < 1.5, min(
             sizes["easgd period=4"], sizes["gosgd p=0.1"]) > max(sizes["bsp"], sizes["asp"], sizes["adpsgd"]))),
        ("Ko et al., aspect 2", "a larger slack of SSP costs accuracy",
         "passes of SSP with slack 1, 3, 10 at 16 workers, each at its rate: " + ", ".join(map(short, slack)),
         verdict(slack == sorted(slack))),
        ("Ko et al., aspect 2", "a longer period of EASGD costs accuracy",
         "passes with period 1, 4, 8 at 4 workers: " + ", ".join(map(short, period)),
         verdict(period == sorted(period))),
        ("all, one rate for all", f"results at one rate ({COMMON}) rank algorithms",
         "never arrive at that rate with 16 workers, though they do at their own: "
         + (", ".join(sorted(hopeless)) or "none"), verdict(not hopeless)),
        ("Masters and Luschi 2018; Graur, 2.2.3", "the best batches are 2 to 32",
         f"fewest passes of one worker, each batch at its rate: batch {size}", verdict(2 <= size <= 32)),
        ("Graur, 2.4.3", "few stragglers favour BSP, many SSP",
         f"seconds of BSP by those of SSP: {short(gain(few))} with few, {short(gain(many))} with many",
         verdict(gain(few) < 1 < gain(many), gain(few) < gain(many))),
        ("Graur, 2.4.3; Zhang et al. 2016", "a rate by staleness makes asynchronous training as good per pass",
         "passes: " + ", ".join(f"{label} {passes(row)}" for label, row in stale.items())
         + f"; at {COMMON}: " + ", ".join(f"{label} {short(count)}" for label, count in together.items()),
         verdict(stale["staleness-aware"].passes <= min(stale["bsp"].passes, stale["asp"].passes),
                 together["staleness-aware"] <= min(together["bsp"], together["asp"]))),
        ("Pani, VI", "an open question: do all nets share the curve by batch?",
         "passes with 32, 64 and 128 images by the mean of 2 to 16: " + "; ".join(
             f"{net} {', '.join(map(short, each))}" for net, each in curves.items()),
         verdict(all(max(points) < 1.2 * min(points) for points in zip(*curves.values())),
                 all(each == sorted(each) and each[0] < 2 < each[-1] for each in curves.values()))),
        ("Pani, III-B", "0.01 was the best of the rates tried",
         "best rates here: " + ", ".join(f"{label} {short(row.rate)}" for label, row in sixteen.items()
                                         if label in ("bsp", "asp", "adpsgd"))
         + "; a rate belongs to a net, a batch and an algorithm",
         verdict(all(abs(row.rate - 0.01) < 0.005 for row in sixteen.values())))]


def page() -> str:
    """The page."""
    out = ["# Comparisons at one rate, again as races", "",
           "The papers compare algorithms, slacks, periods and batches at one learning rate or at a few. Here each row "
           "has its own, found by the same rule ([how](../howto/race.md)): `tiny` on the digits, training loss 0.1, "
           "medians of seven seeds with their exact 88 % intervals. Rows with a letter in common are not told apart.",
           "", "`python -m benchmarks.fair run` and `page` make this page; the races are in "
           "`benchmarks/results/fair`, and `refsgd race --from` reads each.", "",
           "| where | claim | race | agrees |", "| --- | --- | --- | --- |"]
    out += [f"| {where} | {claim} | {shown} | {agrees} |" for where, claim, shown, agrees in claims()]
    out += ["", "In part: the order is as claimed, but BSP, ASP and AD-PSGD also need more passes with more workers, "
            "ASP because its rate must fall, the others because their batches together are larger; SSP is ahead of BSP "
            "with few stragglers, too, only by less; dividing by staleness lets ASP train at the common rate, where it "
            "mostly fails, and gains nothing where each has its own (`softsync` here averages 8 gradients, "
            "`staleness-aware` one). Seconds of one worker do not grow with its batch here: only its passes say which batch is best. Three nets need about the same passes up to a batch of 16 and more "
            "above; how many more differs from net to net."]
    for name, title, common in (
            ("ko-4", "Seven algorithms with their options, 4 workers", True),
            ("ko-16", "The same with 16 workers", True), ("batches", "One worker, batches of 2 to 128", False),
            ("batches-mlp", "The same for an mlp", False), ("batches-softmax", "The same for softmax regression", False),
            ("few-stragglers", "Few stragglers: one gradient in fifty takes eight times as long", False),
            ("many-stragglers", "Many stragglers: three gradients in ten", False),
            ("staleness", "A rate by staleness, 8 workers", True)):
        out += ["", f"## {title}", "", *table(Race.load(RESULTS / f"{name}.json"), common)]
    return "\n".join(out) + "\n"


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.what == "run":
        run(args.jobs)
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
