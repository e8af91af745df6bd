"""Compiled kernels for the layers of `refsgd.problems.nn.layers`, in float32.

Kernels take addresses, sizes and strides (in bytes unless stated otherwise) and check nothing. Only
`refsgd.problems.nn.plan` calls them, and tests compare each with its definition in
`refsgd.problems.nn.layers`. They release the interpreter lock, use one thread, and add in an order that
depends only on the shapes.

All kernels use these names:

* ``b`` images, and the ``rows`` and ``columns`` of their outputs; ``height`` and ``width`` are those of their
  inputs; several of these together are the ``sizes``;
* ``c`` channels of the input, ``o`` channels of the output;
* ``size``: side of a pooling window; its ``stride`` and ``pad``, in pixels;
* ``x`` input, ``y`` output, ``dx`` and ``dy`` their gradients: places of images, that is, an address and the
  strides from one image, row and pixel to the next;
* ``w`` weights, ``bias``, ``dw``, ``db`` their gradients: addresses;
* ``run``: floats of a row, all its pixels; ``norm`` and ``factors``, for each of them;
* ``start``: the initial value of a sum; ``floor``: the lower bound of a result, 0 for relu, else minus
  infinity.

Products find their operands through lists of offsets, so that the same loop computes a convolution of any
stride and padding, both of its gradients and a linear layer. Matrices are packed in panels of `PANEL`
columns, one after the other, so that the processor reads consecutive addresses.
"""
from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import carray
from numba.core.caching import FunctionCache

from refsgd.problems.nn.kernel_cache import kept
from refsgd.problems.nn.vector import LANES, ROWS, VECTORS, floats, make_sparse, make_tile, transpose_block


class Cache(FunctionCache):  # type: ignore[misc]
    """numba's disk cache, with a key that also covers the other source files of a kernel, and which a file
    that was cut off, as by a full disk, does not stop."""

    GENERATORS = ("vector.py", "kernels.py")  # the intrinsics, and the kernels that others call

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        own = super()._index_key(signature, codegen)
        return (*own, _generated(self.GENERATORS), LANES, ROWS, VECTORS)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kernel from the disk; None, so that it is compiled again, if its file is damaged."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # of a pickle that was cut off, which may be any
            self.flush()
            return None


@lru_cache
def _generated(files: tuple[str, ...]) -> str:
    """A hash of source files beside this one, where they exist."""
    folder = Path(__file__).parent
    return sha256(b"".join(path.read_bytes() for path in map(folder.joinpath, files)
                           if path.is_file())).hexdigest()


# Sums may be reordered and multiplications fused, but NaN and infinity keep their meaning.
_compile = numba.njit(
    nogil=True, boundscheck=False, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"},
    no_cfunc_wrapper=True
)


def kernel(function: Any) -> Any:
    """Compile a function on its first call, and keep it on disk."""
    compiled = _compile(function)
    if kept():  # as numba's `cache=True`, with the cache above
        compiled._cache = Cache(function)
    return compiled


