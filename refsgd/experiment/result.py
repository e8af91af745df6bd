"""The result of a run: metrics, a history and hashes, as text, JSON or HTML."""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from refsgd._version import __version__
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import as_time, counted, written
from refsgd.effects import Array, Factory
from refsgd.experiment.memory import in_words
from refsgd.trace import Added, Chosen, Crashed, Loaded, Polled, Received, Run, Sent, Trace, joined, schema
from refsgd.trace.metrics import METRICS
from refsgd.trace.schema import COUNT, NUMBER, OBJECT, TEXT, Kind, Row

FORMAT = 2  #: version of the JSON format
#: metrics under one name in format 1: {"staleness": {"mean": 0.5}} is now {"staleness_mean": 0.5}
NESTED = {"staleness_mean": ("staleness", "mean"), "staleness_max": ("staleness", "max"),
          "staleness_histogram": ("staleness", "histogram"), "clock_gap_max": ("clock_gap", "max"),
          "lead_max": ("lead", "max")}
# NaN and infinity, too, as Python writes them
_REAL = Kind("a number", lambda value: NUMBER.fits(value) or type(value) is float)
_FINITE = Kind('a number, null, "inf" or "-inf"',
               lambda value: value in (None, "inf", "-inf") or _REAL.fits(value))
_REALS = Kind("an object of numbers",
              lambda value: isinstance(value, dict) and all(map(_REAL.fits, value.values())))
_ACCURACY = Kind("an object with the numbers test and train, or an empty one",
                 lambda value: _REALS.fits(value) and {*value} - {"validation"} in ({"test", "train"}, set()))
_PROBLEM = Kind("an object, in which samples, if any, are an object of texts and batches a list of numbers",
                lambda value: OBJECT.fits(value)
                and OBJECT.fits(samples := value.get("samples", {})) and all(map(TEXT.fits, samples.values()))
                and isinstance(batches := value.get("batches", []), list) and all(map(NUMBER.fits, batches)))
#: of a result read from JSON: what summaries, tables and pictures rely on
SCHEMA: dict[str, Any] = {
    "algorithm": TEXT, "options": OBJECT, "problem": _PROBLEM, "machine": OBJECT, "runtime": TEXT,
    **dict.fromkeys(("workers", "servers", "steps", "seed"), COUNT), "predicted": OBJECT,
    "history": [Row(dict.fromkeys(("seconds", "updates", "images", "loss", "accuracy"), _FINITE))],
    "accuracy": _ACCURACY, "loss": _FINITE, "consensus_distance": _FINITE,
    **dict.fromkeys(("parameters_sha256", "schedule_sha256"), TEXT),
    "measured": {name: _REALS if metric.by else _REAL for name, metric in METRICS.items() if metric.of}}


def parameters_sha256(x: Array) -> str:
    """SHA-256 of parameters as little-endian float32: equal hashes mean equal bits.

    A float64 too large for float32, from a diverging run, counts as infinity.

    Parameters
    ----------
    x : ndarray, (d,)
        Of any float type.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    with np.errstate(over="ignore"):
        return hashlib.sha256(np.ascontiguousarray(x, "<f4").tobytes()).hexdigest()


def schedule_sha256(trace: Trace) -> str:
    """SHA-256 of the schedule: the order in which each node's programs acted, what they received or chose."""
    digests = {node: hashlib.sha256() for node in trace.nodes}
    for e in trace.events:
        src = e.src if isinstance(e, Received | Polled) else None
        number = e.number if isinstance(e, Sent) or src is not None else None  # type: ignore[union-attr]
        ticket = e.ticket if isinstance(e, Loaded | Added) else None
        what = (e.program, e.kind, src, number, ticket, str(e.option if isinstance(e, Chosen) else None))
        digests[e.node].update(repr(what).encode())
    return hashlib.sha256(
        "".join(f"{node} {d.hexdigest()}\n" for node, d in digests.items()).encode()).hexdigest()


def replicas(run: Run) -> tuple[list[Array], list[Array]]:
    """The vectors, or the attributes ``x``, that servers and workers returned; workers' parts are joined."""
    servers, workers = list[Array](), list[tuple[int, Any]]()  # in server order, whichever ended first
    for node in run.trace.nodes:
        x = getattr(value := run.values.get(node), "x", value)
        if isinstance(x, np.ndarray) and not run.trace.is_worker(node):
            servers.append(x)
        elif isinstance(x, np.ndarray) or hasattr(value, "part"):
            workers.append((getattr(value, "part", 0), x))
    return servers, joined(workers)


