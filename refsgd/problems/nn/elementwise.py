"""Compiled kernels without matrix products: normalisation, pooling, activations, the loss, copies.

Conventions are those of `refsgd.problems.nn.kernels`.
"""
from __future__ import annotations

import numpy as np

from refsgd.problems.nn.kernels import address, carray, kernel, pixel
from refsgd.problems.nn.pixels import make_pixel_gradient, pixel_moments, pixel_scale
from refsgd.problems.nn.vector import LANES, floats

_gradient_sums, _gradient_inputs = make_pixel_gradient(sums=True), make_pixel_gradient(sums=False)

_ZERO, _ONE = np.float32(0), np.float32(1)


@kernel
def zero(start, count):
    """Set ``count`` floats from the address ``start`` on to 0."""
    target = carray(floats(start), (count,))
    for k in range(count):
        target[k] = _ZERO


@kernel
def zero_border(b, height, width, c, pad, x):
    """Set the ``pad`` pixels around each image to 0; x is the place of the first pixel inside."""
    for n in range(b):
        for r in range(-pad, height + pad):
            if r < 0 or r >= height:
                zero(address(x, n, r, -pad), (width + 2 * pad) * c)
            else:
                zero(address(x, n, r, -pad), pad * c)
                zero(address(x, n, r, width), pad * c)


@kernel
def output_backward(b, rows, columns, o, y, dy, floor, db):
    """``dy = 0 where y <= floor``, in place, and ``db += sum of dy``, unless the address of db is 0."""
    for n in range(b):
        for r in range(rows):
            for c in range(columns):
                value, gradient = pixel(y, n, r, c, o), pixel(dy, n, r, c, o)
                if db == 0:
                    for k in range(o):
                        gradient[k] = gradient[k] if value[k] > floor else _ZERO
                else:
                    bias = carray(floats(db), (o,))
                    for k in range(o):
                        g = gradient[k] if value[k] > floor else _ZERO
                        gradient[k] = g
                        bias[k] += g


@kernel
def add(b, rows, run, y, z, floor):
    """``y = max(y + z, floor)`` in place, over rows of ``run`` floats."""
    for n in range(b):
        for r in range(rows):
            value, more = pixel(y, n, r, 0, run), pixel(z, n, r, 0, run)
            for k in range(run):
                v = value[k] + more[k]
                value[k] = floor if v < floor else v


@kernel
def moments(b, rows, columns, c, x, fresh, partial, sums):
    """Add each channel's sums of x - p and (x - p)**2 to ``sums`` (3, c), float64, with the pivot p last.

    ``fresh`` sets the sums to 0 and the pivot to the first pixel, which is near enough to the mean that
    little cancels. Each image is summed in float32, the images in float64. ``partial`` (3, c) is scratch.
    """
    s, q, pivot = partial[0], partial[1], partial[2]
    if fresh:
        sums[:2] = 0.0
        first = pixel(x, 0, 0, 0, c)
        for k in range(c):
            pivot[k] = first[k]
            sums[2, k] = first[k]
    to = partial.ctypes.data
    for n in range(b):
        for k in range(0, c, LANES):
            at = to + 4 * k
            pixel_moments(rows, columns, address(x, n, 0, 0) + 4 * k, x[2], x[3], at + 8 * c, at, at + 4 * c,
                          min(LANES, c - k))
        for k in range(c):
            sums[0, k] += s[k]
            sums[1, k] += q[k]


@kernel
def scale_and_shift(count, sums, fresh, epsilon, gain, bias, statistics, norm):
    """Set ``norm`` (3, c) to mean, scale and shift, with which batch norm is ``scale * x + shift``.

    If ``fresh``, first set ``statistics``, mean and inverse deviation, from the ``sums`` that `moments` left
    of ``count`` numbers of each channel. ``gain``, ``bias`` and ``epsilon`` are those of the layer.
    """
    mean, inverse, c = statistics[0], statistics[1], statistics.shape[1]
    gains, biases = carray(floats(gain), (c,)), carray(floats(bias), (c,))
    for k in range(c):
        if fresh:
            shifted = sums[0, k] / count
            mean[k] = sums[2, k] + shifted
            inverse[k] = 1.0 / np.sqrt(max(sums[1, k] / count - shifted * shifted, 0.0) + epsilon)
        norm[0, k] = mean[k]
        norm[1, k] = gains[k] * inverse[k]
        norm[2, k] = biases[k] - mean[k] * gains[k] * inverse[k]


