"""The innermost loops of the kernels, written as LLVM vectors.

A matrix product is only fast if a small tile of outputs stays in vector registers while the inputs stream
past. numba does not find that form by itself, so it is emitted here, as functions that numba inlines.

Every pointer is an address (int64, from ``array.ctypes.data`` or a plan), strides are in bytes, and all
numbers are float32. LLVM splits vectors that a processor does not have, so the code is correct on any CPU;
`LANES` and `ROWS` only make it fast on this one.
"""
from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
from llvmlite import ir
from numba import config as _config
from numba import types as _types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic as _intrinsic

# Only some of numba's functions have annotations.
config: Any = _config
types: Any = _types
cgutils: Any = _cgutils
intrinsic: Any = _intrinsic


def _processor() -> tuple[int, int]:
    """Lanes of a vector, and rows of a tile: rows * VECTORS sums and some operands must fit in the registers.

    numba's NUMBA_CPU_NAME and NUMBA_CPU_FEATURES choose another processor than this one.
    """
    told = config.CPU_FEATURES
    features = llvmlite.binding.get_host_cpu_features() if told is None else dict.fromkeys(
        re.findall(r"\+([^,]+)", told), True)
    if features.get("avx512f"):
        return 16, 8  # 32 registers of 16
    if features.get("avx"):
        return 8, 4  # 16 registers of 8
    return 4, 4  # SSE and NEON: 16 or 32 registers of 4


LANES, ROWS = _processor()
VECTORS = 2  # width of a tile, at most
SPARSE_VECTORS = 4  # width of `sparse`, at most

_i1, _i32, I64, _f32 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()
_vector = ir.VectorType(_f32, LANES)
ZERO = ir.Constant(_vector, [0.0] * LANES)


def emitted(emit: Any) -> Any:
    """Turn ``emit(b, *arguments)``, which emits code with the builder b, into a function that kernels call.

    Floating-point arguments reach it as float32, all others as int64.
    """
    @functools.wraps(emit)  # numba reads the names of the arguments, except the first
    def typed(context, *given):
        def generate(context, b, signature, arguments):
            emit(b, *arguments)
            return context.get_dummy_value()

        return types.void(*(types.float32 if isinstance(kind, types.Float) else types.int64
                            for kind in given)), generate

    return intrinsic(typed)


def _pointer(b: Any, address: Any, kind: Any) -> Any:
    return b.inttoptr(address, kind.as_pointer())


def _scalar(b: Any, address: Any) -> Any:
    return b.load(_pointer(b, address, _f32), align=4)


def splat(b: Any, value: Any, kind: Any = _vector) -> Any:
    """A number in all lanes."""
    undefined = ir.Constant(kind, ir.Undefined)
    first = b.insert_element(undefined, value, _i32(0))
    return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_i32, LANES), [0] * LANES))


def mask_of(b: Any, lanes: Any) -> Any:
    """The first ``lanes`` lanes, as a vector of booleans."""
    kind = ir.VectorType(I64, LANES)
    return b.icmp_unsigned("<", ir.Constant(kind, list(range(LANES))), splat(b, lanes, kind))


def load(b: Any, address: Any, mask: Any = None) -> Any:
    """Load the masked lanes, or all, from an address."""
    pointer = _pointer(b, address, _vector)
    if mask is None:
        return b.load(pointer, align=4)
    kind = ir.FunctionType(_vector, [pointer.type, _i32, mask.type, _vector])
    function = cgutils.get_or_insert_function(b.module, kind, f"llvm.masked.load.v{LANES}f32.p0")
    return b.call(function, [pointer, _i32(4), mask, ZERO])


def store(b: Any, value: Any, address: Any, mask: Any = None) -> None:
    """Store the masked lanes, or all, to an address."""
    pointer = _pointer(b, address, _vector)
    if mask is None:
        b.store(value, pointer, align=4)
        return
    kind = ir.FunctionType(ir.VoidType(), [_vector, pointer.type, _i32, mask.type])
    function = cgutils.get_or_insert_function(b.module, kind, f"llvm.masked.store.v{LANES}f32.p0")
    b.call(function, [value, pointer, _i32(4), mask])


