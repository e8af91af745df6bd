"""``refsgd doctor``: check whether this machine is ready for real runs, and say what to do if not."""

from __future__ import annotations

import argparse
from typing import Any

from refsgd.cli.outputs import tell


def add(commands: Any) -> None:
    """Add the command."""
    p = commands.add_parser("doctor", help="check this machine and say what to do",
                            description="Checks cores, memory, start methods, clock, loopback, MPI, caches "
                            "and data sets; for each, prints ok, warning or missing, and what to do. Exits "
                            "with 1 if something is missing.")
    p.set_defaults(do=do)


def do(args: argparse.Namespace) -> None:
    """Check the machine and print the findings."""
    from refsgd.experiment.doctor import MISSING, examine

    findings = examine()
    for finding in findings:
        tell(str(finding), 22)
    if any(finding.verdict == MISSING for finding in findings):
        raise SystemExit(1)
