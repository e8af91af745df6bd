"""The same nets in PyTorch, which tests and benchmarks compare with. Needs PyTorch; nothing else here
does."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from refsgd.problems.nn.layer import Array, Concat, Layer, Residual
from refsgd.problems.nn.layers import (
    BatchNorm,
    Conv,
    Dropout,
    Flatten,
    GlobalAverage,
    Linear,
    MaxPool,
    Relu,
)
from refsgd.problems.nn.net import Leaf, Net


def module(net: Net) -> Any:
    """The same layers in PyTorch."""
    return _Builder(net).chain(net.layers)


def load(net: Net, peer: Any, x: Array) -> None:
    """Copy flat parameters into a module."""
    torch = import_module("torch")
    with torch.no_grad():
        for parameter, value in zip(peer.parameters(), _views(net, x), strict=True):
            parameter.copy_(torch.from_numpy(np.array(_turned(value))))


def gradient(net: Net, peer: Any) -> Array:
    """The gradient that autograd left in a module's parameters."""
    parts = [_turned_back(parameter.grad.numpy()).ravel() for parameter in peer.parameters()]
    return np.concatenate(parts)


def _views(net: Net, x: Array) -> Iterator[Array]:
    for part, shape in net.segments.values():
        yield x[part].reshape(shape)


def _turned(value: Array) -> Array:
    """Filters (i, j, in, out) as (out, in, i, j), matrices (in, out) as (out, in)."""
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T


def _turned_back(value: Array) -> Array:
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T


class _Builder:
    def __init__(self, net: Net) -> None:
        self.torch = import_module("torch")
        self.nn = self.torch.nn
        self.leaves = iter(net.leaves)

    def chain(self, layers: Sequence[Layer]) -> Any:
        return self.nn.Sequential(*[self.one(layer) for layer in layers])

    def one(self, layer: Layer) -> Any:
        if isinstance(layer, Residual | Concat):
            branches = self.nn.ModuleList([self.chain(branch) for branch in layer.branches])
            next(self.leaves)
            return self.joined(branches, isinstance(layer, Residual))
        return self.simple(layer, next(self.leaves))

    def simple(self, layer: Layer, leaf: Leaf) -> Any:
        nn, shape = self.nn, leaf.shape
        match layer:
            case Conv(channels, kernel, stride, pad, bias):
                return nn.Conv2d(shape[2], channels, kernel, stride, pad, bias=bias)
            case Linear(features):
                return nn.Linear(shape[0], features)
            case BatchNorm(epsilon):
                kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
                return kind(shape[-1], eps=epsilon, track_running_stats=False)
            case Relu():
                return nn.ReLU()
            case MaxPool(kernel, stride, pad):
                return nn.MaxPool2d(kernel, stride, pad)
            case Dropout(rate):
                return nn.Dropout(rate)
            case GlobalAverage():
                return self.function(lambda x: x.mean(dim=(2, 3)))
            case Flatten():
                return self.function(lambda x: x.permute(0, 2, 3, 1).flatten(1))
        raise ValueError(f"no PyTorch layer for {layer}")

    def function(self, apply: Any) -> Any:
        class Function(self.nn.Module):  # type: ignore[misc, name-defined]
            def forward(self, x: Any) -> Any:
                return apply(x)

        return Function()

    def joined(self, branches: Any, add: bool) -> Any:
        torch = self.torch

        class Joined(self.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.branches = branches

            def forward(self, x: Any) -> Any:
                parts = [branch(x) for branch in self.branches]
                return parts[0] + parts[1] if add else torch.cat(parts, 1)

        return Joined()