_HALF = ROWS // 2
_tile_full, _tile_half, _tile_row = make_tile(ROWS), make_tile(_HALF), make_tile(1)
# The width decides in which order a pixel's gradients are added: it is that of every processor.
_SPARSE_ROWS, SPARSE = 5, 32
_sparse_one, _sparse_rows = (make_sparse(rows, 1, inputs=False) for rows in (1, _SPARSE_ROWS))
_sparse_both = make_sparse(1, SPARSE // LANES, inputs=True)

PANEL = LANES * VECTORS
CHUNK = 240  # positions of a product: their patches and a panel stay in the cache
_ZERO = np.float32(0)
# Pixels of a 2x2 window in reading order, and "none": the largest was not positive.
_FIRST, _SECOND, _THIRD, _FOURTH, _NOWHERE = (np.uint8(i) for i in range(5))
_NO_FLOOR = np.float32(-np.inf)


@numba.njit(inline="always")
def address(place, n, r, c):
    """The address of pixel ``(r, c)`` of image ``n``, from the ``place`` of the first."""
    first, image, row, column = place
    return first + n * image + r * row + c * column


@numba.njit(inline="always")
def pixel(place, n, r, c, count):
    """The ``count`` floats from pixel ``(r, c)`` of image ``n`` on, from the ``place`` of the first."""
    return carray(floats(address(place, n, r, c)), (count,))


@numba.njit(inline="always")
def entry(offsets, k):
    """The address of entry ``k`` of a list of ``offsets``; signed, so that `product` is compiled once."""
    return np.int64(offsets.ctypes.data) + 8 * k


@kernel
def product(sizes, a, w, c, start, floor):
    """``c = max(start + a w, floor)`` for ``m x n`` outputs, each a sum of ``count`` products.

    `make_tile` states the formula. ``sizes`` are m, n and count. Panels of `PANEL` columns of w are w[2]
    apart, and its rows w[1]. Rows of w have whole vectors: those of a packed matrix do. Behind the addresses
    of a, c and start: those of their lists of offsets.
    """
    m, n, count = sizes
    for first in range(0, n, PANEL):
        columns = min(n - first, PANEL)
        panel, target, begin = (w[0] + first // PANEL * w[2], w[1]), c[0] + 4 * first, start[0] + 4 * first
        k = 0
        while k < m:
            source, to = (a[0], a[1] + 8 * k, a[2]), (target, c[1] + 8 * k)
            at = (begin, start[1] + 8 * k)
            if m - k >= ROWS:
                _tile_full(count, source, panel, to, at, floor, columns)
                k += ROWS
            elif m - k >= _HALF:
                _tile_half(count, source, panel, to, at, floor, columns)
                k += _HALF
            else:
                _tile_row(count, source, panel, to, at, floor, columns)
                k += 1


@kernel
def convolve(b, o, x, w, start, y, lists, floor):
    """``y = max(start + sum over a patch of x w, floor)`` at each position of b images, tap after tap.

    ``x``, ``start`` and ``y`` are addresses of the first image with the stride to the next; ``w`` is an
    address with the strides of rows and panels. ``lists`` are offsets: of the patches of a group of images,
    of the floats of a patch, of the outputs and of their initial values, and of the taps in both of these;
    and the number of images. ``start`` is a bias, or y itself, to add to it. A linear layer has one position
    per image.

    A convolution has one tap, which is a whole patch. The gradient of the input has a patch of one pixel and
    as many taps as a filter has pixels: each adds ``dy w.T`` to the pixels that it read. ``w`` then has rows
    of c channels for each tap and output.
    """
    rows, steps, targets, begins, taps, images = lists
    places, size = len(rows) // images, len(steps)
    for n in range(0, b, images):
        total = min(images, b - n) * places
        for k in range(0, total, CHUNK):
            for t in range(len(taps)):
                product(
                    (min(CHUNK, total - k), o, size),
                    (x[0] + n * x[1], entry(rows, k), entry(steps, 0)),
                    (w[0] + t * size * w[1], w[1], w[2]),
                    (y[0] + n * y[1] + taps[t], entry(targets, k)),
                    (start[0] + n * start[1] + taps[t], entry(begins, k)), floor)


@kernel
def convolve_weights(b, o, x, dy, dw, lists, packed):
    """``dw += x * dy`` summed over images and positions; ``x``, ``dy`` as in `convolve`.

    ``lists`` are offsets: of the patches, of the floats of a patch, of dy, and of the rows of dw; and the
    number of images. ``packed`` is scratch for one chunk of dy.
    """
    rows, steps, uppers, filters, images = lists
    places = len(rows) // images
    for n in range(0, b, images):
        total = min(images, b - n) * places
        for k in range(0, total, CHUNK):
            count = min(CHUNK, total - k)
            pack(count, o, dy[0] + n * dy[1], uppers[k:], packed)
            to = dw, entry(filters, 0)
            product(
                (len(steps), o, count),
                (x[0] + n * x[1], entry(steps, 0), entry(rows, k)),
                (packed, 4 * PANEL, 4 * PANEL * count), to, to, _NO_FLOOR)


@kernel
def convolve_pool(b, o, x, w, bias, lists, scratch, y, winner):
    """`convolve`, relu and 2x2 max-pooling at once.

    ``x`` and ``w`` as in `convolve`; ``lists`` are offsets: of the patches of a group of images, the
    four of a window one after the other; of the floats of a patch; of the rows of the convolution; of the
    windows in y; and none; and the number of images. ``winner`` (uint8, flat, as if y had no border) is the
    largest pixel of each window, or "none" if it was not positive. ``scratch`` holds a chunk of the
    convolution, which stays in the cache. Relu comes after the maximum, with the same result and less work.
    """
    rows, steps, targets, outputs, none, images = lists
    windows = len(outputs) // images
    for n in range(0, b, images):
        total = min(images, b - n) * windows * 4
        for first in range(0, total, CHUNK):
            count = min(CHUNK, total - first)
            product(
                (count, o, len(steps)),
                (x[0] + n * x[1], entry(rows, first), entry(steps, 0)), w,
                (scratch, entry(targets, 0)), (bias, entry(none, 0)), _NO_FLOOR)
            for q in range(count // 4):
                place = first // 4 + q
                p = scratch + 16 * q * o
                p0, p1 = carray(floats(p), (o,)), carray(floats(p + 4 * o), (o,))
                p2, p3 = carray(floats(p + 8 * o), (o,)), carray(floats(p + 12 * o), (o,))
                out = carray(floats(y[0] + n * y[1] + outputs[place]), (o,))
                mine = (n * windows + place) * o
                where = winner[mine : mine + o]
                for k in range(o):
                    v0, v1, v2, v3 = p0[k], p1[k], p2[k], p3[k]
                    m = max(max(v0, v1), max(v2, v3))
                    i = _FIRST if v0 == m else (_SECOND if v1 == m else (_THIRD if v2 == m else _FOURTH))
                    where[k] = _NOWHERE if m <= _ZERO else i
                    out[k] = _ZERO if m <= _ZERO else m


@kernel
def _live(n, dy, winner, o, k, sizes, strides, offsets, values):
    """List the windows of channel k of image n that carry gradient: their winners' patches and gradients.

    Patches are offsets, with ``strides`` between rows and pixels.
    """
    (_, rows, columns), (row, column) = sizes, strides
    count, total = 0, _ZERO
    # Column by column: neighbours in the list have patches in different rows, so their sums are independent.
    for c in range(columns):
        for r in range(rows):
            p: Any = np.int64(winner[((n * rows + r) * columns + c) * o + k])
            g = pixel(dy, n, r, c, o)[k]
            offsets[count] = (2 * r + (p >> 1)) * row + (2 * c + (p & 1)) * column
            live = p < 4
            g = g if live else _ZERO
            values[count] = g
            total += g
            count += live  # without a branch: a dead entry is overwritten by the next
    return count, total


@kernel
def pool_convolve_backward(sizes, x, dx, patch, w, o, dy, winner, sums, scratch):
    """Backward pass of `convolve_pool`, visiting only the pixels that won their window.

    ``sizes`` are those of the pooling's output; ``winner`` was set by `convolve_pool`; ``sums`` is (dw, db).
    ``patch`` is the rows of a filter, how far apart they are in x, and their length in floats.
    ``w`` and dw have shape (o, taps, run), the transpose of the layer's; dx has the strides of x, must be 0,
    and is skipped if its address is 0. ``scratch`` is an array of int64 and one of float32, each one entry
    longer than the number of windows.
    """
    (taps, tr, run), (dw, db), (offsets, values) = patch, sums, scratch
    at, vals = offsets.ctypes.data, values.ctypes.data
    bias = carray(floats(db), (o,))
    for n in range(sizes[0]):
        for k in range(o):
            count, total = _live(n, dy, winner, o, k, sizes, (x[2], x[3]), offsets, values)
            bias[k] += total
            mine, filters = dw + k * taps * run * 4, w + k * taps * run * 4
            source = address(x, n, 0, 0)
            entries = at, vals, count
            if dx[0] == 0:
                _sparse_weights(taps, run, mine, source, tr, entries)
            else:
                for t in range(taps):
                    for j in range(0, run, SPARSE):
                        q, r = 4 * (t * run + j), t * tr + 4 * j
                        _sparse_both((mine + q, 0), (source + r, 0), filters + q, address(dx, n, 0, 0) + r,
                                     entries, min(run - j, SPARSE))


@kernel
def _sparse_weights(taps, run, dw, x, xr, entries):
    """The gradient of the filters alone, of several rows of taps at a time."""
    for done in range(0, run, LANES):
        lanes, t = min(run - done, LANES), 0
        while t < taps:
            to, source = (dw + 4 * (t * run + done), 4 * run), (x + t * xr + 4 * done, xr)
            if taps - t >= _SPARSE_ROWS:
                _sparse_rows(to, source, 0, 0, entries, lanes)
                t += _SPARSE_ROWS
            else:
                _sparse_one(to, source, 0, 0, entries, lanes)
                t += 1


@kernel
def pack(rows, columns, a, places, packed):
    """Copy a matrix whose rows are at ``a + places[k]`` to ``packed``, panel by panel, each with rows of
    `PANEL` floats."""
    whole = columns - columns % PANEL
    for k in range(rows):
        source = carray(floats(a + places[k]), (columns,))
        for first in range(0, whole, PANEL):
            target = carray(floats(packed + 4 * (first * rows + k * PANEL)), (PANEL,))
            for j in range(PANEL):
                target[j] = source[first + j]
        target = carray(floats(packed + 4 * (whole * rows + k * PANEL)), (columns - whole,))
        for j in range(columns - whole):
            target[j] = source[whole + j]


@kernel
def transpose(rows, columns, a, t, stride):
    """``t = a.T`` for ``a`` of shape (rows, columns); rows of t are ``stride`` bytes apart."""
    whole_rows, whole_columns = rows - rows % LANES, columns - columns % LANES
    for c in range(0, whole_columns, LANES):
        for r in range(0, whole_rows, LANES):
            transpose_block(a + (r * columns + c) * 4, columns * 4, t + c * stride + r * 4, stride)
    source = carray(floats(a), (rows, columns))
    for c in range(columns):
        target = carray(floats(t + c * stride), (rows,))
        for r in range(whole_rows if c < whole_columns else 0, rows):
            target[r] = source[r, c]


@kernel
def convolve_inputs(b, sizes, dy, w, dx, lists, packed):
    """``dx += dy w.T`` tap by tap, some channels of x at a time.

    ``sizes`` are the channels of x and of dy, the taps, and the channels at a time; ``lists`` are those of
    `convolve`. ``packed`` is scratch for the filters of these channels: rows for each tap and output.
    """
    c, o, taps, together = sizes
    for begin in range(0, c, together):
        count = min(together, c - begin)
        for first in range(0, count, PANEL):
            for k in range(taps):
                panel = packed + 4 * (first * taps + k * PANEL) * o
                transpose(min(PANEL, count - first), o, w + 4 * (k * c + begin + first) * o, panel, 4 * PANEL)
        to = dx[0] + 4 * begin, dx[1]
        convolve(b, count, dy, (packed, 4 * PANEL, 4 * PANEL * taps * o), to, to, lists, _NO_FLOOR)