def average(vectors: Sequence[Array]) -> Array:
    """The mean of replicas, at least one, as x_0 + mean(x_i - x_0): equal replicas give the same bits."""
    first, *others = vectors
    if not others:
        return first
    return np.asarray(first + np.sum([x - first for x in others], axis=0) / first.dtype.type(len(vectors)))


def final_parameters(run: Run) -> Array:
    """The parameters to evaluate: the servers' parts joined, or else the mean of the replicas; (d,).

    Parameters
    ----------
    run : Run
        From a runtime.

    Returns
    -------
    ndarray, (d,)
    """
    servers, workers = replicas(run)
    if servers:
        return np.concatenate(servers)
    if not workers:
        raise ValueError("no main program returned parameters; expected an array (or an object with .x) "
                         "from each")
    return average(workers)


def labelled(algorithm: str, options: Mapping[str, Any]) -> str:
    """An algorithm with its options, e.g. ``ssp staleness=3``."""
    return " ".join([algorithm, *(f"{k}={v}" for k, v in options.items())])


class WhenAsked(Mapping[str, Any]):
    """A mapping that is computed when somebody looks into it: a prediction may take a second."""

    def __init__(self, compute: Callable[[], Mapping[str, Any]]) -> None:
        self._compute = compute

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        return self._compute()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def samples_of(problem: Mapping[str, Any]) -> list[str]:
    """What a problem says of figures that are of a sample, e.g. ``train: the first 2000 of 60000 images``."""
    return [f"{'train and loss' if part == 'train' else part}: {sample}"
            for part, sample in problem.get("samples", {}).items()]


def image_of(problem: Mapping[str, Any]) -> str:
    """What counts as an image in figures of a net that has none, as the end of a line."""
    return f"; an image is {problem['image']}" if "image" in problem else ""


