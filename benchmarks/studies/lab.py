"""Runs the trials of a study: in parallel where time is virtual, and each only once, since results are
kept by their inputs."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import multiprocessing as mp
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

import refsgd
from refsgd.cluster.machine import Machine
from refsgd.effects import Deployment
from refsgd.experiment.options.problems import default_net
from refsgd.experiment.result import Result
from refsgd.experiment.run import run
from refsgd.problems.data.sets import user_cache
from refsgd.problems.nn.kernel_cache import can_write
from refsgd.runtimes.fork import can_fork
from refsgd.trace.schema import json_text

Look = Callable[[Result], dict[str, Any]]
Curve = list[tuple[float, float]]  #: test accuracy over the share of a run's updates
Key = TypeVar("Key")


class Seen(NamedTuple):
    """What a trial gave: its result (without a trace), what was looked up in the trace, or why there is
    none."""

    result: Result | None
    looked: dict[str, Any]
    failed: str = ""

    @property
    def measured(self) -> dict[str, Any]:
        """Figures of the result."""
        return self.the_result.measured

    @property
    def the_result(self) -> Result:
        """The result; raises RuntimeError if the run failed."""
        if self.result is None:
            raise RuntimeError(f"a trial failed: {self.failed}")
        return self.result

    @property
    def accuracy(self) -> float:
        """Test accuracy; chance, 0.1, if the run diverged."""
        return 0.1 if self.result is None else self.result.accuracy["test"]

    @property
    def curve(self) -> Curve:
        """Test accuracy over the share of the run's updates; chance all along if the run diverged."""
        rows = self.result.history if self.result else []
        return [(row[1] / rows[-1][1], row[4])
                for row in rows] if len(rows) > 1 else [(0.0, self.accuracy), (1.0, self.accuracy)]

    def predicted(self, figure: str) -> float | None:
        """What the formula of a figure says; None where there is none, but a mean of simulations."""
        found = self.the_result.predicted.get(figure)
        return None if found is None or found["kind"] == "simulated" else float(found["value"])


