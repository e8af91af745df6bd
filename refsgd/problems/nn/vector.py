"""The innermost loops of the kernels, written as LLVM vectors.

numba compiles plain loops over one output at a time; a matrix product is only fast if a small tile of outputs
stays in vector registers while the inputs stream past. The compilers do not find that form by themselves, so
it is emitted here, as functions that numba inlines.

Every pointer is an address (int64, from ``array.ctypes.data`` or a plan), every stride counts bytes, and all
numbers are float32. LLVM splits vectors that a processor does not have, so the code is right on any CPU;
`LANES` and `TILE` only make it fast on this one.
"""
from __future__ import annotations

import re
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
from llvmlite import ir
from numba import config as _config
from numba import types as _types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic as _intrinsic

# numba carries annotations for some of its functions only.
config: Any = _config
types: Any = _types
cgutils: Any = _cgutils
intrinsic: Any = _intrinsic


def _processor() -> tuple[int, int, int]:
    """Lanes of a vector, and rows and vectors of a tile: rows * vectors sums and some operands must fit in
    the registers.

    numba's own NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say what to compile for, where it is not this processor.
    """
    told = config.CPU_FEATURES
    features = llvmlite.binding.get_host_cpu_features() if told is None else dict.fromkeys(
        re.findall(r"\+([^,]+)", told), True)
    if features.get("avx512f"):
        return 16, 8, 2  # 32 registers of 16
    if features.get("avx"):
        return 8, 4, 2  # 16 registers of 8
    return 4, 4, 2  # SSE and NEON: 16 or 32 registers of 4


LANES, ROWS, VECTORS = _processor()

_i1, _i32, I64, _f32 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()
_vector = ir.VectorType(_f32, LANES)
ZERO = ir.Constant(_vector, [0.0] * LANES)


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
    """Some lanes from an address; all without a mask."""
    pointer = _pointer(b, address, _vector)
    if mask is None:
        return b.load(pointer, align=4)
    kind = ir.FunctionType(_vector, [pointer.type, _i32, mask.type, _vector])
    function = cgutils.get_or_insert_function(b.module, kind, f"llvm.masked.load.v{LANES}f32.p0")
    return b.call(function, [pointer, _i32(4), mask, ZERO])


def store(b: Any, value: Any, address: Any, mask: Any = None) -> None:
    """Some lanes to an address; all without a mask."""
    pointer = _pointer(b, address, _vector)
    if mask is None:
        b.store(value, pointer, align=4)
        return
    kind = ir.FunctionType(ir.VoidType(), [_vector, pointer.type, _i32, mask.type])
    function = cgutils.get_or_insert_function(b.module, kind, f"llvm.masked.store.v{LANES}f32.p0")
    b.call(function, [value, pointer, _i32(4), mask])


def _prefetch(b: Any, address: Any) -> None:
    """Ask for a line of the memory before it is needed; any address will do."""
    pointer = _pointer(b, address, ir.IntType(8))
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _i32, _i32, _i32])
    read, keep, data = _i32(0), _i32(3), _i32(1)
    b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0"), [pointer, read, keep, data])


def multiply_add(b: Any, x: Any, y: Any, z: Any) -> Any:
    """``x * y + z``: "contract" lets LLVM use one fused instruction where the processor has it."""
    return b.fadd(b.fmul(x, y, flags=("contract",)), z, flags=("contract",))


def variables(b: Any, count: int) -> list[Any]:
    """Vectors on the stack, which LLVM keeps in registers."""
    return [cgutils.alloca_once(b, _vector) for _ in range(count)]


# The weights of a wide layer come from the memory, and their rows are too far apart for the processor to
# guess which is next.
_ROWS_AHEAD = 16


