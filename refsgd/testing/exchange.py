"""What must hold where gradients travel compressed or by priority: what a message leaves out arrives later,
and no part starves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms.allreduce.allreduce import allreduce
from refsgd.algorithms.codecs import Rule
from refsgd.algorithms.compression import Codec
from refsgd.algorithms.exchange import Exchange
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Array, Compute, Deployment, Program, RunEnded
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem
from refsgd.runtimes.simulator import simulate
from refsgd.testing.findings import RATE, Finding, NotChecked, Small, attempt, known_gradients

SIZE, STEPS = 8, 8  #: parameters of the small problem, and its steps with gradients that are not zero
ASYNCHRONOUS = Machine(compute="exponential(1)")  # type: ignore[arg-type]
#: a gradient takes four times as long on a link as to compute
SLOW = Machine(compute="fixed(1)", bandwidth=SIZE)  # type: ignore[arg-type]


class Call(NamedTuple):
    """What a node's `Compute` of kind "codec" encoded or decoded."""

    node: str
    codec: Any
    encodes: bool
    g: Array  # the gradient: given to `encode`, or answered by `decode`

    @property
    def part(self) -> tuple[int, int]:
        """Where its part of the vector begins, and how long it is."""
        return getattr(self.codec, "begin", 0), self.g.size


def _fading() -> Problem:
    """Gradients of unequal integers that are zero from some step on."""
    g = np.array([(3 + j) * (-1) ** j for j in range(SIZE)], np.float32)

    def gradient(x: Array, rank: int, t: int) -> Array:
        return g * np.float32(t < STEPS)

    return known_gradients(np.zeros(SIZE, np.float32), gradient)


def _tapped(node: str, program: Program[Any], seen: list[Call]) -> Program[Any]:
    """The same program; its codec calls are recorded."""
    answer: Any = None
    while True:
        try:
            effect = program.throw(answer) if isinstance(answer, RunEnded) else program.send(answer)
        except StopIteration as end:
            return end.value
        try:
            answer = yield effect
        except RunEnded as error:
            answer = error
            continue
        if isinstance(effect, Compute) and effect.kind == "codec":
            codec = getattr(effect.fn, "__self__", None)
            if effect.fn == getattr(codec, "encode", None):
                seen.append(Call(node, codec, True, effect.args[1]))
            elif effect.fn == getattr(codec, "decode", None):
                seen.append(Call(node, codec, False, answer))


def _calls(deploy: Small, steps: int) -> list[Call]:
    """What codecs encode and decode in a run of two workers."""
    seen = list[Call]()
    simulate({name: replace(node, main=_tapped(name, node.main, seen),
                            handlers=[_tapped(name, program, seen) for program in node.handlers])
              for name, node in deploy(_fading(), 2, steps).items()}, ASYNCHRONOUS)
    return seen


def _owed(calls: Sequence[Call]) -> tuple[float, float]:
    """The most by which an entry of what a node decoded differs from the sum of what all have encoded, and
    the least that all senders' messages can send of an entry."""
    came, said = defaultdict[Any, Any](float), defaultdict[Any, Any](float)
    for call in calls:
        into, key = (came, call.part) if call.encodes else (said, (call.node, call.part))
        into[key] = into[key] + call.g.astype(float)
    off = [float(np.abs(came[part] - decoded).max()) for (_, part), decoded in said.items()]
    words = [np.abs(call.g[call.g != 0]).min() for call in calls if not call.encodes and call.g.any()]
    return max(off, default=0.0), float(min(words, default=0.0)) * len({c.node for c in calls if c.encodes})


def _arrives(deploy: Small) -> str:
    """Check that what messages leave out arrives once gradients are zero: all of it, once, at its place."""
    calls = _calls(deploy, 5 * STEPS)
    for codec in {call.node: call.codec for call in calls}.values():
        rule = getattr(codec, "rule", None)
        if not getattr(codec, "feedback", True) and not getattr(rule, "keeps", False):
            raise NotChecked("without feedback what a message leaves out is lost")
        if getattr(rule, "momentum", 0):
            raise NotChecked("with momentum a codec sends more than the sum of gradients")
    (soon, _), (late, least) = _owed(calls), _owed(_calls(deploy, 20 * STEPS))
    if late > max(1e-3, least) and late > 0.9 * soon:
        raise AssertionError(
            f"after {19 * STEPS} steps with gradients of zero, an entry of what was decoded differs by "
            f"{late:g} from what was encoded (after {4 * STEPS} by {soon:g}); expected every residual to be "
            "added once to the next gradient, and messages to be decoded as they were encoded")
    return f"what {len(calls)} messages left out arrives later, once"


