"""Intrinsics over the pixels of one image: moments, scaling, and the backward pass of batch norm.

Addresses, strides and types are as in `refsgd.problems.nn.vector`.
"""
from __future__ import annotations

from typing import Any

from refsgd.problems.nn.vector import (
    I64,
    ZERO,
    above,
    cgutils,
    emitted,
    load,
    mask_of,
    multiply_add,
    splat,
    store,
    variables,
)

_AHEAD = 4  # pixels summed independently, to hide the latency of an addition


def _over_pixels(b: Any, rows: Any, columns: Any, places: list[Any], sums: int, visit: Any) -> list[Any]:
    """Emit ``visit(addresses, totals)`` for each pixel of an image, and return the sums in ``totals``.

    ``places`` gives the address, row stride and pixel stride of each array that is read or written.
    """
    totals = [variables(b, sums) for _ in range(_AHEAD)]
    for total in (total for some in totals for total in some):
        b.store(ZERO, total)
    with cgutils.for_range(b, rows) as outer:
        starts = [(b.add(address, b.mul(outer.index, row)), pixel) for address, row, pixel in places]

        def one(index: Any, some: Any) -> None:
            visit([b.add(start, b.mul(index, pixel)) for start, pixel in starts], some)

        groups = b.udiv(columns, I64(_AHEAD))
        with cgutils.for_range(b, groups) as inner:
            for k in range(_AHEAD):
                one(b.add(b.mul(inner.index, I64(_AHEAD)), I64(k)), totals[k])
        done = b.mul(groups, I64(_AHEAD))
        with cgutils.for_range(b, b.sub(columns, done)) as inner:
            one(b.add(done, inner.index), totals[0])
    found = [[b.load(some[i]) for some in totals] for i in range(sums)]
    return [b.fadd(b.fadd(t0, t1), b.fadd(t2, t3)) for t0, t1, t2, t3 in found]


def _add_to(b: Any, total: Any, value: Any) -> None:
    b.store(b.fadd(b.load(total), value), total)


@emitted
def pixel_moments(b, rows, columns, x, xr, xc, pivot, s, q, lanes):
    """``s = sum of x - pivot``, ``q = sum of (x - pivot)**2`` over an image, for ``lanes`` channels."""
    mask = mask_of(b, lanes)
    middle = load(b, pivot, mask)

    def visit(addresses: Any, totals: Any) -> None:
        d = b.fsub(load(b, addresses[0], mask), middle)
        _add_to(b, totals[0], d)
        b.store(multiply_add(b, d, d, b.load(totals[1])), totals[1])

    for total, address in zip(_over_pixels(b, rows, columns, [(x, xr, xc)], 2, visit), (s, q), strict=True):
        store(b, total, address, mask)


@emitted
def pixel_scale(b, rows, columns, x, xr, xc, scale, shift, y, yr, yc, floor, lanes):
    """``y = max(scale * x + shift, floor)`` over the pixels of one image, for ``lanes`` channels."""
    mask, least = mask_of(b, lanes), splat(b, floor)
    factor, offset = load(b, scale, mask), load(b, shift, mask)

    def visit(addresses: Any, totals: Any) -> None:
        value = multiply_add(b, load(b, addresses[0], mask), factor, offset)
        store(b, above(b, value, least), addresses[1], mask)

    _over_pixels(b, rows, columns, [(x, xr, xc), (y, yr, yc)], 0, visit)


def make_pixel_gradient(sums: bool) -> Any:
    """An intrinsic for the backward pass of batch norm over the pixels of one image, for ``lanes`` channels.

    ``gradient(rows, columns, x, xr, xc, dy, gr, gc, mean, scale, shift, floor, u, ur, uc, w, uw, lanes)``:
    let e be dy where ``scale * x + shift`` exceeds the floor, else 0. If ``sums``, the sums of e and of
    ``e * (x - mean)`` are stored at u and w; else ``u = f0 * e + f1 * (x - mean) + f2``, with the three
    factors of a channel ``uw`` apart from w on.
    """

    @emitted
    def gradient(b, rows, columns, x, xr, xc, dy, gr, gc, mean, scale, shift, floor, u, ur, uc, w, uw, lanes):
        mask, least = mask_of(b, lanes), splat(b, floor)
        middle, factor, offset = (load(b, address, mask) for address in (mean, scale, shift))
        factors = [] if sums else [load(b, b.add(w, b.mul(uw, I64(i))), mask) for i in range(3)]

        def visit(addresses: Any, totals: Any) -> None:
            value, upper = load(b, addresses[0], mask), load(b, addresses[1], mask)
            live = b.fcmp_ordered(">", multiply_add(b, value, factor, offset), least)
            e, d = b.select(live, upper, ZERO), b.fsub(value, middle)
            if sums:
                _add_to(b, totals[0], e)
                b.store(multiply_add(b, e, d, b.load(totals[1])), totals[1])
            else:
                rest = multiply_add(b, d, factors[1], factors[2])
                store(b, multiply_add(b, e, factors[0], rest), addresses[2], mask)

        places = [(x, xr, xc), (dy, gr, gc)] + ([] if sums else [(u, ur, uc)])
        found = _over_pixels(b, rows, columns, places, 2 * sums, visit)
        for total, address in zip(found, (u, w), strict=False):
            store(b, total, address, mask)

    return gradient