def make_tile(rows: int, vectors: int) -> Any:
    """An intrinsic that computes one tile of a matrix product whose operands lie anywhere.

    ``tile(a, am, ni, ai, nj, aj, w, wi, wj, c, cm, start, sm, floor, lanes)`` computes, for m < rows and n <
    columns,

        c[m, n] = max(start[m, n] + sum_{i < ni, j < nj} a[m*am + i*ai + j*aj] * w[i*wi + j*wj + n], floor)

    with ``columns = (vectors - 1) * LANES + lanes``; ``c`` has row stride ``cm``, ``start`` (bias, zeros, or
    ``c`` itself to accumulate) row stride ``sm``. One such tile is a piece of a convolution, of its weight
    gradient or of a linear layer, depending on the strides.
    """

    @intrinsic
    def tile(context, a, am, ni, ai, nj, aj, w, wi, wj, c, cm, start, sm, floor, lanes):  # type: ignore[no-untyped-def]
        def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
            a, am, ni, ai, nj, aj, w, wi, wj, c, cm, start, sm, floor, lanes = arguments
            masks = [None] * (vectors - 1) + [mask_of(b, lanes)]
            sums = [variables(b, vectors) for _ in range(rows)]

            def each_vector(address: Any) -> Any:
                return [(v, b.add(address, I64(4 * LANES * v)), masks[v]) for v in range(vectors)]

            for m in range(rows):
                for v, address, mask in each_vector(b.add(start, b.mul(sm, I64(m)))):
                    b.store(load(b, address, mask), sums[m][v])
            offsets = [b.mul(am, I64(m)) for m in range(rows)]
            with cgutils.for_range(b, ni) as outer:
                row = b.add(a, b.mul(outer.index, ai))
                base = [b.add(row, offset) for offset in offsets]
                weights = b.add(w, b.mul(outer.index, wi))
                with cgutils.for_range(b, nj) as inner:
                    here = b.add(weights, b.mul(inner.index, wj))
                    for _, address, _ in each_vector(b.add(here, b.mul(wj, I64(_ROWS_AHEAD)))):
                        _prefetch(b, address)
                    loaded = [load(b, address, mask) for _, address, mask in each_vector(here)]
                    step = b.mul(inner.index, aj)
                    for m in range(rows):
                        value = splat(b, _scalar(b, b.add(base[m], step)))
                        for v in range(vectors):
                            b.store(multiply_add(b, value, loaded[v], b.load(sums[m][v])), sums[m][v])
            least = splat(b, floor)
            for m in range(rows):
                for v, address, mask in each_vector(b.add(c, b.mul(cm, I64(m)))):
                    store(b, above(b, b.load(sums[m][v]), least), address, mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 13, types.float32, types.int64), generate

    return tile


