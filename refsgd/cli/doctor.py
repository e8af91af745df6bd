"""``refsgd doctor``: check whether this machine can make real runs, and say what to do if not."""

from __future__ import annotations

import argparse
from typing import Any

from refsgd.cli.outputs import tell


def add(commands: Any) -> None:
    """Its parser."""
    p = commands.add_parser("doctor", help="check this machine and say what to do",
                            description="Checks cores, memory, start methods, clock, loopback, MPI, caches "
                            "and data sets: a line each, ok, warning or missing, with what to do. Ends with "
                            "1 if something is missing.")
    p.set_defaults(do=do)


def do(args: argparse.Namespace) -> None:
    """Print the findings."""
    from refsgd.experiment.doctor import MISSING, examine

    findings = examine()
    for finding in findings:
        tell(str(finding), 22)
    if any(finding.verdict == MISSING for finding in findings):
        raise SystemExit(1)
