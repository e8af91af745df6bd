"""Traces of real jobs: what `refsgd advise --trace` says of them, beside what was published.

``python -m benchmarks.traces`` reads the traces below ``$REFSGD_DATA/traces`` (timelines of two jobs of ByteDance,
profiles of PyTorch), prints the tables and writes docs/traces.md.  Ends with 1 where a slow-down is more than 5 %
from the published one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.quiet import processor
from refsgd.cluster.units import spoken
from refsgd.experiment.prepare import Usage
from refsgd.experiment.profiles.job import read
from refsgd.experiment.profiles.whatif import WhatIf, what_if

PAGE = Path(__file__).parents[1] / "docs" / "traces.md"
JOBS = {"SE": "32 data-parallel ranks, 2 stages; lengths of sequences vary",
        "ST": "2 data-parallel ranks, 4 stages; the last is too long"}
WITHIN = 0.05
HEAD = """# Traces of real jobs

`refsgd advise --trace FILE` reads the profile of a job and says what would change the time of its step ({doc}`howto/profile`). Here it reads
jobs of others. `python -m benchmarks.traces` makes this page.
"""


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """A table of a page."""
    return "\n".join([f"| {head} |", "|" + " --- |" * (head.count("|") + 1), *(f"| {' | '.join(r)} |" for r in rows)])


def published(folder: Path, job: str) -> tuple[float, float]:
    """Seconds of a job's step, as it was and in the ideal."""
    found = json.loads((folder / f"ms-{job}.json").read_text())
    return found["tori"], found["tideal"]


def slow_down(folder: Path, job: str, found: WhatIf) -> tuple[list[str], float]:
    """The line of a job, and the error of its slow-down."""
    was, ideal = published(folder, job)
    error = found.slow_down / (was / ideal) - 1
    return [job, JOBS[job], f"{was:.3f} s", f"{found.rows[0].seconds:.3f} s", f"{ideal:.3f} s",
            f"{found.rows[1].seconds:.3f} s", f"{was / ideal:.3f}", f"{found.slow_down:.3f}", f"{error:+.1%}"], error


def said(path: Path) -> str:
    """What is read from a profile, or why it is refused."""
    try:
        job = read([str(path)])
    except Usage as error:
        return "refused: " + str(error).partition(": ")[2]
    return "; ".join([f"{len(job.ranks)} of {job.world} ranks, {len(job.steps)} steps of {spoken(job.recorded.mean())}",
                      f"computing {spoken(job.compute.mean())}", *(f"unknown: {each}" for each in job.unknown)])


def page(folder: Path) -> tuple[str, float]:
    """The page, and the largest error of a slow-down."""
    lines, errors, parts = [], [], []
    for job in JOBS:
        began = time.perf_counter()
        found = what_if(read([str(folder / "bytedance" / f"timeline-{job}.json.gz")]))
        took = time.perf_counter() - began
        line, error = slow_down(folder / "bytedance", job, found)
        lines.append(line)
        errors.append(abs(error))
        parts.append(f"### {job}\n\n{found.verdict} (Read and simulated in {took:.1f} s.)\n\n" + table(
            "change | a step | to equal ranks | assumption",
            ([row.name, spoken(row.seconds), f"x{row.seconds / found.rows[1].seconds:.2f}", row.assumption]
             for row in found.rows)))
    text = [HEAD, "## Two jobs of ByteDance\n\nFrom the artifact of \"Understanding Stragglers in Large Model Training Using "
            "What-if Analysis\" (OSDI 2025): timelines, and the seconds of a step as it was and in the ideal, where all "
            "operations of a kind take their mean.\n", table(
                "job | | as it was, published | here | ideal, published | here | slow-down, published | here | error",
                lines), "", *(f"{part}\n" for part in parts),
            "## Profiles of PyTorch\n\nFrom the tests of HolisticTraceAnalysis.\n", table(
                "file | what is read", ([f"`{path.name[:40]}`", said(path)]
                                        for path in sorted((folder / "kineto").glob("*.gz")))),
            "", f"Processor: {processor()}."]
    return "\n".join(text) + "\n", max(errors)


def main() -> int:
    """Print and write the page."""
    folder = Path(os.environ.get("REFSGD_DATA", "")) / "traces"
    if not folder.is_dir():
        print("no traces; expected REFSGD_DATA with a folder traces/", file=sys.stderr)
        return 2
    text, worst = page(folder)
    PAGE.write_text(text)
    print(text)
    return int(worst > WITHIN)


if __name__ == "__main__":
    sys.exit(main())