@dataclass(frozen=True)
class Result:
    """The result of one run.

    Attributes
    ----------
    algorithm, runtime : str
    options, problem : dict
        The algorithm's own options; the net and its data.
    machine : Machine
    workers, servers, steps, seed : int
    measured : dict
        Metrics of the run by name; ``refsgd.trace.metrics.METRICS`` has their units and meanings.
    predicted : mapping
        The same names where there is a prediction, each with value, kind, terms and the formula; computed
        when first looked at.
    history : list of [seconds, updates, images, loss, test accuracy]
    accuracy : dict
        "train" and "test", in [0, 1]; empty where the problem has no classes.
    loss, consensus_distance : float
        At the final parameters; mean squared distance of the workers' replicas from their mean.
    parameters_sha256, schedule_sha256 : str
    trace : Trace or None
        Not part of the JSON.
    parameters : ndarray or None
        The evaluated parameters, (d,) float32; not part of the JSON.
    deploy : callable or None
        Rebuilds the programs of the run, for `player`; not part of the JSON.
    """

    algorithm: str
    options: dict[str, Any]
    problem: dict[str, Any]
    machine: Machine
    runtime: str
    workers: int
    servers: int
    steps: int
    seed: int
    measured: dict[str, Any]
    predicted: Mapping[str, Any]
    history: list[list[float]]
    accuracy: dict[str, float]
    loss: float
    consensus_distance: float
    parameters_sha256: str
    schedule_sha256: str
    trace: Trace | None = field(default=None, repr=False, compare=False)
    parameters: Array | None = field(default=None, repr=False, compare=False)
    deploy: Factory | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The public JSON format, version 2, as a dictionary."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name in SCHEMA}
        return {"refsgd": __version__, "format": FORMAT, **own,
                "machine": self.machine.to_json(), "predicted": dict(self.predicted)}

    def to_json(self) -> str:
        """The result as strict JSON, with null for NaN and "inf" for infinity; `from_json` reads it back."""
        return schema.json_text(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Read the `text` of `to_json`; raises ValueError for anything else.

        Parameters
        ----------
        text : str

        Returns
        -------
        Result
            Without trace and parameters.
        """
        try:
            data = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}; expected a result written by refsgd") from None
        if not isinstance(data, dict) or data.get("format") not in (1, FORMAT):
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"result format {found!r}; expected {FORMAT}, or 1 of an older version")
        if data["format"] == 1:
            data["measured"] = _flat(data.get("measured"))
        if wrong := schema.misfit(data, SCHEMA):
            raise ValueError(f"result: {wrong}")
        numbers = {name: schema.as_number(data[name]) for name in ("loss", "consensus_distance")}
        return cls(**{name: data[name] for name in SCHEMA} | numbers | {
            "options": schema.infinities(data["options"]), "machine": Machine.from_json(data["machine"]),
            "history": [list(map(schema.as_number, point)) for point in data["history"]]})

    @property
    def label(self) -> str:
        """The algorithm with its options, e.g. ``ssp staleness=3``."""
        return labelled(self.algorithm, self.options)

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """A few lines for people."""
        m = self.measured

        def said(name: str) -> str:
            return METRICS[name].text(m[name])

        lines = [
            f"{self.label}: {counted(self.workers, 'worker')}, {counted(self.servers, 'server')}, "
            f"{counted(self.steps, 'step')}, {self.runtime}, seed {self.seed}",
            f"machine    {self.machine}",
            f"problem    {self.problem.get('net')} on {self.problem.get('data')}, "
            f"{self.problem.get('parameters')} parameters, "
            + (f"batches {written(each)}" if (each := self.problem.get("batches"))
               else f"batch {self.problem.get('batch')}") + image_of(self.problem),
        ]
        if self.accuracy:
            shown = ", ".join(f"{part} {share:.1%}" for part, share in sorted(self.accuracy.items()))
            lines.append(f"accuracy   {shown}, loss {self.loss:.4f}")
            lines += [f"           {each}" for each in samples_of(self.problem)]
        elif self.parameters_sha256:
            lines.append(f"loss       {self.loss:.6g}")
        if "not_finite" in m:
            lines.append(f"not finite {m['not_finite']}")
        causes = ", ".join(f"{k} {v:.1%}" for k, v in m["idle_by_cause"].items() if v >= 0.0005)
        lines += [
            f"time       {said('seconds')} s, {said('seconds_per_iteration')} ms an iteration, "
            f"{said('images_per_second')} images/s",
            "phases     " + ", ".join(f"{phase} {as_time(float(f'{each:.3g}'))}"
                                      for phase, each in m.get("phase_seconds", {}).items() if each),
            f"staleness  mean {said('staleness_mean')}, max {said('staleness_max')} updates; "
            f"clock gap {said('clock_gap_max')}, lead {said('lead_max')} iterations",
            f"idle       {said('idle_ratio')}" + (f" ({causes})" if causes else ""),
            f"messages   {said('messages')}, {said('bytes_sent')} MB in all"
            + (f"; the fullest server holds {said('largest_server')} times the mean"
               if self.servers > 1 and "largest_server" in m else ""),
            f"parameters {self.parameters_sha256[:16] or 'none (a shape-only net)'}, schedule "
            f"{self.schedule_sha256[:16]}",
        ]
        if self.trace is not None and (deaths := self.trace.of(Crashed)):
            lines.append("deaths     " + ", ".join(f"{e.node} at {e.time:.3f} s" for e in deaths))
        if "resources" in m:
            used = [f"{node} {in_words(each)}" for node, each in m["resources"].items()]
            lines.append("resources  " + "\n           ".join(used))
        return "\n".join(lines)

    def player(self, path: str | Path | None = None, **window: Any) -> Any:
        """`refsgd.player` of this result: a page that steps forwards and backwards through the run.

        Parameters
        ----------
        path : path, optional
            Also write the page there.
        **window
            Its `events` or `limit`.

        Returns
        -------
        refsgd.display.player.Player
        """
        import refsgd

        return refsgd.player(self, path, **window)

    def plot(self, kind: str, ax: Any = None, **options: Any) -> Any:
        """`refsgd.plot` of this result.

        Parameters
        ----------
        kind : str
            Such as "timeline", "idle_by_cause", "staleness_over_time".
        ax : Axes, optional
            Where to draw; by default on pyplot's current axes, which notebooks show.
        **options
            Of the picture.

        Returns
        -------
        matplotlib.axes.Axes
        """
        import refsgd

        return refsgd.plot(self, kind, ax, **options)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.summary())}</pre>"


def _flat(measured: Any) -> Any:
    """Metrics of format 1 under their names today; what is missing or of a wrong kind stays so."""
    if not isinstance(measured, dict):
        return measured
    found = measured.copy()
    for name, (group, key) in NESTED.items():
        if isinstance(values := measured.get(group), dict) and key in values:
            found[name] = values[key]
    found["bytes_sent_by_node"] = sent = found.pop("bytes_sent", None)
    if _REALS.fits(sent):
        found["bytes_sent"] = sum(sent.values())
    return {name: value for name, value in found.items() if name in METRICS}
