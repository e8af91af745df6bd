"""Compiled kernels without matrix products: normalisation, pooling, relu, addition, the loss.

Conventions are those of `refsgd.problems.nn.kernels`.
"""
from __future__ import annotations

import numba
import numpy as np
from numba import carray

from refsgd.problems.nn.kernels import kernel, pixel
from refsgd.problems.nn.vector import floats

_ZERO, _ONE, _INFINITY = np.float32(0), np.float32(1), np.float32(np.inf)


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
def measure(sizes, x, partial, sums, epsilon, weights, statistics, norm):
    """Set the ``statistics`` of each channel, mean and inverse deviation (float64), and ``norm`` (3, run):
    mean, scale and shift, with which batch norm is ``scale * x + shift``.

    ``weights`` are gain and bias, ``epsilon`` is the layer's. Scratch: ``sums`` (2, run), float64, of x - p
    and (x - p)**2 at each place of a row, and ``partial`` (3, run), of one image. The pivot p is the first of
    the channel, which is near enough to the mean that little cancels.
    """
    (b, rows, run), c = sizes, statistics.shape[1]
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
    mean, inverse, count = statistics[0], statistics[1], b * rows * run // c
    gains, biases = carray(floats(weights[0]), (c,)), carray(floats(weights[1]), (c,))
    for k in range(c):
        shifted, square = sums[0, k::c].sum() / count, sums[1, k::c].sum() / count
        mean[k] = pivot[k] + shifted
        inverse[k] = 1.0 / np.sqrt(max(square - shifted * shifted, 0.0) + epsilon)
    for j in range(0, run, c):
        for k in range(c):
            norm[0, j + k] = mean[k]
            norm[1, j + k] = gains[k] * inverse[k]
            norm[2, j + k] = biases[k] - mean[k] * gains[k] * inverse[k]


@kernel
def normalise(sizes, x, norm, y, floor):
    """``y = max(scale * x + shift, floor)``, with the scale and shift of ``norm``."""
    (b, rows, run), scale, shift = sizes, norm[1], norm[2]
    for n in range(b):
        for r in range(rows):
            value, out = pixel(x, n, r, 0, run), pixel(y, n, r, 0, run)
            for k in range(run):
                v = scale[k] * value[k] + shift[k]
                out[k] = floor if v < floor else v


@kernel
def normalise_backward(sizes, x, norm, dy, floor, weights, sums, statistics, dx):
    """Add to the gradients of gain and bias, and set dx, unless its address is 0.

    With e = dy where `normalise` gave more than the floor, else 0: ``dx = f0 * e + f1 * (x - mean) + f2``,
    whose factors follow from the ``sums`` of e and ``e * (x - mean)``. ``weights`` are scratch (3, run), gain
    and the gradients of gain and bias; ``statistics`` and ``norm`` are those of `measure`. Recomputing
    ``scale * x + shift`` takes less time than reading it.
    """
    (b, rows, run), (scratch, gain, dgain, dbias), c = sizes, weights, statistics.shape[1]
    factors = carray(floats(scratch), (3, run))  # before: sums of one image
    mean, scale, shift, f0, f1, f2 = norm[0], norm[1], norm[2], factors[0], factors[1], factors[2]
    sums[:] = 0.0
    for n in range(b):
        f0[:], f1[:] = _ZERO, _ZERO
        for r in range(rows):
            value, upper = pixel(x, n, r, 0, run), pixel(dy, n, r, 0, run)
            for k in range(run):
                e = upper[k] if scale[k] * value[k] + shift[k] > floor else _ZERO
                f0[k] += e
                f1[k] += e * (value[k] - mean[k])
        for k in range(run):
            sums[0, k] += f0[k]
            sums[1, k] += f1[k]
    gains, dgains = carray(floats(gain), (c,)), carray(floats(dgain), (c,))
    dbiases, count = carray(floats(dbias), (c,)), b * rows * run // c
    for k in range(c):
        total, exact, inverse = sums[0, k::c].sum(), statistics[0, k], statistics[1, k]
        # The sums are centred at the mean rounded to float32.
        normal = (sums[1, k::c].sum() - (exact - np.float32(exact)) * total) * inverse
        dgains[k] += normal
        dbiases[k] += total
        slope = gains[k] * inverse
        f0[k::c] = slope
        f1[k::c] = -slope * inverse * normal / count
        f2[k::c] = -slope * total / count
    for n in range(b if dx[0] else 0):
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
def max_pool(sizes, image, window, x, y, winner, back):
    """Max-pooling by a ``window`` (size, stride, pad) of images of a shape ``image``; with ``back``, add each
    y to the x of its winner.

    ``winner`` (uint8, flat) is the place of the largest pixel in its window, row * size + column. Windows
    side by side, with stride 1, are one long loop.
    """
    (b, rows, columns), (height, width, c), (size, stride, pad) = sizes, image, window
    for n in range(b):
        for r in range(rows):
            first = (n * rows + r) * columns
            if not back:
                pixel(y, n, r, 0, columns * c)[:] = -_INFINITY
            for i in range(max(0, pad - r * stride), min(size, height + pad - r * stride)):
                for j in range(size):
                    begin, end = _under(j, columns, window, width)
                    together = max(1, end - begin) if stride == 1 else 1
                    for p in range(begin, end, together):
                        out, where = pixel(y, n, r, p, together * c), winner[(first + p) * c :]
                        seen = pixel(x, n, r * stride - pad + i, p * stride - pad + j, together * c)
                        place = np.uint8(i * size + j)
                        if back:
                            for k in range(together * c):
                                seen[k] += out[k] if where[k] == place else _ZERO
                            continue
                        for k in range(together * c):
                            value, most, winning = seen[k], out[k], where[k]
                            more = (value > most) | (value != value)  # a NaN is larger than all
                            out[k] = value if more else most
                            where[k] = place if more else winning


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
