"""Compiled kernels of everything that is not a product: normalisation, pooling, activations, the loss,
copies.

Conventions as in `refsgd.problems.nn.kernels`.
"""
from __future__ import annotations

import numpy as np

from refsgd.problems.nn.kernels import carray, kernel
from refsgd.problems.nn.pixels import make_pixel_gradient, pixel_moments, pixel_scale
from refsgd.problems.nn.vector import LANES, floats

_gradient_sums, _gradient_inputs = make_pixel_gradient(sums=True), make_pixel_gradient(sums=False)

_ZERO, _ONE = np.float32(0), np.float32(1)


@kernel
def copy_images(b, rows, run, source, sn, sr, target, tn, tr):  # type: ignore[no-untyped-def]
    """Copy b images of ``rows`` rows of ``run`` floats from ``source`` to ``target``, whose borders
    differ."""
    for n in range(b):
        for r in range(rows):
            from_row = carray(floats(source + n * sn + r * sr), (run,))
            to_row = carray(floats(target + n * tn + r * tr), (run,))
            for k in range(run):
                to_row[k] = from_row[k]


@kernel
def zero(address, count):  # type: ignore[no-untyped-def]
    """Set ``count`` floats from ``address`` on to 0."""
    target = carray(floats(address), (count,))
    for k in range(count):
        target[k] = _ZERO


@kernel
def zero_border(b, height, width, c, pad, x, xn, xr):  # type: ignore[no-untyped-def]
    """Set the ``pad`` pixels around each image to 0; x is the address of the first pixel inside."""
    for n in range(b):
        for r in range(-pad, height + pad):
            row = x + n * xn + r * xr
            if r < 0 or r >= height:
                zero(row - pad * c * 4, (width + 2 * pad) * c)
            else:
                zero(row - pad * c * 4, pad * c)
                zero(row + width * c * 4, pad * c)


@kernel
def relu_backward(b, rows, columns, o, y, yn, yr, yc, dy, gn, gr, gc, db):  # type: ignore[no-untyped-def]
    """``dy = 0 where y <= 0``, in place, and ``db += sum of dy``, unless the address of db is 0."""
    for n in range(b):
        for r in range(rows):
            for c in range(columns):
                value = carray(floats(y + n * yn + r * yr + c * yc), (o,))
                gradient = carray(floats(dy + n * gn + r * gr + c * gc), (o,))
                if db == 0:
                    for k in range(o):
                        gradient[k] = gradient[k] if value[k] > _ZERO else _ZERO
                else:
                    bias = carray(floats(db), (o,))
                    for k in range(o):
                        g = gradient[k] if value[k] > _ZERO else _ZERO
                        gradient[k] = g
                        bias[k] += g


@kernel
def bias_backward(b, rows, columns, o, dy, gn, gr, gc, db):  # type: ignore[no-untyped-def]
    """``db += sum of dy`` over images and positions."""
    bias = carray(floats(db), (o,))
    for n in range(b):
        for r in range(rows):
            for c in range(columns):
                gradient = carray(floats(dy + n * gn + r * gr + c * gc), (o,))
                for k in range(o):
                    bias[k] += gradient[k]


@kernel
def relu(b, rows, run, y, yn, yr):  # type: ignore[no-untyped-def]
    """``y = max(y, 0)`` in place, over rows of ``run`` floats."""
    for n in range(b):
        for r in range(rows):
            value = carray(floats(y + n * yn + r * yr), (run,))
            for k in range(run):
                value[k] = _ZERO if value[k] < _ZERO else value[k]


@kernel
def add(b, rows, run, y, yn, yr, z, zn, zr, floor):  # type: ignore[no-untyped-def]
    """``y = max(y + z, floor)`` in place, over rows of ``run`` floats."""
    for n in range(b):
        for r in range(rows):
            value = carray(floats(y + n * yn + r * yr), (run,))
            more = carray(floats(z + n * zn + r * zr), (run,))
            for k in range(run):
                v = value[k] + more[k]
                value[k] = floor if v < floor else v


