"""Compiled kernels of everything that is not a product: normalisation, pooling, activations, the loss, copies.

Conventions as in `refsgd.nn.kernels`.
"""
from __future__ import annotations

import numpy as np

from refsgd.nn.kernels import carray, kernel
from refsgd.nn.vector import floats

_ZERO = np.float32(0)


@kernel
def copy_images(b, rows, run, source, sn, sr, target, tn, tr):  # type: ignore[no-untyped-def]
    """Copy b images of ``rows`` rows of ``run`` floats between buffers with different borders."""
    for n in range(b):
        for r in range(rows):
            from_row = carray(floats(source + n * sn + r * sr), (run,))
            to_row = carray(floats(target + n * tn + r * tr), (run,))
            for k in range(run):
                to_row[k] = from_row[k]


@kernel
def zero(address, count):  # type: ignore[no-untyped-def]
    """Set ``count`` floats to 0."""
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
def moments(b, rows, columns, c, x, xn, xr, xc, partial, sums):  # type: ignore[no-untyped-def]
    """Sums of x - p and (x - p)**2 of each channel, and the pivot p, into ``sums`` (3, c), float64.

    The pivot is the first pixel: near the mean, so that little cancels in the difference of the moments. Each image is
    summed in float32, four pixels at a time, the images in float64. ``partial`` (3 c) is scratch.
    """
    sums[:] = 0.0
    s, q, pivot = partial[:c], partial[c : 2 * c], partial[2 * c :]
    first = carray(floats(x), (c,))
    for k in range(c):
        pivot[k] = first[k]
        sums[2, k] = first[k]
    for n in range(b):
        for k in range(c):
            s[k] = q[k] = _ZERO
        for r in range(rows):
            row = x + n * xn + r * xr
            whole = columns // 4
            for p in range(whole):
                at = row + 4 * p * xc
                x0, x1 = carray(floats(at), (c,)), carray(floats(at + xc), (c,))
                x2, x3 = carray(floats(at + 2 * xc), (c,)), carray(floats(at + 3 * xc), (c,))
                for k in range(c):
                    d0, d1, d2, d3 = x0[k] - pivot[k], x1[k] - pivot[k], x2[k] - pivot[k], x3[k] - pivot[k]
                    s[k] += (d0 + d1) + (d2 + d3)
                    q[k] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)
            for p in range(4 * whole, columns):
                pixel = carray(floats(row + p * xc), (c,))
                for k in range(c):
                    d = pixel[k] - pivot[k]
                    s[k] += d
                    q[k] += d * d
        for k in range(c):
            sums[0, k] += s[k]
            sums[1, k] += q[k]


@kernel
def scale_and_shift(c, count, sums, fresh, epsilon, gain, bias, mean, inverse, scale, shift):  # type: ignore[no-untyped-def]
    """Batch norm as ``scale * x + shift``, from the moments if ``fresh``, else from the mean and inverse of before."""
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
    """Gradients of gain and bias, and the factors of `normalise_backward`, from the sums of e and e * x."""
    gains, dgains, dbiases = carray(floats(gain), (c,)), carray(floats(dgain), (c,)), carray(floats(dbias), (c,))
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
    for n in range(b):
        for r in range(rows):
            for p in range(columns):
                pixel = carray(floats(x + n * xn + r * xr + 4 * p * c), (c,))
                out = carray(floats(y + n * yn + r * yr + p * yc), (c,))
                for k in range(c):
                    v = pixel[k] * scale[k] + shift[k]
                    out[k] = floor if v < floor else v


@kernel
def normalise_sums(  # type: ignore[no-untyped-def]
    b, rows, columns, c, x, xn, xr, mean, scale, shift, dy, gn, gr, gc, floor, partial, sums
):
    """Sums of e and e * (x - mean) of each channel; e is dy where the output exceeds the floor, else 0. See `moments`.

    The output is computed again: that takes less time than reading it.
    """
    sums[:] = 0.0
    s, q = partial[:c], partial[c : 2 * c]
    for n in range(b):
        for k in range(c):
            s[k] = q[k] = _ZERO
        for r in range(rows):
            fx, fg = x + n * xn + r * xr, dy + n * gn + r * gr
            whole = columns // 2
            for p in range(whole):
                i, j = 2 * p, 2 * p + 1
                x0, x1 = carray(floats(fx + 4 * i * c), (c,)), carray(floats(fx + 4 * j * c), (c,))
                g0, g1 = carray(floats(fg + i * gc), (c,)), carray(floats(fg + j * gc), (c,))
                for k in range(c):
                    e0 = g0[k] if x0[k] * scale[k] + shift[k] > floor else _ZERO
                    e1 = g1[k] if x1[k] * scale[k] + shift[k] > floor else _ZERO
                    s[k] += e0 + e1
                    q[k] += e0 * (x0[k] - mean[k]) + e1 * (x1[k] - mean[k])
            for p in range(2 * whole, columns):
                x0, g0 = carray(floats(fx + 4 * p * c), (c,)), carray(floats(fg + p * gc), (c,))
                for k in range(c):
                    e0 = g0[k] if x0[k] * scale[k] + shift[k] > floor else _ZERO
                    s[k] += e0
                    q[k] += e0 * (x0[k] - mean[k])
        for k in range(c):
            sums[0, k] += s[k]
            sums[1, k] += q[k]