def _prefetch(b: Any, address: Any) -> None:
    """Prefetch a cache line; the address need not be valid."""
    pointer = _pointer(b, address, ir.IntType(8))
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _i32, _i32, _i32])
    read, keep, data = _i32(0), _i32(3), _i32(1)
    b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0"), [pointer, read, keep, data])


def multiply_add(b: Any, x: Any, y: Any, z: Any) -> Any:
    """``x * y + z``; "contract" lets LLVM use a fused instruction if the processor has one."""
    return b.fadd(b.fmul(x, y, flags=("contract",)), z, flags=("contract",))


def by_width(b: Any, columns: Any, widths: Sequence[int], emit: Any) -> None:
    """Emit ``emit(masks)`` for each of the ``widths``, in vectors; the first that holds the columns runs.

    Only the last vector has a mask.
    """
    width, *wider = widths
    masks = [None] * (width - 1) + [mask_of(b, b.sub(columns, I64((width - 1) * LANES)))]
    if not wider:
        emit(masks)
        return
    with b.if_else(b.icmp_signed("<=", columns, I64(width * LANES))) as (fits, exceeds):
        with fits:
            emit(masks)
        with exceeds:
            by_width(b, columns, wider, emit)


def each_vector(b: Any, address: Any, masks: list[Any]) -> list[tuple[Any, Any]]:
    """Addresses and masks of adjacent vectors."""
    return [(b.add(address, I64(4 * LANES * v)), mask) for v, mask in enumerate(masks)]


def variables(b: Any, count: int) -> list[Any]:
    """Vectors on the stack, which LLVM keeps in registers."""
    return [cgutils.alloca_once(b, _vector) for _ in range(count)]


# The weights of a wide layer come from memory, and their rows are too far apart for the processor's
# prefetcher.
_ROWS_AHEAD = 16


def make_tile(rows: int, widths: Sequence[int] = (1, VECTORS)) -> Any:
    """An intrinsic that computes one tile of a matrix product of strided operands.

    ``tile(a, am, ni, ai, nj, aj, w, wi, wj, c, cm, start, sm, floor, columns)`` computes, for m < rows and
    n < columns,

        c[m, n] = max(start[m, n] + sum_{i < ni, j < nj} a[m*am + i*ai + j*aj] * w[i*wi + j*wj + n], floor)

    in one of the ``widths``, counted in vectors; the last holds all columns. ``c`` has row stride ``cm``,
    ``start`` (bias, zeros, or ``c`` itself to accumulate) row stride ``sm``. The strides decide whether a
    tile is part of a convolution, of its weight gradient or of a linear layer.
    """

    @emitted
    def tile(b, a, am, ni, ai, nj, aj, w, wi, wj, c, cm, start, sm, floor, columns):
        def of_width(masks: list[Any]) -> None:
            sums = [variables(b, len(masks)) for _ in range(rows)]
            for m, row_sums in enumerate(sums):
                begin = each_vector(b, b.add(start, b.mul(sm, I64(m))), masks)
                for total, (address, mask) in zip(row_sums, begin, strict=True):
                    b.store(load(b, address, mask), total)
            offsets = [b.mul(am, I64(m)) for m in range(rows)]
            with cgutils.for_range(b, ni) as outer:
                row = b.add(a, b.mul(outer.index, ai))
                base = [b.add(row, offset) for offset in offsets]
                weights = b.add(w, b.mul(outer.index, wi))
                with cgutils.for_range(b, nj) as inner:
                    here = b.add(weights, b.mul(inner.index, wj))
                    for address, _ in each_vector(b, b.add(here, b.mul(wj, I64(_ROWS_AHEAD))), masks):
                        _prefetch(b, address)
                    loaded = [load(b, address, mask) for address, mask in each_vector(b, here, masks)]
                    step = b.mul(inner.index, aj)
                    for m, row_sums in enumerate(sums):
                        value = splat(b, _scalar(b, b.add(base[m], step)))
                        for total, weight in zip(row_sums, loaded, strict=True):
                            b.store(multiply_add(b, value, weight, b.load(total)), total)
            least = splat(b, floor)
            for m, row_sums in enumerate(sums):
                to = each_vector(b, b.add(c, b.mul(cm, I64(m))), masks)
                for total, (address, mask) in zip(row_sums, to, strict=True):
                    store(b, above(b, b.load(total), least), address, mask)

        by_width(b, columns, widths, of_width)

    return tile


