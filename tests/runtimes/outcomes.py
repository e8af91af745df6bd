"""The outcome of a fault for every algorithm of the catalogue: stated once, printed in the documentation,
tested in every runtime."""

from __future__ import annotations

from typing import Literal

from refsgd.algorithms import CATALOGUE
from refsgd.experiment.prepare import prepare
from refsgd.runtimes.faults import POLICIES, survives_workers
from tests.catalogue import DEALT, FACTS, having

Outcome = Literal["ends", "refused", "continues", "same bits"]
#: an error names the culprit | one line before anything runs | to the end, with other parameters | with the
#: same parameters

#: algorithms in which some node waits for every worker; whose workers hold what nobody else has; whose
#: parameters do not depend on how long anything takes; whose workers compute any share
WAITS = [name for name, function in CATALOGUE.items()
         if not survives_workers(prepare(function, data="quadratic", steps=1, workers=4).deploy())]
STAGED = having(lambda facts: facts.unshared)
TIMELESS = having(lambda facts: facts.timeless)


def outcome(algorithm: str, fault: str, on_death: str, server: bool = False) -> Outcome:
    """The expected outcome of a run.

    Examples
    --------
    >>> outcome("bsp", "kill", "continue"), outcome("asp", "kill", "continue"), outcome("bsp", "slow", "stop")
    ('refused', 'continues', 'same bits')
    """
    alone = algorithm == "sequential"
    if algorithm in STAGED and on_death != "stop":
        return "refused"
    if algorithm in DEALT and on_death in ("shrink", "restart"):
        return "refused"
    if (on_death == "continue" and algorithm in WAITS) or (on_death == "shrink" and alone):
        return "refused"
    if fault not in ("kill", "drop"):
        return "same bits" if algorithm in TIMELESS else "continues"
    return "ends" if on_death == "stop" or server or alone else "continues"


def table() -> str:
    """The outcomes of the death of a worker as a table in Markdown."""
    lines = [f"| algorithm | {' | '.join(POLICIES)} | lost when the others continue |",
             "| --- " * (len(POLICIES) + 2) + "|"]
    for name, facts in sorted(FACTS.items()):
        found = [outcome(name, "kill", policy) for policy in POLICIES]
        lost = "its part of the parameters" if facts.unshared else facts.lost
        lines.append(f"| {name} | {' | '.join(found)} | {lost} |")
    return "\n".join(lines)
