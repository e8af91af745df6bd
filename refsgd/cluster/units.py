"""Quantities with units (``25us``, ``10Gbps``, ``16GB``) and speeds of workers (``15x1,0.5``, ``15=0.5``).

1 GB is 10**9 bytes; bps, bit/s and b/s are bits per second.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal

_PREFIXES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SECONDS = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "\u00b5s": Decimal("1e-6"),
            "\u03bcs": Decimal("1e-6"), "ns": Decimal("1e-9")}
_BYTES = {f"{prefix}B": Decimal(scale)
          for prefix, scale in _PREFIXES.items()} | {f"{p}IB": Decimal(1024**i)
                                                     for i, p in enumerate("KMGT", 1)}
_RATES = {f"{prefix}{unit}": Decimal(scale) / bits for prefix, scale in _PREFIXES.items()
          for unit, bits in (("B/s", 1), ("bps", 8), ("b/s", 8), ("bit/s", 8))}
_FLOPS = {f"{prefix}{unit}": Decimal(scale) for prefix, scale in (_PREFIXES | {"P": 10**15}).items()
          for unit in ("FLOPS", "FLOP/S")}
_MOST = 100_000  #: speeds in one text


def _read(text: str, units: Mapping[str, Decimal], expected: str) -> float:
    """The float nearest to a number with or without a unit; the unit's first letter or all letters may be
    lower case."""
    try:
        return float(text)
    except ValueError:
        found = re.fullmatch(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?)\s*([a-zA-Z\u00b5\u03bc/]+)\s*",
                             text)
    for unit in (found[2], found[2][0].upper() + found[2][1:], found[2].upper()) if found else ():
        if unit in units:
            return float(Decimal(found[1]) * units[unit])  # type: ignore[index]
    raise ValueError(f"{text!r} not understood; expected {expected}")


def seconds(text: str) -> float:
    """A time: ``0.02``, ``20ms``, ``25us``; raises ValueError."""
    return _read(text, _SECONDS, "seconds, or a number with s, ms, us or ns, such as 20ms")


def bytes_per_second(text: str) -> float:
    """A bandwidth: ``1.25e9``, ``1.25GB/s``, ``10Gbps``, ``inf``; raises ValueError."""
    return _read(text, _RATES, "bytes/s, such as 1.25e9 or 1.25GB/s, or bits/s, such as 10Gbps")


def nbytes(text: str) -> float:
    """A size: ``16e9``, ``16GB``, ``16GiB``, in letters of any case; raises ValueError."""
    return _read(text, _BYTES, "bytes, such as 16e9, 16GB or 16GiB")


def flops(text: str) -> float:
    """A rate of computing: ``5e12``, ``5TFLOPS``, ``5TFLOP/s``; raises ValueError."""
    return _read(text, _FLOPS, "FLOP/s, such as 5e12 or 5TFLOPS")


def counted(number: int, what: str) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{number} {what}" + "s" * (number != 1)


def speeds(text: str) -> tuple[float, ...]:
    """Speeds of all workers: ``1,1,0.5``, or ``15x1,0.5`` for fifteen at speed 1 and one at half speed;
    raises ValueError."""
    found: list[float] = []
    try:
        for count, times, speed in (part.rpartition("x") for part in text.split(",")):
            found += [float(speed)] * min(int(count) if times else 1, _MOST)
            if times and not 0 < int(count) < _MOST:
                raise ValueError
    except ValueError:
        raise ValueError(f"{text!r}; expected numbers separated by commas, e.g. 1,1,4 or 15x1,0.5") from None
    return tuple(found)


def slowed(texts: Iterable[str], speeds: Sequence[float], workers: int | None = None) -> tuple[float, ...]:
    """The speeds changed by texts such as ``15=0.5`` (worker 15 at half speed); raises ValueError, also for a
    worker that does not exist."""
    changed: dict[int, float] = {}
    for part in ",".join(texts).split(","):
        worker, _, speed = part.partition("=")
        try:
            rank = int(worker.removeprefix("worker"))
            twice = rank in changed
            changed[rank] = float(speed)
        except ValueError:
            raise ValueError(f"{part!r}; expected a worker and its speed, such as 15=0.5 for worker 15 at "
                             "half speed") from None
        if twice:
            raise ValueError(f"worker {rank} has two speeds, the last in {part!r}; expected one for "
                             "each worker")
        if not 0 < changed[rank] < float("inf"):
            raise ValueError(f"worker {rank} at speed {speed}; expected a finite speed > 0, such as "
                             f"{rank}=0.5 for half speed")
    count = max(*changed, len(speeds) - 1, 0) + 1 if workers is None else workers
    for rank in changed:
        if not 0 <= rank < min(count, _MOST):
            numbered = (f"{count} workers are numbered 0 to {count - 1}" if count > 1
                        else "the only worker is 0")
            raise ValueError(f"there is no worker {rank}: {numbered}")
    return tuple(changed.get(i, speeds[i] if i < len(speeds) else 1.0)
                 for i in range(max(count, len(speeds))))


def exact(number: float) -> str:
    """The text that `float` reads as the same number: in six digits if they suffice."""
    return short if float(short := f"{number:g}") == number else repr(number)


def written(speeds: Sequence[float], number: Callable[[float], str] = "{:g}".format) -> str:
    """The text that `speeds` reads, with long runs of equal speeds abbreviated; `number` writes each."""
    runs = [(number(speed), len(list(equal))) for speed, equal in itertools.groupby(speeds)]
    return ",".join(f"{count}x{speed}" if count > 3 else ",".join([speed] * count) for speed, count in runs)


def as_time(seconds: float) -> str:
    """A time with its unit.

    >>> as_time(0.000025), as_time(0.1), as_time(0)
    ('25 us', '100 ms', '0 s')
    """
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.6g} {unit}"
    return f"{seconds / 1e-9:.6g} ns" if seconds else "0 s"


def as_rate(bytes_per_second: float) -> str:
    """A bandwidth in bytes or in bits, whichever is shorter to read.

    >>> as_rate(1.25e9), as_rate(32e9), as_rate(float("inf"))
    ('10 Gbps', '32 GB/s', 'unlimited')
    """
    if bytes_per_second == float("inf"):
        return "unlimited"
    texts = []
    for rate, unit in ((bytes_per_second, "B/s"), (8 * bytes_per_second, "bps")):
        prefix = next((p for p in "TGMK" if rate >= _PREFIXES[p]), "")
        texts.append(f"{rate / _PREFIXES[prefix]:.6g} {prefix.replace('K', 'k')}{unit}")
    return min(texts, key=len)


def as_bytes(size: float) -> str:
    """A size with its unit, in three digits.

    >>> as_bytes(102_228_128), as_bytes(5.11e9), as_bytes(12)
    ('102 MB', '5.11 GB', '12 B')
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.9995 * scale:
            return f"{size / scale:#.3g}".rstrip(".") + f" {unit}"
    return f"{size:.0f} B"


def spoken(seconds: float) -> str:
    """A duration in the unit that people use, from milliseconds to hours.

    >>> spoken(0.0123), spoken(18.97), spoken(1234), spoken(501_700), spoken(1e9)
    ('12.3 ms', '18.97 s', '20.57 min', '139.4 h', '277,778 h')
    """
    units = (10_800.0, 3600.0, "h"), (600.0, 60.0, "min"), (1.0, 1.0, "s"), (0.0, 1e-3, "ms")
    scale, unit = next((scale, unit) for least, scale, unit in units if seconds >= least)
    return f"{seconds / scale:.4g} {unit}" if seconds < 9999 * scale else f"{seconds / scale:,.0f} {unit}"
