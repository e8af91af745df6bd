"""Compiled kernels for the layers of `refsgd.problems.nn.layers`, in float32.

Kernels take addresses, sizes and strides (in bytes unless stated otherwise) and check nothing. Only
`refsgd.problems.nn.plan` calls them, and tests compare each with its definition in
`refsgd.problems.nn.layers`. They release the interpreter lock, use one thread, and add in an order that
depends only on the shapes.

All kernels use these names:

* ``sizes``: ``b`` images, and the ``rows`` and ``columns`` of their outputs; ``height`` and ``width`` are
  those of their inputs;
* ``c`` channels of the input, ``o`` channels of the output;
* ``patch``: ``taps``, the rows of a filter, ``tr`` apart, each ``run`` consecutive floats long;
* ``size``: side of a pooling window; its ``stride`` and ``pad``, in pixels;
* ``x`` input, ``y`` output, ``dx`` and ``dy`` their gradients: places of images, that is, an address and the
  strides from one image, row and pixel to the next;
* ``w`` weights, ``bias``, ``dw``, ``db`` their gradients: addresses;
* ``start``: the initial value of a sum; ``floor``: the lower bound of a result, 0 for relu, else minus
  infinity.
"""
from __future__ import annotations

from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core.caching import FunctionCache

from refsgd.problems.nn.kernel_cache import kept
from refsgd.problems.nn.vector import (
    LANES,
    PRODUCT,
    ROWS,
    SPARSE_VECTORS,
    VECTORS,
    call_product,
    floats,
    make_sparse_rows,
    make_tile,
    sparse,
    transpose_block,
)


