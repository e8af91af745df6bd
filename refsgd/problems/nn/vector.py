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

import llvmlite.binding
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic


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
        return 8, 6  # 16 registers of 8
    return 4, 4  # SSE and NEON: 16 or 32 registers of 4


LANES, ROWS = _processor()
VECTORS = 2  # width of a tile, at most

I32, I64 = (ir.IntType(bits) for bits in (32, 64))
_f32 = ir.FloatType()
_vector = ir.VectorType(_f32, LANES)
ZERO = ir.Constant(_vector, [0.0] * LANES)


def emitted(emit: Any) -> Any:
    """Turn ``emit(b, *arguments)``, which emits code with the builder b, into a function that kernels call.

    Floating-point arguments reach it as float32, all others as int64, alone or in tuples.
    """
    @functools.wraps(emit)  # numba reads the names of the arguments, except the first
    def typed(context, *given):
        def generate(context, b, signature, arguments):
            emit(b, *(cgutils.unpack_tuple(b, value) if isinstance(kind, types.BaseTuple) else value
                      for kind, value in zip(signature.args, arguments, strict=True)))
            return context.get_dummy_value()

        return types.void(*(types.UniTuple(types.int64, len(kind)) if isinstance(kind, types.BaseTuple)
                            else types.float32 if isinstance(kind, types.Float) else types.int64
                            for kind in given)), generate

    return intrinsic(typed)


def _pointer(b: Any, address: Any, kind: Any) -> Any:
    return b.inttoptr(address, kind.as_pointer())


def _scalar(b: Any, address: Any) -> Any:
    return b.load(_pointer(b, address, _f32), align=4)


def splat(b: Any, value: Any, kind: Any = _vector) -> Any:
    """A number in all lanes."""
    undefined = ir.Constant(kind, ir.Undefined)
    first = b.insert_element(undefined, value, I32(0))
    return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, LANES), [0] * LANES))


def mask_of(b: Any, lanes: Any) -> Any:
    """The first ``lanes`` lanes, as a vector of booleans."""
    kind = ir.VectorType(I64, LANES)
    return b.icmp_unsigned("<", ir.Constant(kind, list(range(LANES))), splat(b, lanes, kind))


def load(b: Any, address: Any, mask: Any = None) -> Any:
    """Load the masked lanes, or all, from an address."""
    pointer = _pointer(b, address, _vector)
    if mask is None:
        return b.load(pointer, align=4)
    kind = ir.FunctionType(_vector, [pointer.type, I32, mask.type, _vector])
    function = cgutils.get_or_insert_function(b.module, kind, f"llvm.masked.load.v{LANES}f32.p0")
    return b.call(function, [pointer, I32(4), mask, ZERO])


def store(b: Any, value: Any, address: Any, mask: Any = None) -> None:
    """Store the masked lanes, or all, to an address."""
    pointer = _pointer(b, address, _vector)
    if mask is None:
        b.store(value, pointer, align=4)
        return
    kind = ir.FunctionType(ir.VoidType(), [_vector, pointer.type, I32, mask.type])
    function = cgutils.get_or_insert_function(b.module, kind, f"llvm.masked.store.v{LANES}f32.p0")
    b.call(function, [value, pointer, I32(4), mask])


def multiply_add(b: Any, x: Any, y: Any, z: Any) -> Any:
    """``x * y + z``; "contract" lets LLVM use a fused instruction if the processor has one."""
    return b.fadd(b.fmul(x, y, flags=("contract",)), z, flags=("contract",))


def by_width(b: Any, columns: Any, widths: Sequence[int], emit: Any) -> None:
    """Emit ``emit(masks)`` for each of the ``widths``, in vectors; the first that holds the columns runs.

    Only the last vector has a mask, and none if the columns fill it: without AVX-512, a mask costs as much
    as a product.
    """
    width, *wider = widths
    whole = I64(width * LANES)

    def fitting() -> None:
        with b.if_else(b.icmp_signed("==", columns, whole)) as (full, partial):
            with full:
                emit([None] * width)
            with partial:
                emit([None] * (width - 1) + [mask_of(b, b.sub(columns, I64((width - 1) * LANES)))])

    if not wider:
        fitting()
        return
    with b.if_else(b.icmp_signed("<=", columns, whole)) as (fits, exceeds):
        with fits:
            fitting()
        with exceeds:
            by_width(b, columns, wider, emit)


def each_vector(b: Any, address: Any, masks: list[Any]) -> list[tuple[Any, Any]]:
    """Addresses and masks of adjacent vectors."""
    return [(b.add(address, I64(4 * LANES * v)), mask) for v, mask in enumerate(masks)]


def variables(b: Any, count: int) -> list[Any]:
    """Vectors on the stack, which LLVM keeps in registers."""
    return [cgutils.alloca_once(b, _vector) for _ in range(count)]


