"""Several algorithms on one machine, side by side: predicted, simulated, measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, NamedTuple

from refsgd._version import __version__
from refsgd.algorithms import CATALOGUE, COMPARED
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted
from refsgd.experiment.arguments import check_unpaced, check_warmup, options_of, suggestion
from refsgd.experiment.computer.limits import announce, check_pace, check_processes
from refsgd.experiment.evaluation import evaluate
from refsgd.experiment.execution.perform import LOCAL_RUNTIMES, check_monitor, perform, watched
from refsgd.experiment.functions import Algorithm, deployment_function, is_place, listed, shared
from refsgd.experiment.options import unused
from refsgd.experiment.prepare import DEFAULT_MACHINE, Experiment, Say, Usage, prepare
from refsgd.experiment.result import FORMAT, Result, labelled
from refsgd.runtimes.fork import runtime_here
from refsgd.trace.schema import json_text

__all__ = ["HARD", "Comparison", "Row", "compare"]

#: a harder case: twice the workers, and every worker sees only some of the classes
HARD: dict[str, Any] = {"workers": 8, "shards": "by-label"}


@dataclass(frozen=True)
class Row:
    """One algorithm of a comparison: predicted, simulated and measured."""

    algorithm: str
    options: dict[str, Any]  #: the algorithm's own, those of its exchange, and others that this row alone has
    predicted: dict[str, Any]  #: by metric, as in the public format: value, kind, terms, formula
    simulated: Result | None
    measured: Result | None
    failed: str = ""  #: why there is no result: the run diverged

    @property
    def label(self) -> str:
        """The algorithm with its options."""
        return labelled(self.algorithm, self.options)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; the history is that of the measured run."""
        best = self.measured or self.simulated

        def each(name: str) -> dict[str, Any]:
            return {"simulated": getattr(self.simulated, name, None),
                    "measured": getattr(self.measured, name, None)}

        return {"algorithm": self.algorithm, "options": self.options, "predicted": self.predicted,
                **each("measured"), "accuracy": each("accuracy"), "history": getattr(best, "history", []),
                "parameters_sha256": each("parameters_sha256"),
                **{name: getattr(best, name, 0) for name in ("workers", "servers", "steps")},
                "failed": self.failed}


@dataclass(frozen=True)
class Comparison:
    """Several algorithms on one machine.

    Parameters
    ----------
    machine : Machine
    runtime : str
        Where it was measured.
    seed : int
    rows : sequence of Row
        One per algorithm, in the given order.
    hard : Comparison, optional
        The same algorithms in the harder case `HARD`.
    """

    machine: Machine
    runtime: str
    seed: int
    rows: Sequence[Row]
    hard: Comparison | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, in the format of results."""
        out = {"refsgd": __version__, "format": FORMAT, "machine": self.machine.to_json(),
               "runtime": self.runtime, "seed": self.seed, "rows": [row.to_dict() for row in self.rows]}
        if self.hard is not None:
            out["hard"] = self.hard.to_dict()
        return out

    def to_json(self) -> str:
        """The comparison as JSON, in the format of results."""
        return json_text(self.to_dict())

    @property
    def results(self) -> dict[str, Result]:
        """The measured results, or else the simulated ones, by label."""
        found = {row.label: row.measured or row.simulated for row in self.rows}
        return {name: result for name, result in found.items() if result is not None}


#: how an option that is on or off is written, and shown in labels, which can be given again
SWITCH = {"on": True, "off": False, "True": True, "False": False}


def with_options(algorithm: Algorithm) -> tuple[Algorithm, dict[str, Any]]:
    """An algorithm and the options that follow its name.

    >>> with_options("ssp staleness=2 overlap=both priority=on")
    ('ssp', {'staleness': 2, 'overlap': 'both', 'priority': True})
    """
    if callable(algorithm) or not algorithm.strip():
        return algorithm, {}
    name, *words = algorithm.split()
    known = options_of(deployment_function(name)[1]) if words else {}
    said = dict[str, Any]()
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise Usage(f"algorithm {algorithm!r}: {word!r} is not an option; expected option=value, such as "
                        "overlap=both")
        key = key.replace("-", "_")
        if key in said:
            raise Usage(f"algorithm {algorithm!r}: {key} appears twice; expected each option once")
        text = key in known and known[key].annotation is str  # such as cut=3, the block after which to cut
        said[key] = value if text else SWITCH.get(value, _number(value))
    return name, said


def _number(text: str) -> Any:
    """A number if a text is one."""
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return text


class Turn(NamedTuple):
    """One row's algorithm, prepared."""

    algorithm: Algorithm
    arguments: dict[str, Any]  #: those of `prepare` besides, with the options of the algorithm
    experiment: Experiment
    told: dict[str, Any]  #: the options that tell its row apart

    @property
    def label(self) -> str:
        """The label of its row."""
        return labelled(self.experiment.name, self.told)