@dataclass(frozen=True)
class Trial:
    """One run of a study.

    Attributes
    ----------
    algorithm : str or callable
        A name of the catalogue, or a deployment function of a module.
    arguments : dict
        As `refsgd.run`, but that nothing is looked at along the way unless "evaluations" says so, for a curve; JSON
        values but for the machine.
    runtime : str
    look : callable, optional
        Figures that a study reads from the trace, as JSON values; a function of a module.
    formulas : bool
        Whether figures are predicted too: where no formula is known, that is a simulation of its own.
    """

    algorithm: str | Callable[..., Deployment]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    runtime: str = "simulator"
    look: Look | None = None
    formulas: bool = True

    @property
    def key(self) -> str:
        """SHA-256 of everything that the result depends on: the arguments and the library's source."""
        told = {k: v.to_json() if isinstance(v, Machine) else v for k, v in self.arguments.items()}
        look = [self.look.__name__, _source(self.look)] if self.look else ""
        algorithm = self.algorithm if isinstance(self.algorithm, str) else _source(self.algorithm)
        text = json_text([algorithm, told, self.runtime, look, self.formulas, fingerprint()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def perform(self) -> str:
        """Run it; the outcome as JSON."""
        try:
            result = run(self.algorithm, runtime=self.runtime, **{"evaluations": 0, **self.arguments})
        except FloatingPointError as error:  # diverged: itself a finding
            return json_text({"result": None, "looked": {}, "failed": str(error)}, indent=None)
        result = result if self.formulas else replace(result, predicted={})
        return json_text({"result": result.to_dict(), "looked": self.look(result) if self.look else {},
                           "failed": ""}, indent=None)


def _source(function: Callable[..., Any]) -> str:
    """The source of a function's module, whose other functions it may call."""
    return inspect.getsource(inspect.getmodule(function) or function)


@functools.cache
def fingerprint() -> str:
    """SHA-256 of the rooms whose code a trial runs, formulas among them: results keep their predictions."""
    root, digest = Path(refsgd.__file__).parent, hashlib.sha256()
    outside = {"cli"}
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in outside:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def cache_folder() -> Path | None:
    """Where results are kept: ``refsgd/studies`` in the user's cache; None, with a warning, where nothing
    can be written."""
    cache = user_cache()
    if cache is not None and can_write(cache):
        return cache / "studies"
    where = f"nothing can be written to {cache}" if cache else "this user has no home directory"
    warnings.warn(
        f"results are not kept, since {where}; expected XDG_CACHE_HOME to name a folder that you may write "
        "to", RuntimeWarning, stacklevel=2)
    return None


class Lab:
    """Where a study's trials are run.

    Parameters
    ----------
    quick : bool
        Sizes for continuous integration: within two minutes of two cores.
    seed : int
        Of all runs.
    cache : path or None
        Folder of results by their inputs; None keeps nothing.
    say : callable, optional
        Told what starts.
    workers : int, optional
        Trials in virtual time that run at once (default: the cores).

    Examples
    --------
    >>> lab = Lab(quick=True, seed=0, cache=None)
    >>> seen = lab.runs([Trial("bsp", {"data": "quadratic", "steps": 3, "seed": lab.seed})])
    >>> seen[0].measured["updates"]
    3
    """

    def __init__(self, quick: bool, seed: int = 0, cache: Path | None = None,
                 say: Callable[[str], None] | None = None,
                 workers: int | None = None) -> None:
        self.quick, self.seed, self.cache = quick, seed, cache
        self.say = say or (lambda text: None)
        self._workers = workers or os.cpu_count() or 1

    def runs(self, trials: Sequence[Trial]) -> list[Seen]:
        """The outcomes of `trials`, in their order; only those are run that are not kept already."""
        keys = [t.key for t in trials]  # once: a key is of the source as it is now
        texts = {key: self._kept(key) for key in keys}
        missing = {key: t for key, t in zip(keys, trials) if texts[key] is None}
        for key, text in self._perform(missing):
            texts[key] = text
            self._keep(key, text)
        return [_seen(texts[key]) for key in keys]

    def each(self, trials: Mapping[Key, Trial]) -> dict[Key, Seen]:
        """The outcomes of trials that have names."""
        return dict(zip(trials, self.runs(list(trials.values()))))

    def _perform(self, missing: Mapping[str, Trial]) -> Iterator[tuple[str, str]]:
        virtual = [(k, t) for k, t in missing.items() if t.runtime == "simulator"]
        if len(virtual) > 1 and self._workers > 1 and can_fork():
            compile_kernels(t for _, t in virtual)
            with mp.get_context("fork").Pool(min(self._workers, len(virtual))) as pool:
                for done, (key, text) in enumerate(pool.imap_unordered(_perform_keyed, virtual), 1):
                    self.say(f"{done} of {len(missing)} runs")
                    yield key, text
        else:
            yield from map(_perform_keyed, virtual)
        for key, trial in missing.items():  # paced processes need the machine for themselves
            if trial.runtime != "simulator":
                self.say(
                    f"{trial.algorithm if isinstance(trial.algorithm, str) else trial.algorithm.__name__} as "
                    f"{trial.runtime}")
                yield key, trial.perform()

    def _kept(self, key: str) -> str | None:
        if self.cache is None:
            return None
        with suppress(FileNotFoundError):
            return (self.cache / f"{key}.json").read_text()
        return None

    def _keep(self, key: str, text: str) -> None:
        if self.cache is None:
            return
        self.cache.mkdir(parents=True, exist_ok=True)
        with _replacing(self.cache / f"{key}.json") as temporary:
            temporary.write_text(text)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A temporary file that replaces `target` when the block ends well."""
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def _perform_keyed(keyed: tuple[str, Trial]) -> tuple[str, str]:
    key, trial = keyed
    return key, trial.perform()


def _seen(text: str | None) -> Seen:
    assert text is not None
    data = json.loads(text)
    result = None if data["result"] is None else Result.from_json(json_text(data["result"], indent=None))
    return Seen(result, data["looked"], data["failed"])


def compile_kernels(trials: Iterator[Trial] | Sequence[Trial]) -> None:
    """Load the kernels of the trials' nets in this process, so that forked ones have them."""
    from refsgd.problems.data import load
    from refsgd.problems.nn import nets

    wanted = {(t.arguments.get("data", "digits"), t.arguments.get("net")) for t in trials}
    for data, net in sorted(wanted, key=str):
        if data not in ("quadratic", "integers", "none") and not str(net).startswith("shapes:"):
            nets.build(net or default_net(data), load(data).train_images.shape[1:]).compile()


def over(curve: Curve, since: float = 0.0, until: float = 1.0) -> float:
    """Mean accuracy over a part of a run.

    Examples
    --------
    >>> over([(0.0, 0.1), (0.5, 0.4), (1.0, 0.6)], 0.5)
    0.5
    """
    return float(np.mean([y for x, y in curve if since <= x <= until]))


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean of several runs' curves, at the points of the longest."""
    xs = [x for x, _ in max(curves, key=len)]
    return [
        (x, float(np.mean([np.interp(x, [a for a, _ in curve], [y for _, y in curve]) for curve in curves])))
        for x in xs]