@kernel
def normalise_factors(count, sums, statistics, gain, dgain, dbias, factors):
    """Add to ``dgain`` and ``dbias``, and set the ``factors`` of `normalise_backward`.

    They follow from the layer's ``gain``, from the ``sums`` that `normalise_sums` left of ``count`` numbers
    of each channel, and from the ``statistics`` of `scale_and_shift`.
    """
    mean, inverse, c = statistics[0], statistics[1], statistics.shape[1]
    gains, dgains = carray(floats(gain), (c,)), carray(floats(dgain), (c,))
    dbiases = carray(floats(dbias), (c,))
    for k in range(c):
        # The sums are centred at the mean rounded to float32.
        normal = (sums[1, k] - (mean[k] - np.float32(mean[k])) * sums[0, k]) * inverse[k]
        dgains[k] += normal
        dbiases[k] += sums[0, k]
        slope = gains[k] * inverse[k]
        factors[0, k] = slope
        factors[1, k] = -slope * inverse[k] * normal / count
        factors[2, k] = -slope * sums[0, k] / count


@kernel
def normalise(b, rows, columns, c, x, norm, y, floor):
    """``y = max(scale * x + shift, floor)``, with each channel's scale and shift from ``norm``."""
    at = norm.ctypes.data
    for n in range(b):
        for k in range(0, c, LANES):
            pixel_scale(
                rows, columns, address(x, n, 0, 0) + 4 * k, x[2], x[3], at + 4 * (c + k),
                at + 4 * (2 * c + k), address(y, n, 0, 0) + 4 * k, y[2], y[3], floor, min(LANES, c - k))


@kernel
def normalise_sums(b, rows, columns, c, x, norm, dy, floor, partial, sums):
    """Add each channel's sums of e and ``e * (x - mean)`` to ``sums``; e is dy above the floor, else 0.

    ``partial`` and ``sums`` as for `moments`, ``norm`` as for `normalise`. Recomputing the output ``scale * x
    + shift`` takes less time than reading it.
    """
    s, q = partial[0], partial[1]
    by, to = norm.ctypes.data, partial.ctypes.data
    for n in range(b):
        for k in range(0, c, LANES):
            at = 4 * k
            _gradient_sums(
                rows, columns, address(x, n, 0, 0) + at, x[2], x[3], address(dy, n, 0, 0) + at, dy[2], dy[3],
                by + at, by + 4 * c + at, by + 8 * c + at, floor, to + at, 0, 0, to + 4 * c + at, 0,
                min(LANES, c - k))
        for k in range(c):
            sums[0, k] += s[k]
            sums[1, k] += q[k]


@kernel
def normalise_backward(b, rows, columns, c, x, norm, dy, floor, factors, dx):
    """``dx = factors[0] * e + factors[1] * (x - mean) + factors[2]``; e, ``norm`` as in `normalise_sums`."""
    by, factors_at = norm.ctypes.data, factors.ctypes.data
    for n in range(b):
        for k in range(0, c, LANES):
            at = 4 * k
            _gradient_inputs(
                rows, columns, address(x, n, 0, 0) + at, x[2], x[3], address(dy, n, 0, 0) + at, dy[2], dy[3],
                by + at, by + 4 * c + at, by + 8 * c + at, floor, address(dx, n, 0, 0) + at, dx[2], dx[3],
                factors_at + at, 4 * c, min(LANES, c - k))


@kernel
def _inside(place, stride, pad, size, length):
    """The rows (or columns) of a window inside an image of that length: first, and one after the last."""
    at = place * stride - pad
    return max(0, -at), min(size, length - at)


