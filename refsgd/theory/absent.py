"""Why a figure of the catalogue is absent: which formula is missing, and what stands in its way."""

from __future__ import annotations

from collections.abc import Collection

from refsgd.cluster.machine import Machine
from refsgd.theory.phenomena.ssp import WIDEST
from refsgd.theory.prediction import LARGEST, DomainError

FIGURES = ("seconds_per_iteration", "images_per_second", "seconds", "updates", "bytes_per_iteration",
           "bytes_sent", "idle_ratio", "idle_by_cause",
           "staleness_mean", "staleness_max", "clock_gap_max", "lead_max")

RUN = "no bound but the length of the run"
PUSHES = RUN + ": others may update any number of times meanwhile"
SIDES = ("bipartite", "bipartite-ring", "ring", "star")
# with a formula; where one side asks the other
GRAPHS = ((*SIDES, "complete", "exponential", "one-peer-exponential"), SIDES)
GRAPH = "grows with the distance in the graph; no formula"
DISCARDED = "late workers compute what is discarded, so their time has no split by cause"
SIGNIFICANT = "what crosses between the data centres depends on the data"

#: by algorithm, "" for all others
REASONS: dict[str, dict[str, str]] = {
    "staleness_max": {"": PUSHES, "easgd": "forces of all others may come between a fetch and its own force",
                      "approximate": SIGNIFICANT},
    "staleness_mean": {"": "no iteration, no update",
                       "downpour": "no formula for servers on workers' nodes with these periods",
                       "approximate": SIGNIFICANT,
                       "hogwild": "no formula where additions to the cells take time: a read then falls "
                                  "between them",
                       "easgd": "workers that ask at one moment have no order: fixed times without latency, "
                                "or a server on a worker's node"},
    "idle_ratio": {"": "no iteration, no time", "approximate": SIGNIFICANT,
                   "backup-workers": "how many late workers end within a step is known where the server has "
                                     "its own node and times are random or links busy"},
    "idle_by_cause": {"": "no iteration, no time", "approximate": SIGNIFICANT, "backup-workers": DISCARDED,
                      "dssp": "lies between those of SSP(lower) and SSP(upper); their causes differ"},
    "clock_gap_max": {"": GRAPH,
                      "backup-workers": "a late worker skips iterations, so clocks are not counted by "
                                        "gradients",
                      "approximate": SIGNIFICANT, "easgd": RUN, "pair-averaging": RUN, "adpsgd": RUN},
}
REASONS["lead_max"] = REASONS["clock_gap_max"]


def absent(algorithm: str, machine: Machine, found: Collection[str], *, servers: int = 1,
           graph: str = "", workers: int = 1) -> dict[str, str]:
    """Every figure of `FIGURES` that `refsgd.theory.predict` has not given, and why.

    Parameters
    ----------
    algorithm : str
        A key of ``refsgd.theory.ALGORITHMS``.
    machine : Machine
        What the prediction was asked about.
    found : collection of str
        Names of the figures that there are.
    servers : int
        K.
    graph : str
        Option of the same name, where the algorithm has one.
    workers : int
        n.

    Returns
    -------
    dict of str to str
        Figure to reason, in the order of `FIGURES`.

    Raises
    ------
    DomainError
        A figure is absent for no stated reason.

    Examples
    --------
    >>> from refsgd.theory import predict
    >>> machine = Machine(compute="exponential(0.02)")
    >>> slow = machine.with_(latency=0.001)
    >>> absent("asp", slow, predict("asp", slow, workers=4, steps=9))
    {'staleness_max': 'no bound but the length of the run: others may update any number of times meanwhile'}
    """
    missing = [name for name in FIGURES if name not in found]
    if not found and workers > WIDEST:
        most = LARGEST if workers > LARGEST else WIDEST
        return dict.fromkeys(missing, f"formulas of {algorithm} are evaluated for up to {most} workers, not "
                                      f"for {workers}")
    if not found and machine.duplex == "half":
        more = f"; {algorithm} with {servers} servers" if algorithm == "bsp" else f"; {algorithm}"
        reason = (
            f"formulas on half-duplex links exist for BSP with one server and for what sends nothing{more} "
            "is simulated and measured only")
        return dict.fromkeys(missing, reason)
    if not found and graph:
        return dict.fromkeys(missing,
                             f"graph {graph!r} has no formula; expected one of "
                             f"{', '.join(GRAPHS[algorithm == 'adpsgd'])}")
    if not found and machine.cores is not None:
        cores = f"{machine.cores} core{'s' if machine.cores > 1 else ''}"
        reason = (
            f"updates of servers beside workers share {cores}, for which no formula accounts: {algorithm} is "
            "simulated and measured only")
        return dict.fromkeys(missing, reason)
    out = {}
    for name in missing:
        known = REASONS.get(name, {})
        if algorithm not in known and "" not in known:
            raise DomainError(
                f"{name} of {algorithm} is absent and nobody said why; expected a reason in "
                "refsgd.theory.absent")
        out[name] = known.get(algorithm, known.get("", ""))
    return out
