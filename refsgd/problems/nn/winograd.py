"""Convolution with 3x3 filters, stride 1 and padding 1, by Winograd's minimal filtering F(2x2, 3x3).

Computed directly, four outputs of a 3x3 filter need 36 multiplications. From the transforms of the filter g
and of a 4x4 patch d of the input they need 16: ``y = A.T [(G g G.T) * (B.T d B)] A`` (Lavin and Gray 2016,
arXiv:1509.09308, section 4.1). Over all channels, the products at each of the 16 places are a matrix product
of (tiles, c) by (c, o), which takes most of the time. Transforms cost only additions, which pays from about
32 channels.

Conventions are those of `refsgd.problems.nn.kernels`. Images have even sizes; ``x`` is the place of the
border pixel at (-1, -1). ``tiles`` are addresses: scratch ``v`` (16, tiles, c) and ``m`` (16, tiles, o) for
``chunk`` rows of tiles, which fit into the cache, and one zero per channel. Transformed filters ``u`` are
packed in panels: (16, panels, c, PANEL).
"""
from __future__ import annotations

import numpy as np

from refsgd.problems.nn.kernels import FLOAT, OVERWRITE, PANEL, address, kernel, transpose
from refsgd.problems.nn.vector import LANES, call_product, make_transform

_inward = make_transform(((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)), added=False)
_outward = make_transform(((1, 1, 1, 0), (0, 1, -1, -1)), added=True)
_gradient = make_transform(((1, 0), (1, 1), (1, -1), (0, -1)), added=False)

_filters = make_transform(((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)), added=False)
_unfilter = make_transform(((1, 0.5, 0.5, 0), (0, 0.5, -0.5, 0), (0, 0.5, 0.5, 1)), added=True)

_NO_FLOOR = np.float32(-np.inf)


@kernel
def pack_filters(c, o, w, u, ue):
    """``u = G w G.T`` for ``w`` of shape (3, 3, c, o); ``ue`` is the stride of the 16 places."""
    for k in range(c):
        for j in range(0, o, LANES):
            target = u + ((j // PANEL * c + k) * PANEL + j % PANEL) * 4
            _filters(w + (k * o + j) * 4, 3 * c * o * 4, c * o * 4, target, 4 * ue, ue, 0, 0, 0, _NO_FLOOR,
                     min(LANES, o - j))


@kernel
def pack_turned_filters(c, o, w, turned, u, ue):
    """`pack_filters` for the gradient of the input: filters rotated by 180 degrees, from o to c channels.

    ``u`` and ``ue`` as there; ``turned`` is scratch for one panel, (3, 3, o, PANEL).
    """
    for first in range(0, c, PANEL):
        width = min(PANEL, c - first)
        for tap in range(9):
            transpose(width, o, w + ((8 - tap) * c + first) * o * 4, turned + tap * o * width * 4, OVERWRITE)
        pack_filters(o, width, turned, u + first * o * 4, ue)


@kernel
def unpack_gradient(c, o, g, dw):
    """``dw += G.T g G`` for ``g`` of shape (16, c, o)."""
    ge, row, column = c * o * 4, 3 * c * o * 4, c * o * 4
    for j in range(0, c * o, LANES):
        to = dw + 4 * j
        _unfilter(g + 4 * j, 4 * ge, ge, to, row, column, to, row, column, _NO_FLOOR, min(LANES, c * o - j))


@kernel
def convolve(sizes, x, c, u, o, tiles, start, y, floor):
    """``y = max(start + x * w, floor)`` as in `refsgd.problems.nn.kernels`; ``u`` is w transformed."""
    (b, height, width, chunk), (v, m, zeros) = sizes, tiles
    down, across = height // 2, width // 2
    room = chunk * across
    ve, me, ue = room * c * 4, room * o * 4, (o + PANEL - 1) // PANEL * PANEL * c * 4
    for first in range(0, b * down, chunk):
        last = min(first + chunk, b * down)
        for q in range(first, last):
            n, r = q // down, q % down
            for p in range(across):
                source = address(x, n, 2 * r, 2 * p)
                target = v + ((q - first) * across + p) * c * 4
                for k in range(0, c, LANES):
                    _inward(source + 4 * k, x[2], x[3], target + 4 * k, 4 * ve, ve, 0, 0, 0, _NO_FLOOR,
                            min(LANES, c - k))
        count = (last - first) * across
        for e in range(16):
            call_product(
                count, o, v + e * ve, c * 4, 1, 0, c, FLOAT, u + e * ue, 0, PANEL * 4, c * 4,
                m + e * me, o * 4, zeros, 0, _NO_FLOOR)
        for q in range(first, last):
            n, r = q // down, q % down
            for p in range(across):
                source = m + ((q - first) * across + p) * o * 4
                target, begin = address(y, n, 2 * r, 2 * p), address(start, n, 2 * r, 2 * p)
                for k in range(0, o, LANES):
                    _outward(source + 4 * k, 4 * me, me, target + 4 * k, y[2], y[3], begin + 4 * k, start[2],
                             start[3], floor, min(LANES, o - k))


@kernel
def convolve_weights(sizes, x, c, dy, o, tiles, g):
    """``g`` (16, c, o): the gradient of the transformed filters, for `unpack_gradient`.

    Here ``m`` holds the transformed dy, in panels: (16, panels, tiles, PANEL).
    """
    (b, height, width, chunk), (v, m, zeros) = sizes, tiles
    down, across = height // 2, width // 2
    room = chunk * across
    ve, me = room * c * 4, (o + PANEL - 1) // PANEL * PANEL * room * 4
    for first in range(0, b * down, chunk):
        last = min(first + chunk, b * down)
        for q in range(first, last):
            n, r = q // down, q % down
            for p in range(across):
                t = (q - first) * across + p
                source, target = address(x, n, 2 * r, 2 * p), v + t * c * 4
                for k in range(0, c, LANES):
                    _inward(source + 4 * k, x[2], x[3], target + 4 * k, 4 * ve, ve, 0, 0, 0, _NO_FLOOR,
                            min(LANES, c - k))
                source = address(dy, n, 2 * r, 2 * p)
                for k in range(0, o, LANES):
                    target = m + (k // PANEL * room + t) * PANEL * 4 + k % PANEL * 4
                    _gradient(source + 4 * k, dy[2], dy[3], target, 4 * me, me, 0, 0, 0, _NO_FLOOR,
                              min(LANES, o - k))
        count = (last - first) * across
        for e in range(16):
            mine = g + e * c * o * 4
            start, stride = (mine, o * 4) if first else (zeros, 0)
            call_product(
                c, o, v + e * ve, FLOAT, 1, 0, count, c * 4, m + e * me, 0, PANEL * 4, room * 4,
                mine, o * 4, start, stride, _NO_FLOOR)