@kernel
def moments(b, rows, columns, c, x, xn, xr, xc, fresh, partial, sums):  # type: ignore[no-untyped-def]
    """Add the sums of x - p and (x - p)**2 of each channel to ``sums`` (3, c), float64, whose last row is the
    pivot p.

    ``fresh`` sets the sums to 0 and the pivot to the first pixel: near the mean, so that little cancels in
    the difference of the moments. Each image is summed in float32, the images in float64. ``partial`` (3, c)
    is scratch.
    """
    s, q, pivot = partial[0], partial[1], partial[2]
    if fresh:
        sums[:2] = 0.0
        first = carray(floats(x), (c,))
        for k in range(c):
            pivot[k] = first[k]
            sums[2, k] = first[k]
    to = partial.ctypes.data
    for n in range(b):
        for k in range(0, c, LANES):
            at = to + 4 * k
            pixel_moments(
                rows, columns, x + n * xn + 4 * k, xr, xc, at + 8 * c, at, at + 4 * c, min(LANES, c - k)
            )
        for k in range(c):
            sums[0, k] += s[k]
            sums[1, k] += q[k]


@kernel
def scale_and_shift(c, count, sums, fresh, epsilon, gain, bias, mean, inverse, scale, shift):  # type: ignore[no-untyped-def]
    """Batch norm, by ``gain``, ``bias`` and ``epsilon``, as ``scale * x + shift``; if ``fresh``, ``mean`` and
    ``inverse`` deviation are set first.

    These two follow from the ``sums`` that `moments` left, of ``count`` numbers of each channel.
    """
    gains, biases = carray(floats(gain), (c,)), carray(floats(bias), (c,))
    for k in range(c):
        if fresh:
            shifted = sums[0, k] / count
            mean[k] = sums[2, k] + shifted
            inverse[k] = 1.0 / np.sqrt(max(sums[1, k] / count - shifted * shifted, 0.0) + epsilon)
        scale[k] = gains[k] * inverse[k]
        shift[k] = biases[k] - mean[k] * gains[k] * inverse[k]


@kernel
def normalise_factors(c, count, sums, mean, inverse, gain, dgain, dbias, factors):  # type: ignore[no-untyped-def]
    """Add to ``dgain`` and ``dbias``, the gradients of ``gain`` and bias, and set the ``factors`` of
    `normalise_backward`.

    They follow from the ``sums`` that `normalise_sums` left, of ``count`` numbers of each channel, and from
    the ``mean`` and ``inverse`` of `scale_and_shift`.
    """
    gains, dgains, dbiases = carray(floats(gain), (c,)), carray(floats(dgain),
                                                                (c,)), carray(floats(dbias), (c,))
    for k in range(c):
        # The sums are about the mean rounded to float32.
        normal = (sums[1, k] - (mean[k] - np.float32(mean[k])) * sums[0, k]) * inverse[k]
        dgains[k] += normal
        dbiases[k] += sums[0, k]
        slope = gains[k] * inverse[k]
        factors[0, k] = slope
        factors[1, k] = -slope * inverse[k] * normal / count
        factors[2, k] = -slope * sums[0, k] / count


@kernel
def normalise(b, rows, columns, c, x, xn, xr, scale, shift, y, yn, yr, yc, floor):  # type: ignore[no-untyped-def]
    """``y = max(scale * x + shift, floor)``, scale and shift by channel; pixels of x lie side by side."""
    scales, shifts = scale.ctypes.data, shift.ctypes.data
    for n in range(b):
        for k in range(0, c, LANES):
            pixel_scale(
                rows, columns, x + n * xn + 4 * k, xr, 4 * c, scales + 4 * k, shifts + 4 * k,
                y + n * yn + 4 * k, yr, yc, floor, min(LANES, c - k),
            )  # fmt: skip


@kernel
def normalise_sums(  # type: ignore[no-untyped-def]
    b, rows, columns, c, x, xn, xr, mean, scale, shift, dy, gn, gr, gc, floor, fresh, partial, sums
):
    """Sums of e and ``e * (x - mean)`` of each channel; e is dy where the output exceeds the floor, else 0.

    ``fresh``, ``partial`` and ``sums`` as for `moments`. The output ``scale * x + shift`` is computed again:
    that takes less time than reading it.
    """
    if fresh:
        sums[:2] = 0.0
    s, q = partial[0], partial[1]
    means, scales, shifts, to = mean.ctypes.data, scale.ctypes.data, shift.ctypes.data, partial.ctypes.data
    for n in range(b):
        for k in range(0, c, LANES):
            at = 4 * k
            _gradient_sums(
                rows, columns, x + n * xn + at, xr, 4 * c, dy + n * gn + at, gr, gc, means + at, scales + at,
                shifts + at,
                floor, to + at, 0, 0, to + 4 * c + at, 0, min(LANES, c - k),
            )  # fmt: skip
        for k in range(c):
            sums[0, k] += s[k]
            sums[1, k] += q[k]


