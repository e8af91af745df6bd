"""The outcome of a fault for every algorithm of the catalogue: stated once, printed in the documentation,
tested in every runtime."""

from __future__ import annotations

from typing import Literal

from refsgd.runtimes.faults import POLICIES

Outcome = Literal["ends", "refused", "continues", "same bits"]
#: an error names the culprit | one line before anything runs | to the end, with other parameters | with the
#: same parameters

#: Algorithms in which some node waits for every worker.
WAITS = ("bsp", "allreduce", "dgc", "local-sgd", "post-local", "diloco", "dpsgd", "sgp", "strads")
#: Algorithms whose workers are the only ones that hold a part of the parameters.
STAGED = ("gpipe", "pipedream", "zero")
#: Algorithms whose parameters do not depend on how long anything takes.
TIMELESS = (*WAITS, *STAGED, "sequential", "independent", "sandblaster")

#: State that is lost with a worker when the others continue.
LOST = {
    "asp": "the gradient that it was computing",
    "ssp": "the gradient that it was computing; the bound counts the living",
    "easgd": "its replica; the centre keeps what it was given",
    "downpour": "up to `push_every` accrued gradients",
    "backup-workers": "nothing that was waited for, up to `backups` deaths; one more blocks, and the run "
                      "ends",
    "softsync": "its gradient, and at the end those of a step that is no longer filled",
    "staleness-aware": "the gradient that it was computing",
    "dc-asgd": "the gradient that it was computing, and its backup",
    "consgd": "the gradient that it was computing; its weight 1/n is missing",
    "dynsgd": "the gradient that it was computing; the means of open clocks are over fewer",
    "dssp": "the gradient that it was computing; the bound counts the living",
    "approximate": "the gradient that it was computing",
    "gosgd": "its replica and weight, and what is sent to it later",
    "adpsgd": "its replica; a peer that asked it skips that average",
    "pair-averaging": "its replica; a peer that asked it skips that average",
    "independent": "its replica",
    "hogwild": "what it has not added yet",
    "sandblaster": "nothing: others compute its portions",
}


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
    if algorithm == "sandblaster" and on_death in ("shrink", "restart"):
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
    for name in sorted([*WAITS, *STAGED, *LOST, "sequential"]):
        found = [outcome(name, "kill", policy) for policy in POLICIES]
        lost = LOST | {"sequential": "there are no others"} | dict.fromkeys(STAGED, "its part of the parameters")
        lines.append(f"| {name} | {' | '.join(found)} | {lost.get(name, 'velocities, residuals')} |")
    return "\n".join(lines)
