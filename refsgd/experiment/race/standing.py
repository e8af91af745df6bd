"""What several runs show, whatever the distribution of times: medians and which algorithms are told apart.

References
----------
David and Nagaraja, "Order statistics", 3rd ed., 2003, section 7.1: intervals for a median.
Dixon and Mood, "The statistical sign test", Journal of the American Statistical Association 41, 1946.
Piepho, "An algorithm for a letter-based representation of all-pairwise comparisons", Journal of Computational
and Graphical Statistics 13, 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import comb
from string import ascii_letters
from typing import NamedTuple, TypeVar

COVERED = 0.85  #: least probability that an interval has the median, if enough runs are there
LEVEL = 0.05  #: probability at which two equal algorithms are told apart, at most

#: for groups of names, in their order: no two groups have the same
LETTERS = ascii_letters + "".join(map(chr, range(0x3B1, 0x481)))

Name = TypeVar("Name", bound=Hashable)


class Interval(NamedTuple):
    """From the smallest to the largest value within which the true median is, with a probability."""

    low: float
    high: float
    coverage: float


def interval(values: Sequence[float]) -> Interval:
    """The k-th smallest and the k-th largest value, for the largest k that covers the median with `COVERED`.

    >>> interval([3, 1, 2, 5, 4]), interval(range(7))[:2], interval(range(9))[:2]
    (Interval(low=1, high=5, coverage=0.9375), (1, 5), (1, 7))
    """
    n, ordered = len(values), sorted(values)

    def coverage(k: int) -> float:
        return float(1 - 2 * sum(comb(n, i) for i in range(k)) / 2**n)

    k = max([1, *(k for k in range(1, n // 2 + 1) if coverage(k) >= COVERED)])
    return Interval(ordered[k - 1], ordered[n - k], coverage(k))


def separated(mine: Sequence[float], others: Sequence[float]) -> bool:
    """Whether a two-sided sign test on runs of the same seeds tells two algorithms apart.

    >>> separated([1] * 7, [2] * 7), separated([1] * 7, [2] * 6 + [0.5]), separated([1] * 5, [2] * 5)
    (True, False, False)
    """
    wins, losses = (sum(a < b for a, b in zip(*pair)) for pair in ((mine, others), (others, mine)))
    n = wins + losses
    return n > 0 and 2 * sum(comb(n, i) for i in range(min(wins, losses) + 1)) / 2**n < LEVEL


def letters(names: Sequence[Name], apart: Callable[[Name, Name], bool]) -> dict[Name, str]:
    """Letters by name: two names have one in common if and only if they are not told apart.

    >>> letters([1, 2, 3], lambda a, b: abs(a - b) > 1)
    {1: 'a', 2: 'ab', 3: 'b'}
    """
    groups = [frozenset(names)]
    for i, a in enumerate(names):  # insert and absorb
        for b in names[i + 1:]:
            if apart(a, b):
                split = [group - {name} if {a, b} <= group else group for group in groups for name in (a, b)]
                groups = [g for k, g in enumerate(split)
                          if not any(g < other or (g == other and k > m) for m, other in enumerate(split))]
    first = sorted(groups, key=lambda group: sorted(names.index(name) for name in group))
    return {name: "".join(LETTERS[k] for k, group in enumerate(first) if name in group)
            for name in names}


def abridged(text: str) -> str:
    """Letters with each run of more than three as its ends.

    >>> abridged("abcegh"), abridged("acdefy")
    ('abcegh', 'ac-fy')
    """
    runs = list[str]()
    for letter in text:
        if runs and LETTERS.index(letter) == LETTERS.index(runs[-1][-1]) + 1:
            runs[-1] += letter
        else:
            runs.append(letter)
    return "".join(run if len(run) <= 3 else f"{run[0]}-{run[-1]}" for run in runs)