class Cache(FunctionCache):
    """numba's disk cache, with a key that also covers the other source files of a kernel."""

    GENERATORS = ("vector.py", "pixels.py", "kernels.py")  # the intrinsics, and the kernels that others call

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The kernel on disk, if there is one; numba calls this before it compiles."""
        if self._py_func is not product.py_func:
            _link_product()
        return super().load_overload(signature, target_context)  # type: ignore[no-untyped-call]

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        own = super()._index_key(signature, codegen)  # type: ignore[no-untyped-call]
        return (*own, _generated(self.GENERATORS), LANES, ROWS, VECTORS)


@lru_cache
def _generated(files: tuple[str, ...]) -> str:
    """A hash of source files beside this one, where they exist."""
    folder = Path(__file__).parent
    return sha256(b"".join(path.read_bytes() for path in map(folder.joinpath, files)
                           if path.is_file())).hexdigest()


@cache
def _link_product() -> None:
    """Compile or load `product` and give the linker its address, so that no kernel compiles a copy of it."""
    product.compile(PRODUCT.args)
    found = product.overloads[PRODUCT.args]
    llvmlite.binding.add_symbol(call_product.__name__,
                                found.library.get_pointer_to_function(found.fndesc.llvm_func_name))


# Sums may be reordered and multiplications fused, but NaN and infinity keep their meaning.
_compile: Any = numba.njit(  # type: ignore[call-overload]
    nogil=True, boundscheck=False, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"},
    no_cfunc_wrapper=True
)


def kernel(function: Any) -> Any:
    """Compile a function on its first call, and keep it on disk."""
    compiled = _compile(function)
    if kept():  # as numba's `cache=True`, with the cache above
        compiled._cache = Cache(function)  # type: ignore[no-untyped-call]
    return compiled


carray: Any = numba.carray  # type: ignore[attr-defined]

_HALF = ROWS // 2
_tile_full, _tile_half, _tile_row = make_tile(ROWS), make_tile(_HALF), make_tile(1)
_tile_tall = make_tile(2 * ROWS, widths=(1,))  # fewer sums would wait for one another
_sparse_rows_1, _sparse_rows_3, _sparse_rows_5 = (make_sparse_rows(r) for r in (1, 3, 5))

PANEL = LANES * VECTORS
_NO_FLOOR = np.float32(-np.inf)
FLOAT = 4  # bytes
# For `transpose`; for numba, a literal 0 is another type, so the kernel would be compiled twice.
OVERWRITE, ACCUMULATE = np.int64(0), np.int64(1)
_ZERO = np.float32(0)
# Pixels of a 2x2 window in reading order, and "none": the largest was not positive.
_FIRST, _SECOND, _THIRD, _FOURTH, _NOWHERE = (np.uint8(i) for i in range(5))


@numba.njit(inline="always")
def address(place, n, r, c):
    """The address of pixel ``(r, c)`` of image ``n``, from the ``place`` of the first."""
    first, image, row, column = place
    return first + n * image + r * row + c * column


@numba.njit(inline="always")
def pixel(place, n, r, c, count):
    """The ``count`` floats from pixel ``(r, c)`` of image ``n`` on, from the ``place`` of the first."""
    return carray(floats(address(place, n, r, c)), (count,))


@kernel
def product(m, n, a, am, ni, ai, nj, aj, w, wi, wj, wp, c, cm, start, sm, floor):
    """``c = max(start + a w, floor)`` for ``m x n`` outputs, each a sum of ``ni x nj`` products.

    `make_tile` states the formula. Strides: ``am``, ``ai``, ``aj`` of a; ``wi``, ``wj`` of w; ``cm``, ``sm``
    of the rows of c and start. Panels of `PANEL` columns of w are ``wp * PANEL`` apart: ``wp`` is 4 for a
    plain matrix, more for one that was packed panel by panel.
    """
    for first in range(0, n, PANEL):
        columns = min(n - first, PANEL)
        panel, target, begin = w + wp * first, c + 4 * first, start + 4 * first
        k = 0
        while k < m:
            p, q, s = a + k * am, target + k * cm, begin + k * sm
            if columns <= LANES and m - k >= 2 * ROWS:
                _tile_tall(p, am, ni, ai, nj, aj, panel, wi, wj, q, cm, s, sm, floor, columns)
                k += 2 * ROWS
            elif m - k >= ROWS:
                _tile_full(p, am, ni, ai, nj, aj, panel, wi, wj, q, cm, s, sm, floor, columns)
                k += ROWS
            elif m - k >= _HALF:
                _tile_half(p, am, ni, ai, nj, aj, panel, wi, wj, q, cm, s, sm, floor, columns)
                k += _HALF
            else:
                _tile_row(p, am, ni, ai, nj, aj, panel, wi, wj, q, cm, s, sm, floor, columns)
                k += 1


@kernel
def convolve(sizes, x, patch, w, o, start, y, floor):
    """``y[n, r, c, :] = max(start + sum over taps of x w, floor)``.

    The strides of x are those from one output to the next; ``w`` has shape (taps, run, o). ``start`` is a
    bias (strides 0) or y itself, to add to it. A linear layer is one image with a row of b columns.
    """
    (b, rows, columns), (taps, tr, run) = sizes, patch
    for n in range(b):
        for r in range(rows):
            call_product(
                columns, o, address(x, n, r, 0), x[3], taps, tr, run, FLOAT, w, run * o * 4, o * 4, FLOAT,
                address(y, n, r, 0), y[3], address(start, n, r, 0), start[3], floor)


@kernel
def convolve_weights(sizes, x, patch, dy, o, dw):
    """``dw += x * dy`` summed over images and positions; ``x`` and ``patch`` as in `convolve`."""
    (b, rows, columns), (taps, tr, run) = sizes, patch
    for n in range(b):
        for t in range(taps):
            g = dw + t * run * o * 4
            call_product(
                run, o, address(x, n, 0, 0) + t * tr, FLOAT, rows, x[2], columns, x[3],
                address(dy, n, 0, 0), dy[2], dy[3], FLOAT, g, o * 4, g, o * 4, _NO_FLOOR)


@kernel
def convolve_pool(sizes, x, patch, w, bias, o, scratch, y, winner):
    """`convolve`, relu and 2x2 max-pooling at once: y has ``rows // 2`` rows and ``columns // 2`` columns.

    ``winner`` (uint8, flat, as if y had no border) is the largest pixel of each window, or "none" if it was
    not positive. ``scratch`` holds two rows of the convolution, which stay in the cache. Relu comes after the
    maximum, with the same result and less work. An odd last row or column is not computed.
    """
    (b, rows, columns), (taps, tr, run) = sizes, patch
    half = columns // 2
    row = 2 * half * o * 4
    for n in range(b):
        for r in range(rows // 2):
            for k in range(2):
                call_product(
                    2 * half, o, address(x, n, 2 * r + k, 0), x[3], taps, tr, run, FLOAT, w, run * o * 4,
                    o * 4, FLOAT, scratch + k * row, o * 4, bias, 0, _NO_FLOOR)
            first = (n * (rows // 2) + r) * half * o
            for c in range(half):
                p = scratch + 2 * c * o * 4
                p0, p1 = carray(floats(p), (o,)), carray(floats(p + o * 4), (o,))
                p2, p3 = carray(floats(p + row), (o,)), carray(floats(p + row + o * 4), (o,))
                out = pixel(y, n, r, c, o)
                where = winner[first + c * o : first + (c + 1) * o]
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
            mine, source = dw + k * taps * run * 4, address(x, n, 0, 0)
            if dx[0] == 0:
                _sparse_weights(taps, run, mine, source, tr, at, vals, count)
            else:
                for t in range(taps):
                    _sparse_row(run, mine + t * run * 4, source + t * tr, w + (k * taps + t) * run * 4,
                                address(dx, n, 0, 0) + t * tr, at, vals, count)


@kernel
def _sparse_row(run, dw, x, w, dx, at, values, count):
    most = SPARSE_VECTORS * LANES
    for done in range(0, run, most):
        q = 4 * done
        sparse(dw + q, x + q, w + q, dx + q, at, values, count, min(run - done, most))


@kernel
def _sparse_weights(taps, run, dw, x, xr, at, values, count):
    for done in range(0, run, LANES):
        lanes, q = min(run - done, LANES), 4 * done
        t = 0
        while t < taps:
            target, source = dw + t * run * 4 + q, x + t * xr + q
            if taps - t >= 5:
                _sparse_rows_5(target, run * 4, source, xr, at, values, count, lanes)
                t += 5
            elif taps - t >= 3:
                _sparse_rows_3(target, run * 4, source, xr, at, values, count, lanes)
                t += 3
            else:
                _sparse_rows_1(target, run * 4, source, xr, at, values, count, lanes)
                t += 1


@kernel
def transpose(rows, columns, a, t, accumulate):
    """``t = a.T``, or if ``accumulate`` is 1 ``t += a.T``, for ``a`` of shape (rows, columns)."""
    whole_rows, whole_columns = rows - rows % LANES, columns - columns % LANES
    for c in range(0, whole_columns, LANES):
        for r in range(0, whole_rows, LANES):
            source_at, target_at = a + (r * columns + c) * 4, t + (c * rows + r) * 4
            transpose_block(source_at, columns * 4, target_at, rows * 4, accumulate)
    source, target = carray(floats(a), (rows, columns)), carray(floats(t), (columns, rows))
    for r in range(rows):
        for c in range(whole_columns if r < whole_rows else 0, columns):
            if accumulate:
                target[c, r] += source[r, c]
            else:
                target[c, r] = source[r, c]


@kernel
def linear_inputs(b, inputs, outputs, dy, w, turned, zeros, dx):
    """``dx = dy @ w.T`` for ``w`` of shape ``(inputs, outputs)``.

    ``turned`` is scratch for one transposed panel of w; ``zeros`` is a panel's row of zeros.
    """
    for first in range(0, inputs, PANEL):
        width = min(PANEL, inputs - first)
        transpose(width, outputs, w + first * outputs * 4, turned, OVERWRITE)
        call_product(
            b, width, dy, outputs * 4, 1, 0, outputs, FLOAT, turned, 0, width * 4, FLOAT,
            dx + first * 4, inputs * 4, zeros, 0, _NO_FLOOR)


@kernel
def convolve_by_pixel(sizes, x, image, patch, w, o, start, y, floor):
    """`convolve` for small images: the images are the rows of the product, and taps outside are skipped.

    ``x`` is the place of the first pixel inside the border, ``image`` the shape (height, width, c), and
    ``patch`` is taps, pad and stride.
    """
    (b, rows, columns), (height, width, c), (taps, pad, stride) = sizes, image, patch
    for first in range(0, o, PANEL):  # all pixels use a panel of the weights while it is in the cache
        shift = 4 * first
        for r in range(rows):
            i0, i1 = max(0, pad - r * stride), min(taps, height + pad - r * stride)
            for q in range(columns):
                j0, j1 = max(0, pad - q * stride), min(taps, width + pad - q * stride)
                source = address(x, 0, r * stride + i0 - pad, q * stride + j0 - pad)
                panel = w + (i0 * taps + j0) * c * o * 4 + shift
                call_product(
                    b, min(PANEL, o - first), source, x[1], i1 - i0, x[2], (j1 - j0) * c, FLOAT, panel,
                    taps * c * o * 4, o * 4, FLOAT,
                    address(y, 0, r, q) + shift, y[1], address(start, 0, r, q) + shift, start[1], floor)


@kernel
def convolve_weights_by_pixel(sizes, x, image, patch, dy, o, dw):
    """`convolve_weights` for small images; ``image`` and ``patch`` as in `convolve_by_pixel`."""
    (b, rows, columns), (height, width, c), (taps, pad, stride) = sizes, image, patch
    for i in range(taps):
        for j in range(taps):
            # The outputs whose input pixel under this tap lies in the image.
            r0, r1 = max(0, -((i - pad) // stride)), min(rows, (height - 1 - i + pad) // stride + 1)
            q0, q1 = max(0, -((j - pad) // stride)), min(columns, (width - 1 - j + pad) // stride + 1)
            g = dw + (i * taps + j) * c * o * 4
            for r in range(r0, r1):
                source = address(x, 0, r * stride + i - pad, q0 * stride + j - pad)
                call_product(
                    c, o, source, FLOAT, b, x[1], max(0, q1 - q0), stride * x[3], address(dy, 0, r, q0),
                    dy[1], dy[3], FLOAT, g, o * 4, g, o * 4, _NO_FLOOR)