@kernel
def normalise_backward(  # type: ignore[no-untyped-def]
    b, rows, columns, c, x, xn, xr, mean, scale, shift, dy, gn, gr, gc, floor, factors, dx, dn, dr
):
    """``dx = factors[0] * e + factors[1] * (x - mean) + factors[2]`` with e, by ``scale`` and ``shift``,
    as in `normalise_sums`."""
    means, scales, shifts, by = mean.ctypes.data, scale.ctypes.data, shift.ctypes.data, factors.ctypes.data
    for n in range(b):
        for k in range(0, c, LANES):
            at = 4 * k
            _gradient_inputs(
                rows, columns, x + n * xn + at, xr, 4 * c, dy + n * gn + at, gr, gc, means + at, scales + at,
                shifts + at,
                floor, dx + n * dn + at, dr, 4 * c, by + at, 4 * c, min(LANES, c - k),
            )  # fmt: skip


@kernel
def _inside(place, stride, pad, size, length):  # type: ignore[no-untyped-def]
    """The rows (or columns) of a window that lie in an image of that length: the first, and the one after
    the last."""
    at = place * stride - pad
    return max(0, -at), min(size, length - at)


@kernel
def max_pool(  # type: ignore[no-untyped-def]
    b, rows, columns, c, x, xn, xr, height, width, size, stride, pad, y, yn, yr, winner
):
    """Max-pooling; ``winner`` (uint8, flat) is the place within the window, row * size + column."""
    for n in range(b):
        for r in range(rows):
            top, bottom = _inside(r, stride, pad, size, height)
            for p in range(columns):
                left, right = _inside(p, stride, pad, size, width)
                window = x + n * xn + (r * stride - pad) * xr + 4 * (p * stride - pad) * c
                out = carray(floats(y + n * yn + r * yr + 4 * p * c), (c,))
                first = ((n * rows + r) * columns + p) * c
                where = winner[first : first + c]
                where[:] = np.uint8(top * size + left)
                out[:] = carray(floats(window + top * xr + 4 * left * c), (c,))
                for i in range(top, bottom):
                    for j in range(left, right):
                        pixel = carray(floats(window + i * xr + 4 * j * c), (c,))
                        place = np.uint8(i * size + j)
                        for k in range(c):
                            v, w = pixel[k], out[k]
                            where[k] = place if v > w else where[k]
                            out[k] = w if v <= w else v  # a NaN wins


@kernel
def max_pool_backward(  # type: ignore[no-untyped-def]
    b, rows, columns, c, dy, gn, gr, height, width, size, stride, pad, winner, dx, xn, xr
):
    """Add each dy to the dx of its window's winner (``winner`` as `max_pool` left it)."""
    for n in range(b):
        for r in range(rows):
            top, bottom = _inside(r, stride, pad, size, height)
            for p in range(columns):
                left, right = _inside(p, stride, pad, size, width)
                window = dx + n * xn + (r * stride - pad) * xr + 4 * (p * stride - pad) * c
                gradient = carray(floats(dy + n * gn + r * gr + 4 * p * c), (c,))
                first = ((n * rows + r) * columns + p) * c
                where = winner[first : first + c]
                for i in range(top, bottom):
                    for j in range(left, right):
                        out = carray(floats(window + i * xr + 4 * j * c), (c,))
                        place = np.uint8(i * size + j)
                        for k in range(c):
                            out[k] += gradient[k] if where[k] == place else _ZERO