@kernel
def normalise_backward(  # type: ignore[no-untyped-def]
    b, rows, columns, c, x, xn, xr, mean, scale, shift, dy, gn, gr, gc, floor, factors, dx, dn, dr
):
    """``dx = factors[0] * e + factors[1] * (x - mean) + factors[2]`` with e as in `normalise_sums`."""
    f0, f1, f2 = factors[0], factors[1], factors[2]
    for n in range(b):
        for r in range(rows):
            for p in range(columns):
                pixel = carray(floats(x + n * xn + r * xr + 4 * p * c), (c,))
                gradient = carray(floats(dy + n * gn + r * gr + p * gc), (c,))
                out = carray(floats(dx + n * dn + r * dr + 4 * p * c), (c,))
                for k in range(c):
                    e = gradient[k] if pixel[k] * scale[k] + shift[k] > floor else _ZERO
                    out[k] = f0[k] * e + f1[k] * (pixel[k] - mean[k]) + f2[k]


@kernel
def max_pool(  # type: ignore[no-untyped-def]
    b, rows, columns, c, x, xn, xr, height, width, size, stride, pad, y, yn, yr, winner
):
    """Max-pooling; ``winner`` (uint8, flat) is the place within the window, row * size + column."""
    for n in range(b):
        for r in range(rows):
            for p in range(columns):
                out = carray(floats(y + n * yn + r * yr + 4 * p * c), (c,))
                first = ((n * rows + r) * columns + p) * c
                where = winner[first : first + c]
                fresh = True
                for i in range(size):
                    row = r * stride - pad + i
                    if row < 0 or row >= height:
                        continue
                    for j in range(size):
                        column = p * stride - pad + j
                        if column < 0 or column >= width:
                            continue
                        pixel = carray(floats(x + n * xn + row * xr + 4 * column * c), (c,))
                        place = np.uint8(i * size + j)
                        if fresh:
                            for k in range(c):
                                out[k] = pixel[k]
                                where[k] = place
                        else:
                            for k in range(c):
                                v, w = pixel[k], out[k]
                                where[k] = place if v > w else where[k]
                                out[k] = w if v <= w else v  # a NaN wins
                        fresh = False


@kernel
def max_pool_backward(  # type: ignore[no-untyped-def]
    b, rows, columns, c, dy, gn, gr, height, width, size, stride, pad, winner, dx, xn, xr
):
    """Add each dy to the dx of its window's winner."""
    for n in range(b):
        for r in range(rows):
            for p in range(columns):
                gradient = carray(floats(dy + n * gn + r * gr + 4 * p * c), (c,))
                first = ((n * rows + r) * columns + p) * c
                where = winner[first : first + c]
                for i in range(size):
                    row = r * stride - pad + i
                    if row < 0 or row >= height:
                        continue
                    for j in range(size):
                        column = p * stride - pad + j
                        if column < 0 or column >= width:
                            continue
                        out = carray(floats(dx + n * xn + row * xr + 4 * column * c), (c,))
                        place = np.uint8(i * size + j)
                        for k in range(c):
                            out[k] += gradient[k] if where[k] == place else _ZERO


@kernel
def average(  # type: ignore[no-untyped-def]
    b, rows, columns, c, x, xn, xr, xc, size_r, size_c, stride_r, stride_c, y, yn, yr
):
    """Mean of windows of size_r x size_c pixels; one window of the whole image is the global average."""
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
    """Add the share of each dy to the dx of all pixels of its window."""
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
def dropout(count, value, key_low, key_high, threshold, scale):  # type: ignore[no-untyped-def]
    """Scale ``count`` floats in place, or set them to 0 where the hash of place and key is below the threshold."""
    values = carray(floats(value), (count,))
    for k in range(count):
        h = np.uint32(k) ^ np.uint32(key_low)
        for _ in range(2):
            h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
            h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
            h = np.uint32(h ^ (h >> np.uint32(16)) ^ np.uint32(key_high))
        values[k] = values[k] * scale if h >= threshold else _ZERO


@kernel
def copy_pixels(b, rows, columns, c, source, sn, sr, sc, target, tn, tr, tc, accumulate):  # type: ignore[no-untyped-def]
    """Copy, or add, c floats of each pixel between buffers in which pixels lie ``sc`` and ``tc`` apart."""
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
    """Sum of the cross-entropies over b images, number classified rightly; ``dz = share * (softmax - onehot)``."""
    loss, right = 0.0, 0
    for n in range(b):
        score = carray(floats(z + n * classes * 4), (classes,))
        gradient = carray(floats(dz + n * classes * 4), (classes,))
        label, best = labels[n], 0
        for k in range(classes):
            if score[k] > score[best]:
                best = k
        right += best == label
        total = _ZERO
        for k in range(classes):
            e = np.exp(score[k] - score[best])
            gradient[k] = e
            total += e
        loss += np.log(total) - (score[label] - score[best])
        scale = share / total
        for k in range(classes):
            gradient[k] *= scale
        gradient[label] -= share
    return loss, right
