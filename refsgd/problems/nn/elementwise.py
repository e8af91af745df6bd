"""Compiled kernels without matrix products: normalisation, pooling, activations, the loss, copies.

Conventions are those of `refsgd.problems.nn.kernels`.
"""
from __future__ import annotations

import numba
import numpy as np

from refsgd.problems.nn.kernels import address, carray, kernel, pixel
from refsgd.problems.nn.vector import floats

_ZERO, _ONE, _INFINITY = np.float32(0), np.float32(1), np.float32(np.inf)


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
def moments(b, rows, run, c, x, partial, sums):
    """Set ``sums`` (2, run), float64, to the sums of x - p and (x - p)**2 at each place of a row.

    The pivot p is the first of the channel, which is near enough to the mean that little cancels; it is left
    in ``partial`` (3, run) after the sums of one image, which are float32.
    """
    partials = carray(floats(partial), (3, run))
    s, q, pivot = partials[0], partials[1], partials[2]
    for k in range(0, run, c):
        pivot[k : k + c] = pixel(x, 0, 0, 0, c)
    sums[:] = 0.0
    for n in range(b):
        s[:], q[:] = _ZERO, _ZERO
        for r in range(rows):
            value = pixel(x, n, r, 0, run)
            for k in range(run):
                d = value[k] - pivot[k]
                s[k] += d
                q[k] += d * d
        for k in range(run):
            sums[0, k] += s[k]
            sums[1, k] += q[k]


@kernel
def scale_and_shift(count, sums, pivot, epsilon, gain, bias, statistics, norm):
    """Set ``norm`` (3, run) to mean, scale and shift, with which batch norm is ``scale * x + shift``.

    Before, set ``statistics``, mean and inverse deviation, from the ``sums`` and the ``pivot`` that `moments`
    left of ``count`` numbers of each channel. ``gain``, ``bias`` and ``epsilon`` are those of the layer.
    """
    mean, inverse, c, run = statistics[0], statistics[1], statistics.shape[1], norm.shape[1]
    gains, biases = carray(floats(gain), (c,)), carray(floats(bias), (c,))
    pivots = carray(floats(pivot), (c,))
    for k in range(c):
        shifted, square = sums[0, k::c].sum() / count, sums[1, k::c].sum() / count
        mean[k] = pivots[k] + shifted
        inverse[k] = 1.0 / np.sqrt(max(square - shifted * shifted, 0.0) + epsilon)
    for j in range(0, run, c):
        for k in range(c):
            norm[0, j + k] = mean[k]
            norm[1, j + k] = gains[k] * inverse[k]
            norm[2, j + k] = biases[k] - mean[k] * gains[k] * inverse[k]


@kernel
def normalise_factors(count, sums, statistics, gain, dgain, dbias, factors):
    """Add to ``dgain`` and ``dbias``, and set the ``factors`` (3, run) of `normalise_backward`.

    They follow from the layer's ``gain``, from the ``sums`` that `normalise_sums` left of ``count`` numbers
    of each channel, and from the ``statistics`` of `scale_and_shift`.
    """
    mean, inverse, c, run = statistics[0], statistics[1], statistics.shape[1], sums.shape[1]
    gains, dgains = carray(floats(gain), (c,)), carray(floats(dgain), (c,))
    dbiases, f = carray(floats(dbias), (c,)), carray(floats(factors), (3, run))
    for k in range(c):
        total = sums[0, k::c].sum()
        # The sums are centred at the mean rounded to float32.
        normal = (sums[1, k::c].sum() - (mean[k] - np.float32(mean[k])) * total) * inverse[k]
        dgains[k] += normal
        dbiases[k] += total
        slope = gains[k] * inverse[k]
        f[0, k::c] = slope
        f[1, k::c] = -slope * inverse[k] * normal / count
        f[2, k::c] = -slope * total / count


@kernel
def normalise(b, rows, run, x, norm, y, floor):
    """``y = max(scale * x + shift, floor)``, with the scale and shift of ``norm``."""
    scale, shift = norm[1], norm[2]
    for n in range(b):
        for r in range(rows):
            value, out = pixel(x, n, r, 0, run), pixel(y, n, r, 0, run)
            for k in range(run):
                v = scale[k] * value[k] + shift[k]
                out[k] = floor if v < floor else v