@kernel
def average(  # type: ignore[no-untyped-def]
    b, rows, columns, c, x, xn, xr, xc, size_r, size_c, stride_r, stride_c, y, yn, yr
):
    """Mean of windows of ``size_r x size_c`` pixels, ``stride_r`` and ``stride_c`` apart; one window of
    the whole image is the global average."""
    share = np.float32(1.0 / (size_r * size_c))
    for n in range(b):
        for r in range(rows):
            for p in range(columns):
                out = carray(floats(y + n * yn + r * yr + 4 * p * c), (c,))
                out[:] = _ZERO
                for i in range(size_r):
                    for j in range(size_c):
                        at = x + n * xn + (r * stride_r + i) * xr + (p * stride_c + j) * xc
                        pixel = carray(floats(at), (c,))
                        for k in range(c):
                            out[k] += pixel[k]
                for k in range(c):
                    out[k] *= share


@kernel
def average_backward(  # type: ignore[no-untyped-def]
    b, rows, columns, c, dy, gn, gr, size_r, size_c, stride_r, stride_c, dx, xn, xr, xc
):
    """Add the share of each dy to the dx of all pixels of its window: ``size_r``, ``size_c``,
    ``stride_r`` and ``stride_c`` as for `average`."""
    share = np.float32(1.0 / (size_r * size_c))
    for n in range(b):
        for r in range(rows):
            for p in range(columns):
                gradient = carray(floats(dy + n * gn + r * gr + 4 * p * c), (c,))
                for i in range(size_r):
                    for j in range(size_c):
                        at = dx + n * xn + (r * stride_r + i) * xr + (p * stride_c + j) * xc
                        out = carray(floats(at), (c,))
                        for k in range(c):
                            out[k] += gradient[k] * share


@kernel
def dropout(b, rows, run, x, xn, xr, first, key_low, key_high, threshold, scale):  # type: ignore[no-untyped-def]
    """Set some numbers in rows of ``run`` floats to 0: where the hash of place and key is below
    ``threshold``; times ``scale`` the others.

    Places count from ``first`` on, borders left out; ``key_low`` and ``key_high`` are the halves of a key of
    64 bits.
    """
    for n in range(b):
        for r in range(rows):
            values, place = carray(floats(x + n * xn + r * xr), (run,)), first + (n * rows + r) * run
            for k in range(run):
                h = np.uint32(place + k) ^ np.uint32(key_low)
                for _ in range(2):
                    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
                    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
                    h = np.uint32(h ^ (h >> np.uint32(16)) ^ np.uint32(key_high))
                values[k] = values[k] * scale if h >= threshold else _ZERO


@kernel
def copy_pixels(b, rows, columns, c, source, sn, sr, sc, target, tn, tr, tc, accumulate):  # type: ignore[no-untyped-def]
    """Copy c floats of each pixel from ``source`` to ``target``, or to ``accumulate`` add them; pixels
    lie ``sc`` and ``tc`` apart."""
    for n in range(b):
        for r in range(rows):
            for p in range(columns):
                pixel = carray(floats(source + n * sn + r * sr + p * sc), (c,))
                out = carray(floats(target + n * tn + r * tr + p * tc), (c,))
                if accumulate:
                    for k in range(c):
                        out[k] += pixel[k]
                else:
                    for k in range(c):
                        out[k] = pixel[k]


@kernel
def softmax_cross_entropy(b, classes, z, labels, share, dz):  # type: ignore[no-untyped-def]
    """Sum of the cross-entropies of scores ``z``, shape ``(b, classes)``, against ``labels``, number
    classified rightly; sets ``dz``.

    ``dz = share * (softmax - onehot)``.
    """
    loss, right = 0.0, 0
    for n in range(b):
        score = carray(floats(z + n * classes * 4), (classes,))
        gradient = carray(floats(dz + n * classes * 4), (classes,))
        label, best = labels[n], 0
        for k in range(classes):
            if score[k] > score[best]:
                best = k
        right += best == label
        # Sums of exp(score - best) without the best, which is 1, and without the label's: neither 1 + small
        # nor 1 - (1 - small) is formed.
        rest = others = _ZERO
        for k in range(classes):
            e = np.exp(score[k] - score[best])
            gradient[k] = e
            rest += _ZERO if k == best else e
            others += _ZERO if k == label else e
        loss += np.log1p(np.float64(rest)) - (score[label] - score[best])
        scale = share / (_ONE + rest)
        for k in range(classes):
            gradient[k] *= scale
        gradient[label] = -scale * others
    return loss, right