def above(b: Any, value: Any, least: Any) -> Any:
    """The larger of two vectors; a NaN passes through instead of becoming the floor."""
    return b.select(b.fcmp_ordered("<", value, least), least, value)


@emitted
def sparse(b, dw, x, w, dx, offsets, values, count, columns):
    """One row of taps of a convolution whose output gradient has few entries ``g_p`` at offsets ``o_p``.

    ``sparse(dw, x, w, dx, offsets, values, count, columns)`` computes ``dw[k] += sum_p g_p * x[o_p + k]``
    and, for every p in turn, ``dx[o_p + k] += g_p * w[k]``, for k < columns, at most those of
    `SPARSE_VECTORS` vectors.
    """

    def of_width(masks: list[Any]) -> None:
        weights = [load(b, address, mask) for address, mask in each_vector(b, w, masks)]

        def inputs(offset: Any, g: Any) -> None:
            to = each_vector(b, b.add(dx, offset), masks)
            for (address, mask), weight in zip(to, weights, strict=True):
                store(b, multiply_add(b, g, weight, load(b, address, mask)), address, mask)

        _sum_entries(b, each_vector(b, dw, masks), each_vector(b, x, masks), offsets, values, count, inputs)

    by_width(b, columns, range(1, SPARSE_VECTORS + 1), of_width)


def make_sparse_rows(rows: int) -> Any:
    """`sparse` without dx, for ``rows`` rows of taps of one vector each: independent sums hide the latency.

    ``sparse_rows(dw, wr, x, xr, offsets, values, count, lanes)``: row r of ``dw`` starts at ``r*wr``, that of
    ``x`` at ``r*xr``.
    """

    @emitted
    def sparse_rows(b, dw, wr, x, xr, offsets, values, count, lanes):
        mask = mask_of(b, lanes)
        to = [(b.add(dw, b.mul(wr, I64(r))), mask) for r in range(rows)]
        source = [(b.add(x, b.mul(xr, I64(r))), mask) for r in range(rows)]
        _sum_entries(b, to, source, offsets, values, count)

    return sparse_rows


def _sum_entries(b: Any, to: Any, source: Any, offsets: Any, values: Any, count: Any,
                 more: Any = None) -> None:
    """Emit ``to += sum_p g_p * source[o_p]`` for vectors with masks, and ``more(o_p, g_p)`` for each p."""
    sums = variables(b, len(to))
    for total, (address, mask) in zip(sums, to, strict=True):
        b.store(load(b, address, mask), total)
    with cgutils.for_range(b, count) as loop:
        offset = b.load(_pointer(b, b.add(offsets, b.mul(loop.index, I64(8))), I64))
        g = splat(b, _scalar(b, b.add(values, b.mul(loop.index, I64(4)))))
        for total, (address, mask) in zip(sums, source, strict=True):
            value = load(b, b.add(address, offset), mask)
            b.store(multiply_add(b, g, value, b.load(total)), total)
        if more is not None:
            more(offset, g)
    for total, (address, mask) in zip(sums, to, strict=True):
        store(b, b.load(total), address, mask)