def make_tile(height: int) -> Any:
    """An intrinsic that computes one tile of a matrix product whose operands are found through lists.

    ``tile(count, (a, rows, steps), (w, wk), (c, targets), (start, begins), floor, columns)`` computes, for
    m < height and n < columns (at most `VECTORS` vectors),

        c[targets[m] + n] = max(start[begins[m] + n] + sum_{k < count} a[rows[m] + steps[k]] * w[k*wk + n],
                                floor)

    ``w`` is one panel: its rows have whole vectors, the last of them filled with anything. ``rows``,
    ``steps``, ``targets`` and ``begins`` are addresses of lists of offsets in bytes (int64); ``start`` is a
    bias, zeros, or ``c`` itself to accumulate. The lists decide whether a tile is part of a
    convolution, of its weight gradient or of a linear layer.
    """

    @emitted
    def tile(b, count, a, w, c, start, floor, columns):
        def entry(offsets: Any, k: Any) -> Any:
            return b.load(_pointer(b, b.add(offsets, b.mul(k, I64(8))), I64))

        def of_width(masks: list[Any]) -> None:
            sums = [variables(b, len(masks)) for _ in range(height)]
            for m, row_sums in enumerate(sums):
                begin = each_vector(b, b.add(start[0], entry(start[1], I64(m))), masks)
                for total, (address, mask) in zip(row_sums, begin, strict=True):
                    b.store(load(b, address, mask), total)
            bases = [b.add(a[0], entry(a[1], I64(m))) for m in range(height)]
            with cgutils.for_range(b, count) as loop:
                here = b.add(w[0], b.mul(loop.index, w[1]))
                weights = [load(b, address) for address, _ in each_vector(b, here, masks)]
                step = entry(a[2], loop.index)
                for base, row_sums in zip(bases, sums, strict=True):
                    value = splat(b, _scalar(b, b.add(base, step)))
                    for total, weight in zip(row_sums, weights, strict=True):
                        b.store(multiply_add(b, value, weight, b.load(total)), total)
            least = splat(b, floor)
            for m, row_sums in enumerate(sums):
                to = each_vector(b, b.add(c[0], entry(c[1], I64(m))), masks)
                for total, (address, mask) in zip(row_sums, to, strict=True):
                    store(b, above(b, b.load(total), least), address, mask)

        by_width(b, columns, range(1, VECTORS + 1), of_width)

    return tile


def above(b: Any, value: Any, least: Any) -> Any:
    """The larger of two vectors; a NaN passes through instead of becoming the floor."""
    return b.select(b.fcmp_ordered("<", value, least), least, value)


def make_sparse(rows: int, vectors: int, inputs: bool) -> Any:
    """An intrinsic for ``rows`` rows of taps of a convolution whose output gradient has few entries ``g_p``,
    at offsets ``o_p``.

    ``sparse((dw, wr), (x, xr), w, dx, (offsets, values, count), columns)`` computes, for k < columns, at most
    those of the ``vectors``, ``dw[k] += sum_p g_p * x[o_p + k]`` and, if ``inputs``, ``dx[o_p + k] += g_p *
    w[k]`` for every p in turn. Rows of dw are ``wr`` apart, those of x ``xr``; several rows are independent
    sums, which hide the latency of an addition.
    """

    @emitted
    def sparse(b, dw, x, w, dx, entries, columns):
        offsets, values, count = entries

        def of_width(masks: list[Any]) -> None:
            to, source = ([place for r in range(rows)
                           for place in each_vector(b, b.add(first, b.mul(stride, I64(r))), masks)]
                          for first, stride in (dw, x))
            weights = [load(b, *place) for place in each_vector(b, w, masks)] if inputs else []
            sums = variables(b, len(to))
            for total, place in zip(sums, to, strict=True):
                b.store(load(b, *place), total)
            with cgutils.for_range(b, count) as loop:
                offset = b.load(_pointer(b, b.add(offsets, b.mul(loop.index, I64(8))), I64))
                g = splat(b, _scalar(b, b.add(values, b.mul(loop.index, I64(4)))))
                for total, (address, mask) in zip(sums, source, strict=True):
                    value = load(b, b.add(address, offset), mask)
                    b.store(multiply_add(b, g, value, b.load(total)), total)
                for place, weight in zip(each_vector(b, b.add(dx, offset), masks), weights, strict=False):
                    store(b, multiply_add(b, g, weight, load(b, *place)), *place)
            for total, place in zip(sums, to, strict=True):
                store(b, b.load(total), *place)

        by_width(b, columns, range(1, vectors + 1), of_width)

    return sparse


@emitted
def transpose_block(b, a, ar, t, tr):
    """``t = a.T`` for LANES x LANES; row strides ``ar`` and ``tr``."""
    rows = [load(b, b.add(a, b.mul(ar, I64(i)))) for i in range(LANES)]
    size = 1
    while size < LANES:
        # Exchange the off-diagonal quarters of all blocks of 2 size x 2 size.
        for i in (i for i in range(LANES) if not i & size):
            upper = [j if not j & size else LANES + j - size for j in range(LANES)]
            lower = [j + size if not j & size else LANES + j for j in range(LANES)]
            kind = ir.VectorType(I32, LANES)
            pair = rows[i], rows[i + size]
            rows[i] = b.shuffle_vector(*pair, ir.Constant(kind, upper))
            rows[i + size] = b.shuffle_vector(*pair, ir.Constant(kind, lower))
        size *= 2
    for i, row in enumerate(rows):
        store(b, row, b.add(t, b.mul(tr, I64(i))))


@intrinsic
def floats(context, address):
    """``address`` as a pointer to float32, for `numba.carray`."""

    def generate(context, b, signature, arguments):
        return _pointer(b, arguments[0], _f32)

    return types.CPointer(types.float32)(types.int64), generate
