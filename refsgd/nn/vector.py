"""The innermost loops of the kernels, written as LLVM vectors.

numba compiles plain loops over one output at a time; a matrix product is only fast if a small tile of outputs stays in vector registers
while the inputs stream past. The compilers do not find that form by themselves, so it is emitted here, as functions that numba inlines.

Every pointer is an address (int64, from ``array.ctypes.data`` or a plan), every stride counts bytes, and all numbers are float32.
LLVM splits vectors that a processor does not have, so the code is right on any CPU; `LANES` and `TILE` only make it fast on this one.
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
    """Lanes of a vector, and rows and vectors of a tile: rows * vectors sums and some operands must fit in the registers.

    numba's own NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say what to compile for, where it is not this processor.
    """
    told = config.CPU_FEATURES
    features = llvmlite.binding.get_host_cpu_features() if told is None else dict.fromkeys(re.findall(r"\+([^,]+)", told), True)
    if features.get("avx512f"):
        return 16, 8, 2  # 32 registers of 16
    if features.get("avx"):
        return 8, 4, 2  # 16 registers of 8
    return 4, 4, 2  # SSE and NEON: 16 or 32 registers of 4


LANES, ROWS, VECTORS = _processor()

_i1, _i32, _i64, _f32 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()
_vector = ir.VectorType(_f32, LANES)
_zero = ir.Constant(_vector, [0.0] * LANES)


def _pointer(b: Any, address: Any, kind: Any) -> Any:
    return b.inttoptr(address, kind.as_pointer())


def _scalar(b: Any, address: Any) -> Any:
    return b.load(_pointer(b, address, _f32), align=4)


def _splat(b: Any, value: Any, kind: Any = _vector) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    first = b.insert_element(undefined, value, _i32(0))
    return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_i32, LANES), [0] * LANES))


def _mask(b: Any, lanes: Any) -> Any:
    """The first ``lanes`` lanes, as a vector of booleans."""
    kind = ir.VectorType(_i64, LANES)
    return b.icmp_unsigned("<", ir.Constant(kind, list(range(LANES))), _splat(b, lanes, kind))


def _load(b: Any, address: Any, mask: Any = None) -> Any:
    pointer = _pointer(b, address, _vector)
    if mask is None:
        return b.load(pointer, align=4)
    kind = ir.FunctionType(_vector, [pointer.type, _i32, mask.type, _vector])
    function = cgutils.get_or_insert_function(b.module, kind, f"llvm.masked.load.v{LANES}f32.p0")
    return b.call(function, [pointer, _i32(4), mask, _zero])


def _store(b: Any, value: Any, address: Any, mask: Any = None) -> None:
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


def _multiply_add(b: Any, x: Any, y: Any, z: Any) -> Any:
    # "contract" lets LLVM use one fused instruction where the processor has it; nothing is reordered.
    return b.fadd(b.fmul(x, y, flags=("contract",)), z, flags=("contract",))


def _variables(b: Any, count: int) -> list[Any]:
    return [cgutils.alloca_once(b, _vector) for _ in range(count)]


# The weights of a wide layer come from the memory, and their rows are too far apart for the processor to guess which is next.
_ROWS_AHEAD = 16


def make_tile(rows: int, vectors: int) -> Any:
    """An intrinsic that computes one tile of a matrix product whose operands lie anywhere.

    ``tile(a, am, ni, ai, nj, aj, w, wi, wj, c, cm, start, sm, floor, lanes)`` computes, for m < rows and n < columns,

        c[m, n] = max(start[m, n] + sum_{i < ni, j < nj} a[m*am + i*ai + j*aj] * w[i*wi + j*wj + n], floor)

    with ``columns = (vectors - 1) * LANES + lanes``; ``c`` has row stride ``cm``, ``start`` (bias, zeros, or ``c`` itself to accumulate)
    row stride ``sm``. One such tile is a piece of a convolution, of its weight gradient or of a linear layer, depending on the strides.
    """

    @intrinsic
    def tile(context, a, am, ni, ai, nj, aj, w, wi, wj, c, cm, start, sm, floor, lanes):  # type: ignore[no-untyped-def]
        def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
            a, am, ni, ai, nj, aj, w, wi, wj, c, cm, start, sm, floor, lanes = arguments
            masks = [None] * (vectors - 1) + [_mask(b, lanes)]
            sums = [_variables(b, vectors) for _ in range(rows)]

            def each_vector(address: Any) -> Any:
                return [(v, b.add(address, _i64(4 * LANES * v)), masks[v]) for v in range(vectors)]

            for m in range(rows):
                for v, address, mask in each_vector(b.add(start, b.mul(sm, _i64(m)))):
                    b.store(_load(b, address, mask), sums[m][v])
            offsets = [b.mul(am, _i64(m)) for m in range(rows)]
            with cgutils.for_range(b, ni) as outer:
                row = b.add(a, b.mul(outer.index, ai))
                base = [b.add(row, offset) for offset in offsets]
                weights = b.add(w, b.mul(outer.index, wi))
                with cgutils.for_range(b, nj) as inner:
                    here = b.add(weights, b.mul(inner.index, wj))
                    for _, address, _ in each_vector(b.add(here, b.mul(wj, _i64(_ROWS_AHEAD)))):
                        _prefetch(b, address)
                    loaded = [_load(b, address, mask) for _, address, mask in each_vector(here)]
                    step = b.mul(inner.index, aj)
                    for m in range(rows):
                        value = _splat(b, _scalar(b, b.add(base[m], step)))
                        for v in range(vectors):
                            b.store(_multiply_add(b, value, loaded[v], b.load(sums[m][v])), sums[m][v])
            least = _splat(b, floor)
            for m in range(rows):
                for v, address, mask in each_vector(b.add(c, b.mul(cm, _i64(m)))):
                    _store(b, _above(b, b.load(sums[m][v]), least), address, mask)
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
            sums = [_variables(b, columns) for _ in range(rows)]
            for row in sums:
                for total in row:
                    b.store(_zero, total)

            def add(offset: Any, mask: Any) -> None:
                left = [_load(b, b.add(b.add(a, b.mul(am, _i64(m))), offset), mask) for m in range(rows)]
                right = [_load(b, b.add(b.add(w, b.mul(wn, _i64(n))), offset), mask) for n in range(columns)]
                for m in range(rows):
                    for n in range(columns):
                        b.store(_multiply_add(b, left[m], right[n], b.load(sums[m][n])), sums[m][n])

            whole = b.udiv(count, _i64(LANES))
            with cgutils.for_range(b, whole) as loop:
                add(b.mul(loop.index, _i64(4 * LANES)), None)
            rest = b.urem(count, _i64(LANES))
            with b.if_then(b.icmp_unsigned(">", rest, _i64(0))):
                add(b.mul(whole, _i64(4 * LANES)), _mask(b, rest))
            kind = ir.FunctionType(_f32, [_f32, _vector])
            reduce = cgutils.get_or_insert_function(b.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
            for m in range(rows):
                for n in range(columns):
                    total = b.call(reduce, [_f32(0.0), b.load(sums[m][n])], fastmath=("reassoc",))
                    address = b.add(b.add(c, b.mul(cm, _i64(m))), _i64(4 * n))
                    b.store(total, _pointer(b, address, _f32), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return dots


_AHEAD = 4  # pixels whose sums are independent of one another, which hides the latency of an addition


def _over_pixels(b: Any, rows: Any, columns: Any, places: list[Any], sums: int, visit: Any) -> list[Any]:
    """Emit ``visit(addresses, totals)`` for each pixel of an image, and return the sums that it adds up in ``totals``.

    ``places`` gives address, row stride and pixel stride of each array that is read or written.
    """
    totals = [_variables(b, sums) for _ in range(_AHEAD)]
    for total in (total for some in totals for total in some):
        b.store(_zero, total)
    with cgutils.for_range(b, rows) as outer:
        starts = [(b.add(address, b.mul(outer.index, row)), pixel) for address, row, pixel in places]

        def one(index: Any, some: Any) -> None:
            visit([b.add(start, b.mul(index, pixel)) for start, pixel in starts], some)

        groups = b.udiv(columns, _i64(_AHEAD))
        with cgutils.for_range(b, groups) as inner:
            for k in range(_AHEAD):
                one(b.add(b.mul(inner.index, _i64(_AHEAD)), _i64(k)), totals[k])
        done = b.mul(groups, _i64(_AHEAD))
        with cgutils.for_range(b, b.sub(columns, done)) as inner:
            one(b.add(done, inner.index), totals[0])
    found = [[b.load(some[i]) for some in totals] for i in range(sums)]
    return [b.fadd(b.fadd(t0, t1), b.fadd(t2, t3)) for t0, t1, t2, t3 in found]


def _add_to(b: Any, total: Any, value: Any) -> None:
    b.store(b.fadd(b.load(total), value), total)


def _above(b: Any, value: Any, least: Any) -> Any:
    # Written so that a NaN passes through instead of becoming the floor.
    return b.select(b.fcmp_ordered("<", value, least), least, value)


@intrinsic
def pixel_moments(context, rows, columns, x, xr, xc, pivot, s, q, lanes):  # type: ignore[no-untyped-def]
    """``s = sum of x - pivot``, ``q = sum of (x - pivot)**2`` over the pixels of one image, for ``lanes`` channels."""

    def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
        rows, columns, x, xr, xc, pivot, s, q, lanes = arguments
        mask = _mask(b, lanes)
        middle = _load(b, pivot, mask)

        def visit(addresses: Any, totals: Any) -> None:
            d = b.fsub(_load(b, addresses[0], mask), middle)
            _add_to(b, totals[0], d)
            b.store(_multiply_add(b, d, d, b.load(totals[1])), totals[1])

        for total, address in zip(_over_pixels(b, rows, columns, [(x, xr, xc)], 2, visit), (s, q), strict=True):
            _store(b, total, address, mask)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9), generate


@intrinsic
def pixel_scale(context, rows, columns, x, xr, xc, scale, shift, y, yr, yc, floor, lanes):  # type: ignore[no-untyped-def]
    """``y = max(scale * x + shift, floor)`` over the pixels of one image, for ``lanes`` channels."""

    def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
        rows, columns, x, xr, xc, scale, shift, y, yr, yc, floor, lanes = arguments
        mask, least = _mask(b, lanes), _splat(b, floor)
        factor, offset = _load(b, scale, mask), _load(b, shift, mask)

        def visit(addresses: Any, totals: Any) -> None:
            value = _multiply_add(b, _load(b, addresses[0], mask), factor, offset)
            _store(b, _above(b, value, least), addresses[1], mask)

        _over_pixels(b, rows, columns, [(x, xr, xc), (y, yr, yc)], 0, visit)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10, types.float32, types.int64), generate


def make_pixel_gradient(sums: bool) -> Any:
    """An intrinsic for the backward pass of batch norm over the pixels of one image, for ``lanes`` channels.

    ``gradient(rows, columns, x, xr, xc, dy, gr, gc, mean, scale, shift, floor, u, ur, uc, w, uw, lanes)``, with e the entries of dy where
    ``scale * x + shift`` exceeds the floor, else 0. If ``sums``, the sums of e and of ``e * (x - mean)`` go to the addresses u and w; else
    ``u = f0 * e + f1 * (x - mean) + f2``, the three factors of each channel lying ``uw`` apart from w on.
    """

    @intrinsic
    def gradient(context, rows, columns, x, xr, xc, dy, gr, gc, mean, scale, shift, floor, u, ur, uc, w, uw, lanes):  # type: ignore[no-untyped-def]
        def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
            rows, columns, x, xr, xc, dy, gr, gc, mean, scale, shift, floor, u, ur, uc, w, uw, lanes = arguments
            mask, least = _mask(b, lanes), _splat(b, floor)
            middle, factor, offset = (_load(b, address, mask) for address in (mean, scale, shift))
            factors = [] if sums else [_load(b, b.add(w, b.mul(uw, _i64(i))), mask) for i in range(3)]

            def visit(addresses: Any, totals: Any) -> None:
                value, upper = _load(b, addresses[0], mask), _load(b, addresses[1], mask)
                live = b.fcmp_ordered(">", _multiply_add(b, value, factor, offset), least)
                e, d = b.select(live, upper, _zero), b.fsub(value, middle)
                if sums:
                    _add_to(b, totals[0], e)
                    b.store(_multiply_add(b, e, d, b.load(totals[1])), totals[1])
                else:
                    rest = _multiply_add(b, d, factors[1], factors[2])
                    _store(b, _multiply_add(b, e, factors[0], rest), addresses[2], mask)

            places = [(x, xr, xc), (dy, gr, gc)] + ([] if sums else [(u, ur, uc)])
            found = _over_pixels(b, rows, columns, places, 2 * sums, visit)
            for total, address in zip(found, (u, w), strict=False):
                _store(b, total, address, mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 11, types.float32, *[types.int64] * 6), generate

    return gradient


def make_sparse(vectors: int, inputs: bool) -> Any:
    """An intrinsic for one row of taps of a convolution whose output gradient has few entries ``g_p`` at offsets ``o_p``.

    ``sparse(dw, x, w, dx, offsets, values, count, lanes)`` computes ``dw[k] += sum_p g_p * x[o_p + k]`` and, if ``inputs``, for
    every p in turn ``dx[o_p + k] += g_p * w[k]``, where k runs over ``(vectors - 1) * LANES + lanes`` consecutive floats.
    """

    @intrinsic
    def sparse(context, dw, x, w, dx, offsets, values, count, lanes):  # type: ignore[no-untyped-def]
        def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
            dw, x, w, dx, offsets, values, count, lanes = arguments
            masks = [None] * (vectors - 1) + [_mask(b, lanes)]

            def each_vector(address: Any) -> Any:
                return [(v, b.add(address, _i64(4 * LANES * v)), masks[v]) for v in range(vectors)]

            sums = _variables(b, vectors)
            for v, address, mask in each_vector(dw):
                b.store(_load(b, address, mask), sums[v])
            weights = [_load(b, address, mask) for _, address, mask in each_vector(w)] if inputs else []
            with cgutils.for_range(b, count) as loop:
                offset = b.load(_pointer(b, b.add(offsets, b.mul(loop.index, _i64(8))), _i64))
                g = _splat(b, _scalar(b, b.add(values, b.mul(loop.index, _i64(4)))))
                for v, address, mask in each_vector(b.add(x, offset)):
                    b.store(_multiply_add(b, g, _load(b, address, mask), b.load(sums[v])), sums[v])
                if inputs:
                    for v, address, mask in each_vector(b.add(dx, offset)):
                        _store(b, _multiply_add(b, g, weights[v], _load(b, address, mask)), address, mask)
            for v, address, mask in each_vector(dw):
                _store(b, b.load(sums[v]), address, mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return sparse


def make_sparse_narrow(rows: int) -> Any:
    """As `make_sparse` without inputs, for ``rows`` rows of taps that fill one vector each: independent sums hide the latency.

    ``sparse(dw, wr, x, xr, offsets, values, count, lanes)``: row r of ``dw`` starts at ``r*wr``, of ``x`` at ``r*xr``.
    """

    @intrinsic
    def sparse(context, dw, wr, x, xr, offsets, values, count, lanes):  # type: ignore[no-untyped-def]
        def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
            dw, wr, x, xr, offsets, values, count, lanes = arguments
            mask = _mask(b, lanes)
            sums = _variables(b, rows)
            to = [b.add(dw, b.mul(wr, _i64(r))) for r in range(rows)]
            source = [b.add(x, b.mul(xr, _i64(r))) for r in range(rows)]
            for r in range(rows):
                b.store(_load(b, to[r], mask), sums[r])
            with cgutils.for_range(b, count) as loop:
                offset = b.load(_pointer(b, b.add(offsets, b.mul(loop.index, _i64(8))), _i64))
                g = _splat(b, _scalar(b, b.add(values, b.mul(loop.index, _i64(4)))))
                for r in range(rows):
                    value = _load(b, b.add(source[r], offset), mask)
                    b.store(_multiply_add(b, g, value, b.load(sums[r])), sums[r])
            for r in range(rows):
                _store(b, b.load(sums[r]), to[r], mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return sparse


def make_transform(matrix: tuple[tuple[float, ...], ...], added: bool) -> Any:
    """An intrinsic that computes ``A X A.T`` for one tile X of vectors and a small constant matrix A.

    ``transform(x, xi, xj, y, yi, yj, start, si, sj, floor, lanes)`` works on ``lanes`` channels at once: element (i, j)
    of X lies at ``x + i*xi + j*xj``. If ``added``, the result is ``max(start + A X A.T, floor)``, else the four
    arguments after yj are ignored.
    """
    size = len(matrix[0])

    def combine(b: Any, row: tuple[float, ...], values: list[Any]) -> Any:
        """Sum of factor * value; entries 0, 1 and -1 cost no multiplication."""
        total = None
        for factor, value in sorted(zip(row, values, strict=True), key=lambda pair: -pair[0]):
            if abs(factor) not in (0, 1):
                value = b.fmul(value, ir.Constant(_vector, [abs(factor)] * LANES))
            if factor and total is None:
                total = value if factor > 0 else b.fsub(_zero, value)
            elif factor:
                total = b.fadd(total, value) if factor > 0 else b.fsub(total, value)
        return total

    @intrinsic
    def transform(context, x, xi, xj, y, yi, yj, start, si, sj, floor, lanes):  # type: ignore[no-untyped-def]
        def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
            x, xi, xj, y, yi, yj, start, si, sj, floor, lanes = arguments
            mask, least = _mask(b, lanes), _splat(b, floor)

            def place(address: Any, row: Any, column: Any, i: int, j: int) -> Any:
                return b.add(b.add(address, b.mul(row, _i64(i))), b.mul(column, _i64(j)))

            tile = [[_load(b, place(x, xi, xj, i, j), mask) for j in range(size)] for i in range(size)]
            half = [[combine(b, row, [tile[i][j] for i in range(size)]) for j in range(size)] for row in matrix]
            for i in range(len(matrix)):
                for j, row in enumerate(matrix):
                    value = combine(b, row, half[i])
                    if added:
                        value = b.fadd(value, _load(b, place(start, si, sj, i, j), mask))
                        value = _above(b, value, least)
                    _store(b, value, place(y, yi, yj, i, j), mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9, types.float32, types.int64), generate

    return transform


@intrinsic
def transpose_block(context, a, ar, t, tr, accumulate):  # type: ignore[no-untyped-def]
    """``t = a.T``, or to ``accumulate`` ``t += a.T``, for a block of LANES x LANES with row strides ``ar`` and ``tr``."""

    def generate(context, b, signature, arguments):  # type: ignore[no-untyped-def]
        a, ar, t, tr, accumulate = arguments
        rows = [_load(b, b.add(a, b.mul(ar, _i64(i)))) for i in range(LANES)]
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
        targets = [b.add(t, b.mul(tr, _i64(i))) for i in range(LANES)]
        with b.if_else(b.trunc(accumulate, _i1)) as (add, overwrite):
            with add:
                for row, target in zip(rows, targets, strict=True):
                    _store(b, b.fadd(row, _load(b, target)), target)
            with overwrite:
                for row, target in zip(rows, targets, strict=True):
                    _store(b, row, target)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


# Sizes, strides and addresses, and the floor.
PRODUCT = types.void(*[types.int64] * 16, types.float32)


@intrinsic
def call_product(context, m, n, a, am, ni, ai, nj, aj, w, wi, wj, wp, c, cm, start, sm, floor):  # type: ignore[no-untyped-def]
    """Call `refsgd.nn.kernels.product`, which the linker finds by its name: the caller's code holds no copy of it, as it would of another kernel.

    ``call_product(m, n, a, am, ni, ai, nj, aj, w, wi, wj, wp, c, cm, start, sm, floor)``, as `refsgd.nn.kernels.product`.
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
