"""Strategies that divide the model itself, for one that does not fit a node's memory: ZeRO and pipelines.

They are predicted, memory included, as `refsgd predict` predicts the command that runs them.
"""

from __future__ import annotations

from functools import cached_property

from refsgd.experiment.advice.strategies import LONGEST, Candidate, Case, Plan, flags
from refsgd.experiment.prepare import predict
from refsgd.theory.prediction import Prediction


class Split(Plan):
    """A division of the model among the workers; a pipeline takes the batches of all its nodes together."""

    def __init__(self, candidate: Candidate, case: Case, most: int = LONGEST) -> None:
        super().__init__(candidate, case, most)
        self.depth = int(candidate.options.get("stages", 1))
        self.machine = case.devices or case.machine
        if not case.devices and self.depth > 1:  # devices price the larger batch themselves
            self.machine = self.machine.with_(speeds=tuple(v / self.depth for v in case.speeds))

    @property
    def batch(self) -> str:
        """Images of a peer, or of a replica of a pipeline."""
        return str(self.case.batch * self.depth)

    @cached_property
    def metrics(self) -> dict[str, Prediction]:
        """Its figures, with the memory of each role."""
        case, c = self.case, self.candidate
        return dict(predict(c.algorithm, net=f"shapes:{case.net}", data="none", workers=case.workers,
                            batch=int(self.batch), steps=self.steps, machine=self.machine, **c.options))

    def memory(self) -> float:
        """Bytes of the fullest node."""
        return max(float(p.value) for name, p in self.metrics.items() if name.startswith("memory_"))

    def command(self) -> str:
        """The command that runs it."""
        c, case = self.candidate, self.case
        options = " ".join(f"--{name} {value}" for name, value in c.options.items())
        described = case.described or flags(self.machine)
        if case.described and self.machine.speeds:
            described += " --speeds " + ",".join(f"{v:g}" for v in self.machine.speeds)
        return (f"refsgd run {c.algorithm} {options} --net shapes:{case.net} --data none --workers "
                f"{case.workers} --batch {self.batch} --steps {self.steps} {described}")


def splits(case: Case) -> list[Split]:
    """ZeRO in each stage, and pipelines of any number of nodes that divides the workers evenly, with 4, 16 or
    more micro-batches for each node, of no fewer than 4 images unless the batch is small."""
    some = [Candidate("zero", {"stage": stage}) for stage in (1, 2, 3)]
    some += [Candidate("gpipe", {"stages": depth, "micro": depth * each, "passes": "1f1b"})
             for depth in range(2, case.workers + 1) if case.workers % depth == 0
             for each in sorted({min(4, case.batch), min(16, case.batch), max(1, case.batch // 4)})]
    found = []
    for candidate in some:
        try:
            plan = Split(candidate, case)
            if "images_per_second" in plan.metrics:
                found.append(plan)
        except ValueError:  # fewer layers than stages
            continue
    return found