def _masks(codec: Codec) -> str:
    """Check that an entry that was sent leaves no velocity behind, which would be sent again."""
    if not hasattr(codec.rule, "momentum") or not getattr(codec.rule, "masking", True):
        raise NotChecked("the codec has no momentum, or does not mask it")
    tensors = {"tensors": ()} if hasattr(codec.rule, "tensors") else {}
    codec = replace(codec, rule=replace(codec.rule, momentum=0.5, **tensors))  # type: ignore[type-var]
    state, said = codec.start(SIZE), list[float]()
    for t in range(6):
        g = np.eye(1, SIZE, dtype=np.float32)[0] * np.float32(t == 0)
        message, state = codec.encode(state, g, codec.key(0, t))
        said.append(float(codec.decode(message, SIZE)[0]))
    if said[0] and any(said[1:]):
        raise AssertionError(f"with momentum 0.5 a single 1 was sent as {', '.join(f'{x:g}' for x in said)}; "
                             f"expected {said[0]:g} and then 0: what is sent clears its velocity")
    return "what is sent leaves no velocity behind"


def _shows(deploy: Small) -> str:
    """Check that a number that is not finite in one gradient reaches the parameters, or is an error."""
    for bad in (np.nan, np.inf):
        def gradient(x: Array, rank: int, t: int, bad: float = bad) -> Array:
            return np.arange(1, SIZE + 1, dtype=np.float32) * np.float32(bad if rank == 1 and t == 2 else 1)

        try:
            with np.errstate(all="ignore"):
                problem = known_gradients(np.zeros(SIZE, np.float32), gradient)
                x = final_parameters(simulate(deploy(problem, 2, 3 * STEPS), ASYNCHRONOUS))
        except Exception:  # which shows it too
            continue
        if np.isfinite(x).all():
            raise AssertionError(f"a gradient of {bad} left finite parameters; expected {bad} or an error: "
                                 "comparisons with NaN are false, and a limit makes infinity finite")
    return "NaN and infinity reach the parameters"


def codec_findings(deploy: Small, known: Codec | None = None) -> list[Finding]:
    """Checks of the codecs that programs use, or of a known one; none if they use none."""
    try:
        codecs = [known] if known else [*{call.part: call.codec for call in _calls(deploy, 3)}.values()]
    except Exception:  # which other checks report
        return []
    found = [attempt("residual", _arrives, deploy), attempt("not finite", _shows, deploy)] if codecs else []
    own = next((codec for codec in codecs if isinstance(codec, Codec)), None)
    return [*found, attempt("momentum mask", _masks, own)] if own else found


def check_codec(codec: Codec | Rule) -> list[Finding]:
    """Check what any codec of gradients must satisfy, in a run of all-reduce with two peers.

    What messages leave out arrives later, once and at its place, if the codec has feedback; NaN and infinity
    reach the parameters; and a codec with momentum clears the velocity of what it sends.

    Parameters
    ----------
    codec : Codec or Rule
        Of `refsgd.algorithms.compression`; a rule gets error feedback, unless it keeps a residual itself.

    Returns
    -------
    list of Finding

    Examples
    --------
    >>> from refsgd.algorithms.compression import codec
    >>> print(*check_codec(codec("topk:0.25")), sep="\\n")
    ok   residual: what 240 messages left out arrives later, once
    ok   not finite: NaN and infinity reach the parameters
    note momentum mask: the codec has no momentum, or does not mask it
    """
    whole = Codec(codec, feedback=not codec.keeps) if isinstance(codec, Rule) else codec
    if getattr(whole.rule, "momentum", 0):  # with which sums are others
        whole = replace(whole, rule=replace(whole.rule, momentum=0.0))  # type: ignore[type-var]

    def deploy(problem: Problem, workers: int, steps: int) -> Deployment:
        compressed: Any = replace(problem, exchange=Exchange(codec=whole))
        return allreduce(compressed, workers, steps, SGD(RATE))

    return codec_findings(deploy, whole)


def starves_none(deploy: Small) -> str:
    """Check that links that serve by priority let every part through while workers continue."""
    done = defaultdict[str, list[float]](list)
    for e in simulate(deploy(_fading(), 2, 4 * STEPS), SLOW).trace.marks("update"):
        done[e.node].append(e.time)
    if not done:
        raise NotChecked("not checked: the programs mark no updates")
    first = min(done, key=lambda node: done[node][-1])
    for node, times in done.items():
        if (there := sum(time <= done[first][-1] for time in times)) < len(times) / 2:
            raise AssertionError(
                f"{node} had made {there} of {len(times)} updates when {first} had made all: other parts go "
                "first on a slow link, and workers do not wait for this one; expected at least half")
    return f"updates of all {len(done)} parts keep pace where links are slower than gradients"