@kernel
def max_pool(sizes, c, x, image, window, y, winner):
    """Max-pooling by a ``window`` (size, stride, pad); ``image`` is the shape of one image.

    ``winner`` (uint8, flat) is the place of the largest pixel in its window, row * size + column.
    """
    (b, rows, columns), (height, width, _), (size, stride, pad) = sizes, image, window
    for n in range(b):
        for r in range(rows):
            top, bottom = _inside(r, stride, pad, size, height)
            for p in range(columns):
                left, right = _inside(p, stride, pad, size, width)
                row, column = r * stride - pad, p * stride - pad
                out = pixel(y, n, r, p, c)
                first = ((n * rows + r) * columns + p) * c
                where = winner[first : first + c]
                where[:] = np.uint8(top * size + left)
                out[:] = pixel(x, n, row + top, column + left, c)
                for i in range(top, bottom):
                    for j in range(left, right):
                        seen = pixel(x, n, row + i, column + j, c)
                        place = np.uint8(i * size + j)
                        for k in range(c):
                            v, w = seen[k], out[k]
                            where[k] = place if v > w else where[k]
                            out[k] = w if v <= w else v  # a NaN wins


@kernel
def max_pool_backward(sizes, c, dy, image, window, winner, dx):
    """Add each dy to the dx of its ``window``'s ``winner``; ``image`` etc. as for `max_pool`."""
    (b, rows, columns), (height, width, _), (size, stride, pad) = sizes, image, window
    for n in range(b):
        for r in range(rows):
            top, bottom = _inside(r, stride, pad, size, height)
            for p in range(columns):
                left, right = _inside(p, stride, pad, size, width)
                gradient = pixel(dy, n, r, p, c)
                first = ((n * rows + r) * columns + p) * c
                where = winner[first : first + c]
                for i in range(top, bottom):
                    for j in range(left, right):
                        out = pixel(dx, n, r * stride - pad + i, p * stride - pad + j, c)
                        place = np.uint8(i * size + j)
                        for k in range(c):
                            out[k] += gradient[k] if where[k] == place else _ZERO


@kernel
def average(b, rows, columns, c, x, y):
    """The mean of all pixels of each image."""
    share = np.float32(1.0 / (rows * columns))
    for n in range(b):
        out = pixel(y, n, 0, 0, c)
        out[:] = _ZERO
        for i in range(rows):
            for j in range(columns):
                seen = pixel(x, n, i, j, c)
                for k in range(c):
                    out[k] += seen[k]
        for k in range(c):
            out[k] *= share


@kernel
def average_backward(b, rows, columns, c, dy, dx):
    """Set each pixel's dx to its share of dy."""
    share = np.float32(1.0 / (rows * columns))
    for n in range(b):
        gradient = pixel(dy, n, 0, 0, c)
        for i in range(rows):
            for j in range(columns):
                out = pixel(dx, n, i, j, c)
                for k in range(c):
                    out[k] = gradient[k] * share


@kernel
def dropout(b, rows, run, x, first, key_low, key_high, threshold, scale):
    """Set numbers to 0 if the hash of position and key is below ``threshold``, else multiply by ``scale``.

    Rows have ``run`` floats. Positions count from ``first``, without borders; ``key_low`` and ``key_high``
    are the halves of the 64-bit key.
    """
    for n in range(b):
        for r in range(rows):
            values, place = pixel(x, n, r, 0, run), first + (n * rows + r) * run
            for k in range(run):
                h = np.uint32(place + k) ^ np.uint32(key_low)
                for _ in range(2):
                    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
                    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
                    h = np.uint32(h ^ (h >> np.uint32(16)) ^ np.uint32(key_high))
                values[k] = values[k] * scale if h >= threshold else _ZERO


@kernel
def copy(b, rows, columns, c, source, target, accumulate):
    """Copy c floats of each pixel from ``source`` to ``target``; if ``accumulate``, add them."""
    for n in range(b):
        for r in range(rows):
            for p in range(columns):
                seen, out = pixel(source, n, r, p, c), pixel(target, n, r, p, c)
                if accumulate:
                    for k in range(c):
                        out[k] += seen[k]
                else:
                    for k in range(c):
                        out[k] = seen[k]


@kernel
def softmax_cross_entropy(b, classes, z, labels, share, dz):
    """Sum of the cross-entropies of scores ``z (b, classes)``, and number of correct classifications.

    Sets ``dz = share * (softmax - onehot(labels))``.
    """
    loss, right = 0.0, 0
    for n in range(b):
        score, gradient = pixel(z, n, 0, 0, classes), pixel(dz, n, 0, 0, classes)
        label, best = labels[n], 0
        for k in range(classes):
            if score[k] > score[best]:
                best = k
        right += best == label
        # Sums of exp(score - best) without the best score's 1, and without the label's term: so neither
        # 1 + small nor 1 - (1 - small) is computed.
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