def prepared(chosen: Sequence[Algorithm], own: Mapping[str, Mapping[str, Any]], stated: Sequence[str],
             arguments: Mapping[str, Any]) -> list[Turn]:
    """The experiments of rows, from common arguments, those of each algorithm and those of each row."""
    named = [with_options(a) for a in chosen]
    names = [a if is_place(a) else deployment_function(a)[0] for a, _ in named]
    for name in own:
        if name not in (*names, *CATALOGUE):
            raise Usage(f"options of {name!r}, which is unknown; expected some of {', '.join(names)}"
                        + suggestion(name, [*names, *CATALOGUE]))
    common = shared(arguments, [deployment_function(a)[1] for a, _ in named])
    turns = []
    for (a, said), name, each in zip(named, names, common):
        given = {**own.get(name, {}), **said}
        mine = {**each, **given}
        experiment = prepare(a, **mine)
        turns.append(Turn(a, mine, experiment, experiment.told | {
            key: str(value) if isinstance(value, Machine) else value for key, value in given.items()}))
    unused.check([unused.reasons(turn.experiment, stated) for turn in turns])
    labels = [turn.label for turn in turns]
    if twice := next((label for label in labels if labels.count(label) > 1), ""):
        raise Usage(f"algorithms: {twice} appears twice; expected options that tell the rows apart, such as "
                    f"'{twice}; {twice} lr=0.3'")
    return turns


def _mean_batch(experiments: Sequence[Experiment]) -> float:
    """The mean of the batches that are given for each worker; one replica has only their sum."""
    return mean(filter(None, max(experiments, key=lambda e: e.replicas).batches))


def _evaluated(experiment: Experiment, real: Experiment, runtime: str, warmup: int,
               monitor: bool | float) -> Result:
    """The result of one run, of the experiment or of the `real` one that stands for it in real time."""
    run, used = watched(real, runtime, monitor, lambda start: perform(real, runtime, on_start=start))
    result = evaluate(experiment, runtime, run, warmup=warmup)
    return replace(result, measured=result.measured | used)


def compare(algorithms: Algorithm | Iterable[Algorithm] = COMPARED, *, runtime: str | None = None,
            options: Mapping[str, Mapping[str, Any]] | None = None, progress: Say | None = None,
            hard: bool = False, say: Say | None = None, warmup_steps: int = 0, unpaced: bool = False,
            monitor: bool | float = False, **arguments: Any) -> Comparison:
    """Train the same net on the same data under several algorithms: predicted, simulated, measured.

    Parameters
    ----------
    algorithms : iterable of str or callable
        As in `run`, or a single one; a name may be followed by options: ``"bsp overlap=both layout=layers"``.
    runtime : {"processes", "tcp", "simulator"}
        Where it is measured; "simulator" omits the measurement.  By default processes; if the system
        cannot fork, the simulator, with a warning.
    options : dict
        Options by algorithm, e.g. ``{"ssp": {"staleness": 3}}``; those of algorithms that are not compared
        are ignored.
    progress : callable, optional
        Called with a line when an algorithm starts.
    hard : bool
        Also simulate the same algorithms in the harder case `HARD`.
    say : callable, optional
    warmup_steps : int
    unpaced : bool
    monitor : bool or float
        As in `run`; it watches what is measured.
    **arguments
        As in `run`.

    Returns
    -------
    Comparison

    Raises
    ------
    RunFailed
        If processes are asked for and the system cannot fork.
    """
    if runtime not in (None, *LOCAL_RUNTIMES):
        raise Usage(f"runtime {runtime!r}; expected one of {', '.join(LOCAL_RUNTIMES)}")
    if hard and arguments.get("problem") is not None:
        raise Usage("hard with your own problem; expected data and net, which can be divided by label among "
                    "more workers")
    check_unpaced(unpaced, runtime)
    check_monitor(monitor, runtime)
    runtime = runtime_here(runtime)
    step = progress or (lambda text: None)
    chosen = listed(algorithms)
    turns = prepared(chosen, options or {}, arguments.pop("stated", ()), arguments)
    experiments = [turn.experiment for turn in turns]
    machine = arguments.get("machine") or DEFAULT_MACHINE
    real = [runtime] if runtime != "simulator" and experiments else []
    for experiment in experiments:
        check_warmup(warmup_steps, experiment.steps)
        experiment.formulas()  # refuses wrong ones now, before anything runs
    here = [replace(e, machine=Machine()) if unpaced else e for e in experiments]
    if real:
        for experiment in here:
            check_processes(experiment, runtime)
        check_pace(max(here, key=lambda e: e.workers))
    if say and experiments:
        announce(here, ["simulator", *["simulator"] * hard, *real], say)
    rows = []
    for (_, _, experiment, each), real_one in zip(turns, here, strict=True):
        step(f"{experiment.name}: simulating")
        predicted, measured = experiment.predicted(), None
        try:
            simulated = _evaluated(experiment, experiment, "simulator", warmup_steps, not real and monitor)
        except FloatingPointError as error:  # the others can still be compared
            rows.append(Row(experiment.name, each, predicted, None, None, str(error)))
            continue
        if real:
            step(f"{experiment.name}: running {counted(experiment.workers, 'worker')} as processes, about "
                 f"{simulated.measured['seconds']:.0f} s")
            measured = _evaluated(experiment, real_one, runtime, warmup_steps, monitor)
        rows.append(Row(experiment.name, each, predicted, simulated, measured))
    second = None
    if hard and experiments:
        step("the same algorithms in a harder case")
        apart = {**arguments, **HARD, "machine": machine.for_workers(HARD["workers"])}
        if not isinstance(apart.get("batch", 1), int):  # batches for another number of workers
            apart["batch"] = int(_mean_batch(experiments))
        second = compare(chosen, runtime="simulator", options=options, **apart)
    return Comparison(machine, runtime, experiments[0].seed if experiments else 0, rows, second)
