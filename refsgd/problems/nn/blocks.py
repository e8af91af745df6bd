"""A net as a chain of blocks, each a layer of its list: layers in branches stay with their block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from refsgd.problems.chain import Block, Rows
from refsgd.problems.nn import kernel_cache
from refsgd.problems.nn.layer import Array, flattened
from refsgd.problems.nn.memory import Frame
from refsgd.problems.nn.net import Leaf, Net

if TYPE_CHECKING:
    from refsgd.problems.nn.plan import Plan


def blocks(net: Net, key: Callable[[Rows], int]) -> list[Block]:
    """The layers of a net; `key` chooses what dropout drops."""
    found, leaves, first, work, end = list[Block](), list[Leaf](), 0, 0.0, 0
    for leaf in net.leaves:
        leaves.append(leaf)
        work, end = work + leaf.flops, end + leaf.parameters
        if leaf.layer is net.layers[len(found)]:
            passes = _Passes(net, len(found), slice(first, end), leaves, key)
            found.append(Block(leaf.name, passes.part, work, leaf.activation_bytes, passes.forward,
                               passes.backward, passes.held))
            leaves, first, work = [], end, 0.0
    return found


def loss_gradient(net: Net, scores: Array, labels: Array) -> Array:
    """The gradient of the mean loss by the scores."""
    if not len(scores):
        return scores
    loss, d = net.loss(scores, labels)
    if not np.isfinite(loss):
        raise FloatingPointError(f"net {net.name}: loss is {loss}")
    return d


@dataclass
class _Passes:
    """The passes of a layer, by kernels where there are any, else by its definition.

    A plan holds the activations of one micro-batch, from its forward pass to its backward pass.
    """

    net: Net
    number: int
    part: slice
    leaves: Sequence[Leaf]
    key: Callable[[Rows], int]

    def forward(self, x: Array, a: Array, rows: Rows) -> tuple[Array, Any]:
        """The activations that leave it, and the plan or the values that hold what came."""
        if not (len(a) and kernel_cache.has_kernels()):
            p = self._views(x, rows)
            out, kept = self.net.layers[self.number].forward(p, a)
            return out, (p, kept)
        plan = self._plan()
        plan.reserve(len(a))
        frame = Frame(x.ctypes.data - 4 * self.part.start, 0, key=self.key(rows), first=rows.first)
        plan.forward(np.ascontiguousarray(a), frame)
        out = plan.output.value.images(len(a)).copy()
        return out.reshape(len(a), *plan.output.shape), (plan, frame)

    def backward(self, x: Array, kept: Any, d: Array) -> tuple[Array, Array]:
        """The gradients of its parameters and of what came."""
        if not isinstance(kept[1], Frame):
            p, values = kept
            d, gradients = self.net.layers[self.number].backward(p, values, d)
            return np.concatenate([x[:0], *(g.ravel() for g in flattened([gradients]))]), d
        plan, frame = kept
        g, b = np.zeros_like(x), len(d)
        frame = replace(frame, x=x.ctypes.data - 4 * self.part.start, g=g.ctypes.data - 4 * self.part.start)
        above = plan.output.gradient
        above.images(b)[...] = d.reshape(b, *above.shape)
        plan.run_back(plan.steps, b, frame)
        self.net.idle[self.leaves[-1].name].append(plan)
        return g, plan.input.gradient.images(b).copy().reshape(b, *plan.input.shape)

    def held(self, images: int) -> int:
        """Bytes that the passes of this many images keep: all of them are computed at once."""
        if not kernel_cache.has_kernels():
            return 2 * images * sum(leaf.activation_bytes for leaf in self.leaves)
        plan = self._plan()
        self.net.idle[self.leaves[-1].name].append(plan)
        return plan.held(images)

    def _plan(self) -> Plan:
        """A plan that holds no micro-batch."""
        last = self.leaves[-1]
        return self.net.taken(last.name, [last.layer], last.shape, self.leaves, True, True)

    def _views(self, x: Array, rows: Rows) -> Any:
        """The arrays of the parameters, as the definition takes them."""
        vector = np.empty(self.net.parameters, x.dtype)  # of which nothing else is read
        vector[self.part] = x
        return self.net.unflatten(vector, self.key(rows), rows.first)[self.number]
