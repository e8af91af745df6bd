"""The options of a run as one value, made once from the command line or from what `refsgd.run` is given."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from refsgd.experiment.arguments import Usage, check_whole
from refsgd.experiment.evaluation import EVALUATIONS
from refsgd.experiment.perform import RUNTIMES
from refsgd.experiment.prepare import Algorithm, Say
from refsgd.problems import Problem
from refsgd.runtimes.faults import Fault, listed
from refsgd.runtimes.fork import runtime_here

#: names of earlier versions
RENAMED = {"looks": "evaluations"}


@dataclass(frozen=True)
class RunOptions:
    """What is run, where, and what is written; `refsgd.run` explains each option.

    `arguments` say what is trained and on which machine: what `refsgd.experiment.prepare.prepare` takes.
    """

    algorithm: Algorithm
    problem: Problem | None = None
    runtime: str = "simulator"
    record: str | Path | None = None
    faults: Iterable[str | Fault] = ()
    on_death: str = "stop"
    checkpoint: str | Path | None = None
    checkpoint_every: float = 1.0
    resume: str | Path | None = None
    monitor: bool = False
    evaluations: int = EVALUATIONS
    say: Say | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.runtime not in RUNTIMES:
            raise Usage(f"runtime {self.runtime!r}; expected one of {', '.join(RUNTIMES)}")
        check_whole(0, evaluations=self.evaluations)
        try:
            object.__setattr__(self, "faults", tuple(listed(self.faults)))
        except ValueError as error:
            raise Usage(str(error)) from None
        object.__setattr__(self, "runtime", runtime_here(self.runtime))
        if not 0 <= self.checkpoint_every < float("inf"):
            raise Usage(f"checkpoint_every {self.checkpoint_every}; expected a number of epochs >= 0")
        if self.monitor and self.runtime not in ("processes", "tcp"):
            raise Usage(
                f"a monitor of runtime {self.runtime}; expected processes or tcp, which have processes of "
                "this machine")

    @classmethod
    def of(cls, algorithm: Algorithm, problem: Problem | None, given: Mapping[str, Any]) -> RunOptions:
        """The options among keyword arguments; all others say what is trained."""
        for old in RENAMED.keys() & given.keys():
            warnings.warn(f"{old} is now called {RENAMED[old]}; the old name goes with the next release",
                          FutureWarning, stacklevel=3)
        named = {RENAMED.get(name, name): value for name, value in given.items()}
        own = {f.name for f in fields(cls)} - {"algorithm", "problem", "arguments"}
        return cls(algorithm, problem, **{name: value for name, value in named.items() if name in own},
                   arguments={name: value for name, value in named.items() if name not in own})
