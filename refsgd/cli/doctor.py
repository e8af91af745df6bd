"""Check this machine and say what to do.

Checks cores, memory, start methods, clock, loopback, MPI, caches and data sets; for each, prints ok, warning
or missing, and what to do. Exits with 1 if something is missing.
"""

from __future__ import annotations

import argparse

from refsgd.cli.outputs import tell


def do(args: argparse.Namespace) -> None:
    """Check the machine and print the findings."""
    from refsgd.experiment.computer.doctor import MISSING, examine

    findings = examine()
    for finding in findings:
        tell(str(finding), 22)
    if any(finding.verdict == MISSING for finding in findings):
        raise SystemExit(1)