def make_dots(rows: int, columns: int) -> Any:
    """An intrinsic for a tile of scalar products: ``c[m, n] = sum_{k < count} a[m*am + k] * w[n*wn + k]``.

    ``dots(a, am, w, wn, count, c, cm)``. It multiplies by a transposed matrix without transposing it.
    """

    @intrinsic
    def dots(context, a, am, w, wn, count, c, cm):  # type: ignore[no-untyped-def]
        def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
            a, am, w, wn, count, c, cm = arguments
            sums = [variables(b, columns) for _ in range(rows)]
            for row in sums:
                for total in row:
                    b.store(ZERO, total)

            def add(offset: Any, mask: Any) -> None:
                left = [load(b, b.add(b.add(a, b.mul(am, I64(m))), offset), mask) for m in range(rows)]
                right = [load(b, b.add(b.add(w, b.mul(wn, I64(n))), offset), mask) for n in range(columns)]
                for m in range(rows):
                    for n in range(columns):
                        b.store(multiply_add(b, left[m], right[n], b.load(sums[m][n])), sums[m][n])

            whole = b.udiv(count, I64(LANES))
            with cgutils.for_range(b, whole) as loop:
                add(b.mul(loop.index, I64(4 * LANES)), None)
            rest = b.urem(count, I64(LANES))
            with b.if_then(b.icmp_unsigned(">", rest, I64(0))):
                add(b.mul(whole, I64(4 * LANES)), mask_of(b, rest))
            kind = ir.FunctionType(_f32, [_f32, _vector])
            reduce = cgutils.get_or_insert_function(b.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
            for m in range(rows):
                for n in range(columns):
                    total = b.call(reduce, [_f32(0.0), b.load(sums[m][n])], fastmath=("reassoc",))
                    address = b.add(b.add(c, b.mul(cm, I64(m))), I64(4 * n))
                    b.store(total, _pointer(b, address, _f32), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return dots


def above(b: Any, value: Any, least: Any) -> Any:
    """The larger of two vectors; a NaN passes through instead of becoming the floor."""
    return b.select(b.fcmp_ordered("<", value, least), least, value)


def make_sparse(vectors: int, inputs: bool) -> Any:
    """An intrinsic for one row of taps of a convolution whose output gradient has few entries ``g_p`` at
    offsets ``o_p``.

    ``sparse(dw, x, w, dx, offsets, values, count, lanes)`` computes ``dw[k] += sum_p g_p * x[o_p + k]`` and,
    if ``inputs``, for every p in turn ``dx[o_p + k] += g_p * w[k]``, where k runs over ``(vectors - 1) *
    LANES + lanes`` consecutive floats.
    """

    @intrinsic
    def sparse(context, dw, x, w, dx, offsets, values, count, lanes):  # type: ignore[no-untyped-def]
        def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
            dw, x, w, dx, offsets, values, count, lanes = arguments
            masks = [None] * (vectors - 1) + [mask_of(b, lanes)]

            def each_vector(address: Any) -> Any:
                return [(v, b.add(address, I64(4 * LANES * v)), masks[v]) for v in range(vectors)]

            sums = variables(b, vectors)
            for v, address, mask in each_vector(dw):
                b.store(load(b, address, mask), sums[v])
            weights = [load(b, address, mask) for _, address, mask in each_vector(w)] if inputs else []
            with cgutils.for_range(b, count) as loop:
                offset = b.load(_pointer(b, b.add(offsets, b.mul(loop.index, I64(8))), I64))
                g = splat(b, _scalar(b, b.add(values, b.mul(loop.index, I64(4)))))
                for v, address, mask in each_vector(b.add(x, offset)):
                    b.store(multiply_add(b, g, load(b, address, mask), b.load(sums[v])), sums[v])
                if inputs:
                    for v, address, mask in each_vector(b.add(dx, offset)):
                        store(b, multiply_add(b, g, weights[v], load(b, address, mask)), address, mask)
            for v, address, mask in each_vector(dw):
                store(b, b.load(sums[v]), address, mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return sparse


def make_sparse_narrow(rows: int) -> Any:
    """As `make_sparse` without inputs, for ``rows`` rows of taps that fill one vector each: independent sums
    hide the latency.

    ``sparse(dw, wr, x, xr, offsets, values, count, lanes)``: row r of ``dw`` starts at ``r*wr``, of ``x`` at
    ``r*xr``.
    """

    @intrinsic
    def sparse(context, dw, wr, x, xr, offsets, values, count, lanes):  # type: ignore[no-untyped-def]
        def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
            dw, wr, x, xr, offsets, values, count, lanes = arguments
            mask = mask_of(b, lanes)
            sums = variables(b, rows)
            to = [b.add(dw, b.mul(wr, I64(r))) for r in range(rows)]
            source = [b.add(x, b.mul(xr, I64(r))) for r in range(rows)]
            for r in range(rows):
                b.store(load(b, to[r], mask), sums[r])
            with cgutils.for_range(b, count) as loop:
                offset = b.load(_pointer(b, b.add(offsets, b.mul(loop.index, I64(8))), I64))
                g = splat(b, _scalar(b, b.add(values, b.mul(loop.index, I64(4)))))
                for r in range(rows):
                    value = load(b, b.add(source[r], offset), mask)
                    b.store(multiply_add(b, g, value, b.load(sums[r])), sums[r])
            for r in range(rows):
                store(b, b.load(sums[r]), to[r], mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return sparse


def make_transform(matrix: tuple[tuple[float, ...], ...], added: bool) -> Any:
    """An intrinsic that computes ``A X A.T`` for one tile X of vectors and a small constant matrix A.

    ``transform(x, xi, xj, y, yi, yj, start, si, sj, floor, lanes)`` works on ``lanes`` channels at once:
    element (i, j) of X lies at ``x + i*xi + j*xj``. If ``added``, the result is ``max(start + A X A.T,
    floor)``, else the four arguments after yj are ignored.
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

    @intrinsic
    def transform(context, x, xi, xj, y, yi, yj, start, si, sj, floor, lanes):  # type: ignore[no-untyped-def]
        def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
            x, xi, xj, y, yi, yj, start, si, sj, floor, lanes = arguments
            mask, least = mask_of(b, lanes), splat(b, floor)

            def place(address: Any, row: Any, column: Any, i: int, j: int) -> Any:
                return b.add(b.add(address, b.mul(row, I64(i))), b.mul(column, I64(j)))

            tile = [[load(b, place(x, xi, xj, i, j), mask) for j in range(size)] for i in range(size)]
            half = [[combine(b, row, [tile[i][j] for i in range(size)]) for j in range(size)]
                    for row in matrix]
            for i in range(len(matrix)):
                for j, row in enumerate(matrix):
                    value = combine(b, row, half[i])
                    if added:
                        value = b.fadd(value, load(b, place(start, si, sj, i, j), mask))
                        value = above(b, value, least)
                    store(b, value, place(y, yi, yj, i, j), mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9, types.float32, types.int64), generate

    return transform


@intrinsic
def transpose_block(context, a, ar, t, tr, accumulate):  # type: ignore[no-untyped-def]
    """``t = a.T``, or to ``accumulate`` ``t += a.T``, for a block of LANES x LANES with row strides
    ``ar`` and ``tr``."""

    def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
        a, ar, t, tr, accumulate = arguments
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
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


# Sizes, strides and addresses, and the floor.
PRODUCT = types.void(*[types.int64] * 16, types.float32)


@intrinsic
def call_product(context, m, n, a, am, ni, ai, nj, aj, w, wi, wj, wp, c, cm, start, sm, floor):  # type: ignore[no-untyped-def]
    """Call `refsgd.problems.nn.kernels.product`, which the linker finds by its name: the caller's code holds
    no copy of it, as it would of another kernel.

    ``call_product(m, n, a, am, ni, ai, nj, aj, w, wi, wj, wp, c, cm, start, sm, floor)``, as
    `refsgd.problems.nn.kernels.product`.
    """

    def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
        convention = context.call_conv
        kind = convention.get_function_type(signature.return_type, signature.args)
        function = cgutils.get_or_insert_function(b.module, kind, call_product.__name__)
        convention.call_function(b, function, signature.return_type, signature.args, arguments)
        return context.get_dummy_value()

    return PRODUCT, generate


@intrinsic
def floats(context, address):  # type: ignore[no-untyped-def]
    """``address`` as a pointer to float32, for `numba.carray`."""

    def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
        return _pointer(b, arguments[0], _f32)

    return types.CPointer(types.float32)(types.int64), generate