def make_transform(matrix: tuple[tuple[float, ...], ...], added: bool) -> Any:
    """An intrinsic that computes ``A X A.T`` for one tile X of vectors and a small constant matrix A.

    ``transform(x, xi, xj, y, yi, yj, start, si, sj, floor, lanes)`` processes ``lanes`` channels: element
    (i, j) of X is at ``x + i*xi + j*xj``. If ``added``, the result is ``max(start + A X A.T, floor)``, else
    the four arguments after yj are ignored.
    """
    size = len(matrix[0])

    def combine(b: Any, row: tuple[float, ...], values: list[Any]) -> Any:
        """Sum of factor * value; entries 0, 1 and -1 cost no multiplication."""
        total = None
        for factor, value in sorted(zip(row, values, strict=True), key=lambda pair: -pair[0]):
            if abs(factor) not in (0, 1):
                value = b.fmul(value, ir.Constant(_vector, [abs(factor)] * LANES))
            if factor and total is None:
                total = value if factor > 0 else b.fsub(ZERO, value)
            elif factor:
                total = b.fadd(total, value) if factor > 0 else b.fsub(total, value)
        return total

    @emitted
    def transform(b, x, xi, xj, y, yi, yj, start, si, sj, floor, lanes):
        mask, least = mask_of(b, lanes), splat(b, floor)

        def place(address: Any, row: Any, column: Any, i: int, j: int) -> Any:
            return b.add(b.add(address, b.mul(row, I64(i))), b.mul(column, I64(j)))

        tile = [[load(b, place(x, xi, xj, i, j), mask) for j in range(size)] for i in range(size)]
        half = [[combine(b, row, [tile[i][j] for i in range(size)]) for j in range(size)] for row in matrix]
        for i in range(len(matrix)):
            for j, row in enumerate(matrix):
                value = combine(b, row, half[i])
                if added:
                    value = b.fadd(value, load(b, place(start, si, sj, i, j), mask))
                    value = above(b, value, least)
                store(b, value, place(y, yi, yj, i, j), mask)

    return transform


@emitted
def transpose_block(b, a, ar, t, tr, accumulate):
    """``t = a.T``, or to ``accumulate`` ``t += a.T``, for LANES x LANES; row strides ``ar`` and ``tr``."""
    rows = [load(b, b.add(a, b.mul(ar, I64(i)))) for i in range(LANES)]
    size = 1
    while size < LANES:
        # Exchange the off-diagonal quarters of all blocks of 2 size x 2 size.
        for i in (i for i in range(LANES) if not i & size):
            upper = [j if not j & size else LANES + j - size for j in range(LANES)]
            lower = [j + size if not j & size else LANES + j for j in range(LANES)]
            kind = ir.VectorType(_i32, LANES)
            pair = rows[i], rows[i + size]
            rows[i] = b.shuffle_vector(*pair, ir.Constant(kind, upper))
            rows[i + size] = b.shuffle_vector(*pair, ir.Constant(kind, lower))
        size *= 2
    targets = [b.add(t, b.mul(tr, I64(i))) for i in range(LANES)]
    with b.if_else(b.trunc(accumulate, _i1)) as (add, overwrite):
        with add:
            for row, target in zip(rows, targets, strict=True):
                store(b, b.fadd(row, load(b, target)), target)
        with overwrite:
            for row, target in zip(rows, targets, strict=True):
                store(b, row, target)


# Sizes, strides and addresses, and the floor.
PRODUCT = types.void(*[types.int64] * 16, types.float32)


@intrinsic
def call_product(context, m, n, a, am, ni, ai, nj, aj, w, wi, wj, wp, c, cm, start, sm, floor):
    """Call `refsgd.problems.nn.kernels.product` through the linker, so that it is not copied into callers.

    ``call_product(m, n, a, am, ni, ai, nj, aj, w, wi, wj, wp, c, cm, start, sm, floor)``
    """

    def generate(context, b, signature, arguments):
        convention = context.call_conv
        kind = convention.get_function_type(signature.return_type, signature.args)
        function = cgutils.get_or_insert_function(b.module, kind, call_product.__name__)
        convention.call_function(b, function, signature.return_type, signature.args, arguments)
        return context.get_dummy_value()

    return PRODUCT, generate


@intrinsic
def floats(context, address):
    """``address`` as a pointer to float32, for `numba.carray`."""

    def generate(context, b, signature, arguments):
        return _pointer(b, arguments[0], _f32)

    return types.CPointer(types.float32)(types.int64), generate
