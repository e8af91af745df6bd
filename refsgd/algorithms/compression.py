"""Compressed gradients: few bytes travel in place of a gradient, and the rest is kept for later.

A codec is a rule (`codecs`, `powersgd`) with or without error feedback (Seide et al. 2014; Stich et al.
2018)::

    s = g + e                                              # what was not sent before is added
    message = encode(s);  e = s - decode(message)          # and what is not sent now is kept

Between peers, messages of a linear rule are summed by any all-reduce; those of others are gathered.

Quick facts
-----------
bytes for d entries, k = ceil(ratio d): topk 8 k (values and indices) | dgc the same array by array, but 4 per
entry of an array of one column | randk 4 k | onebit d/8 + 8 per column | twobit d/4 | qsgd 1 per entry up to
127 levels, and 4 per norm | fp16 2 d | powersgd 4 r (rows + columns) per matrix, but never more than 4 per
entry | linear: randk, fp16, powersgd | unbiased, without feedback: qsgd, randk | sum of what is sent +
residual = sum of what came in | deterministic: yes; randomness is a function of (seed, rank, step)

A lost message takes its mass with it: the residual has already been cleared.  A gradient with an entry that
is not finite travels as NaN, whatever the codec.

What differs from the papers
----------------------------
The k largest are exact, where Lin et al. estimate a threshold from a sample; ties go to the lowest index.
Alistarh et al. count bits of an entropy code; here a level takes whole bytes.  MXNet packs its codes into
float32 words.  With feedback, the unbiased rules are shrunk to contractions: randk is not scaled by d/k, and
the result of qsgd is divided by 1 + the bound of its relative variance.

References
----------
Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent", Interspeech 2014: error feedback.
Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD", ICML 2019 (arXiv:1901.09847).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from math import prod
from typing import Any

import numpy as np

from refsgd.algorithms.codecs import DGC, FP16, QSGD, Key, Message, OneBit, RandK, Rule, TopK, TwoBit
from refsgd.algorithms.powersgd import PowerSGD
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Program

#: by the word before the colon of an option
RULES: dict[str, type[Rule]] = {"topk": TopK, "randk": RandK, "dgc": DGC, "onebit": OneBit, "twobit": TwoBit,
                                "qsgd": QSGD, "fp16": FP16, "powersgd": PowerSGD}
EXPECTED = ("expected topk:0.01, randk:0.01, dgc:0.001, onebit, twobit:THRESHOLD, qsgd:LEVELS, fp16 or "
            "powersgd:RANK, and options such as dgc:0.001,warmup=4")
READ: dict[str, Callable[[str], Any]] = {"float": float, "int": int,
                                         "bool": {"on": True, "off": False}.__getitem__}
#: fields of rules that follow from the run
OF_THE_RUN = ("unbiased", "momentum", "weight_decay", "ranks", "epoch", "tensors")


@dataclass(frozen=True)
class Codec:
    """A rule with or without error feedback; the sender's state is that of the rule, and the residual."""

    rule: Rule
    feedback: bool = True
    seed: int = 0
    begin: int = 0  #: where its part of the vector begins
    first: int = 0  #: steps of the run before its own

    def start(self, d: int) -> Any:
        """The state before the first gradient of d entries."""
        return self.rule.start(d), np.float32(0)

    def part(self, at: slice) -> Codec:
        """The codec of a part of the vector."""
        return replace(self, rule=self.rule.part(at), begin=self.begin + at.start)

    def key(self, rank: int, t: int) -> Key:
        """The key of the random numbers at a rank, in its step t."""
        return self.seed, rank, self.first + t, self.begin

    def ready(self, g: Array, x: Array) -> Array:
        """The gradient at x as it is to be encoded: for DGC clipped, and with weight decay."""
        return self.rule.ready(g, x) if isinstance(g, np.ndarray) else g

    def held(self, d: int) -> int:
        """Bytes that a sender keeps between two gradients of d entries."""
        return self.rule.held(d) + 4 * d * self.feedback

    def owed(self, g: Array, rest: Any) -> Array:
        """What is to be encoded: the gradient, with what was not sent before.  Where an entry of it is not
        finite all are NaN, since no rule may lose that entry: neither a choice nor a limit knows it."""
        s = g + rest if self.feedback else g
        return s if np.isfinite(s).all() else np.full_like(s, np.nan)

    def encode(self, state: Any, g: Array, key: Key) -> tuple[Message, Any]:
        """The message for a gradient, (d,), and the next state."""
        if not isinstance(g, np.ndarray):
            return tuple(x for nbytes in self.phases(g.size, key[2]) for x in hollow(g, nbytes)), state
        inner, rest = state
        s = self.owed(g, rest)
        message, inner = self.rule.encode(inner, s, key)
        return message, (inner, s - self.rule.decode(message, s.size) if self.feedback else rest)

    def decode(self, message: Message, d: int) -> Array:
        """The gradient of d entries that a message encodes."""
        last = message[-1]
        if not isinstance(last, np.ndarray):
            return np.concatenate([last] * (1 + d // max(1, last.size)))[:d]
        return self.rule.decode(message, d)

    def phases(self, d: int, t: int | None = None) -> tuple[int, ...]:
        """Payload bytes of a message for d entries of float32, at step t or by default late; of a linear
        rule those of each sum over ranks."""
        return self.rule.phases(d, t)

    def nbytes(self, d: int, t: int | None = None) -> int:
        """All of these bytes."""
        return sum(self.phases(d, t))

    def project(self, state: Any, g: Array) -> Array:
        """What ranks sum first, where the rule `projects`."""
        if not isinstance(g, np.ndarray):
            return hollow(g, self.phases(g.size)[0])[-1]
        inner, rest = state
        return self.rule.project(inner, self.owed(g, rest))

    def summed(self, state: Any, g: Array, key: Key,
               add: Callable[[Array], Program[Array]]) -> Program[tuple[Array, Any]]:
        """The sum that the messages of all ranks encode under a linear rule, and the next state; `add` is a
        sum over ranks."""
        if self.rule.projects:
            p = yield from add((yield Compute(self.project, state, g, kind="codec")))
            state = state[0]._replace(p=p), state[1]
        message, (inner, rest) = yield Compute(self.encode, state, g, key, kind="codec")
        last = yield from add(message[-1])
        if self.rule.projects:
            inner = inner._replace(q=last, p=None)
        return (yield Compute(self.decode, (*message[:-1], last), g.size, kind="codec")), (inner, rest)


def hollow(g: Array, nbytes: int) -> Message:
    """As many bytes, from a shape-only vector, without contents."""
    return np.zeros(nbytes % 4, np.uint8), np.concatenate([g, g, g])[: nbytes // 4]


def codec(text: str, feedback: bool = True, *, sgd: SGD | None = None, ranks: int = 1, epoch: int = 100,
          shapes: Sequence[tuple[int, ...]] = (), seed: int = 0) -> Codec:
    """Read ``topk:0.01`` or ``dgc:0.001,warmup=4``: the codec for this number of ranks, `epoch` steps in an
    epoch, and a vector of arrays of these shapes (by default one)."""
    sgd = sgd or SGD(0.0)
    name, _, rest = text.partition(":")
    if name not in RULES:
        raise ValueError(f"compress {text!r}; {EXPECTED}")
    known = [field for field in fields(RULES[name]) if field.name not in OF_THE_RUN]  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for i, word in enumerate(rest.split(",") if rest else ()):
        key, equals, value = word.partition("=")
        if not equals and i == 0 and known:
            key, value = known[0].name, word
        found = [field for field in known if field.name == key]
        try:
            given[key] = READ[str(found[0].type)](value)
        except (LookupError, ValueError):
            raise ValueError(f"compress {text!r}: {word!r} is not understood; {EXPECTED}") from None
    if known and known[0].default is MISSING and known[0].name not in given:
        raise ValueError(f"compress {text!r} names no {known[0].name}; {EXPECTED}")
    tensors = tuple((prod(shape), shape[-1] if len(shape) > 1 else 1) for shape in shapes)
    run = {"unbiased": not feedback, "momentum": sgd.momentum, "weight_decay": sgd.weight_decay,
           "ranks": ranks, "epoch": epoch, "tensors": tensors}
    taken = {field.name for field in fields(RULES[name])}  # type: ignore[arg-type]
    try:
        rule = RULES[name](**given, **{key: value for key, value in run.items() if key in taken})
    except ValueError as error:
        raise ValueError(f"compress {text!r}: {error}") from None
    if rule.keeps and not feedback:
        raise ValueError(f"compress {text!r} without feedback; its residual is part of it: expected "
                         "feedback, or topk")
    return Codec(rule, feedback and not rule.keeps, seed)