@kernel
def normalise_sums(b, rows, run, x, norm, dy, floor, partial, sums):
    """Set ``sums`` to the sums of e and ``e * (x - mean)``; e is dy above the floor, else 0.

    ``partial`` and ``sums`` as for `moments`, ``norm`` as for `normalise`. Recomputing the output ``scale * x
    + shift`` takes less time than reading it.
    """
    partials = carray(floats(partial), (3, run))
    mean, scale, shift, s, q = norm[0], norm[1], norm[2], partials[0], partials[1]
    sums[:] = 0.0
    for n in range(b):
        s[:], q[:] = _ZERO, _ZERO
        for r in range(rows):
            value, upper = pixel(x, n, r, 0, run), pixel(dy, n, r, 0, run)
            for k in range(run):
                e = upper[k] if scale[k] * value[k] + shift[k] > floor else _ZERO
                s[k] += e
                q[k] += e * (value[k] - mean[k])
        for k in range(run):
            sums[0, k] += s[k]
            sums[1, k] += q[k]


@kernel
def normalise_backward(b, rows, run, x, norm, dy, floor, factors, dx):
    """``dx = factors[0] * e + factors[1] * (x - mean) + factors[2]``; e, ``norm`` as in `normalise_sums`."""
    f = carray(floats(factors), (3, run))
    mean, scale, shift, f0, f1, f2 = norm[0], norm[1], norm[2], f[0], f[1], f[2]
    for n in range(b):
        for r in range(rows):
            value, upper, out = pixel(x, n, r, 0, run), pixel(dy, n, r, 0, run), pixel(dx, n, r, 0, run)
            for k in range(run):
                e = upper[k] if scale[k] * value[k] + shift[k] > floor else _ZERO
                out[k] = f0[k] * e + f1[k] * (value[k] - mean[k]) + f2[k]


@numba.njit(inline="always")
def _under(k, outputs, window, length):
    """The outputs whose window has its row (or column) k inside the image: first, and one after the last."""
    _, stride, pad = window
    return max(0, -((k - pad) // stride)), min(outputs, (length - 1 + pad - k) // stride + 1)


@kernel
def max_pool(sizes, c, x, image, window, y, winner):
    """Max-pooling by a ``window`` (size, stride, pad); ``image`` is the shape of one image.

    ``winner`` (uint8, flat) is the place of the largest pixel in its window, row * size + column. Windows
    side by side, with stride 1, are one long loop.
    """
    (b, rows, columns), (height, width, _), (size, stride, pad) = sizes, image, window
    for n in range(b):
        for r in range(rows):
            first = (n * rows + r) * columns
            pixel(y, n, r, 0, columns * c)[:] = -_INFINITY
            for i in range(max(0, pad - r * stride), min(size, height + pad - r * stride)):
                for j in range(size):
                    begin, end = _under(j, columns, window, width)
                    together = max(1, end - begin) if stride == 1 else 1
                    for p in range(begin, end, together):
                        out, where = pixel(y, n, r, p, together * c), winner[(first + p) * c :]
                        seen = pixel(x, n, r * stride - pad + i, p * stride - pad + j, together * c)
                        place = np.uint8(i * size + j)
                        for k in range(together * c):
                            value, most, winning = seen[k], out[k], where[k]
                            more = (value > most) | (value != value)  # a NaN is larger than all
                            out[k] = value if more else most
                            where[k] = place if more else winning


@kernel
def max_pool_backward(sizes, c, dy, image, window, winner, dx):
    """Add each dy to the dx of its ``window``'s ``winner``; ``image`` etc. as for `max_pool`."""
    (b, rows, columns), (height, width, _), (size, stride, pad) = sizes, image, window
    for n in range(b):
        for r in range(rows):
            first = (n * rows + r) * columns
            for i in range(max(0, pad - r * stride), min(size, height + pad - r * stride)):
                for j in range(size):
                    begin, end = _under(j, columns, window, width)
                    together = max(1, end - begin) if stride == 1 else 1
                    for p in range(begin, end, together):
                        gradient, where = pixel(dy, n, r, p, together * c), winner[(first + p) * c :]
                        out = pixel(dx, n, r * stride - pad + i, p * stride - pad + j, together * c)
                        place = np.uint8(i * size + j)
                        for k in range(together * c):
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
def dropout(b, rows, run, x, key_low, key_high, threshold, scale):
    """Set numbers to 0 if the hash of position and key is below ``threshold``, else multiply by ``scale``.

    Rows have ``run`` floats. Positions count without borders; ``key_low`` and ``key_high`` are the halves of
    the 64-bit key.
    """
    for n in range(b):
        for r in range(rows):
            values, place = pixel(x, n, r, 0, run), (n * rows + r) * run
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
