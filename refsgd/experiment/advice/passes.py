"""Passes over the data that a race has measured: with them, strategies of different kinds are comparable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import EXCHANGE
from refsgd.cluster.units import counted, spoken
from refsgd.experiment.advice.candidates import Candidate
from refsgd.experiment.advice.strategies import Strategy
from refsgd.experiment.arguments import Usage, options_of
from refsgd.experiment.functions import with_defaults
from refsgd.experiment.race.entries import Entry, Race

#: options that change how gradients travel, but not what an update is
HOW = {"collective", *EXCHANGE} - {"compress", "feedback"}


def with_passes(strategies: Sequence[Strategy], race: Race) -> list[Strategy]:
    """The strategies with the passes of a race's row of the same algorithm and options, where it has one."""
    rows = {row.label: row for row in race.rows}
    workers = max(row.workers for row in rows.values())
    most = max((s.workers for s in strategies), default=workers)
    if not workers / 2 <= most <= 2 * workers:
        raise Usage(f"a race of {counted(workers, 'worker')} for {most}; expected one of {most / 2:g} to "
                    f"{2 * most}: refsgd race --workers {most} --json FILE")
    return [replace(s, passes=next((row.passes for row in rows.values() if same(s.candidate, row)), math.nan))
            for s in strategies]


def same(candidate: Candidate, row: Entry) -> bool:
    """Whether a row of a race has the candidate's updates."""
    return candidate.algorithm == row.arguments.get("algorithm") and _what(
        candidate.algorithm, candidate.options) == _what(candidate.algorithm, row.arguments)


def _what(algorithm: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options on which updates depend, with defaults."""
    function = CATALOGUE[algorithm]
    own = with_defaults(function, {name: given[name] for name in options_of(function) if name in given})
    more = {"compress": given.get("compress", "none"), "feedback": given.get("feedback", True)}
    return {name: value for name, value in {**own, **more}.items() if name not in HOW}


def quickest(fitting: Sequence[Strategy]) -> list[Strategy]:
    """Those whose seconds to the target are known, the fastest first."""
    return sorted((s for s in fitting if math.isfinite(s.to_target)), key=lambda s: s.to_target)


def by_target(fitting: Sequence[Strategy], race: Race) -> str:
    """What the seconds to the race's target recommend, across kinds."""
    known = quickest(fitting)
    if not known:
        return "The race has no strategy of these with its options, so kinds are not compared."
    first, of = known[0], f"{race.problem['net']} on {race.problem['data']}"
    workers = counted(max(row.workers for row in race.rows), "worker")
    text = (f"By passes to {race.target} of {of}, {workers} (a scale model, not your net), {first.name} is "
            f"first: {first.passes:.2g} passes, {spoken(first.to_target)}.")
    if close := [s.name for s in known[1:] if s.to_target < 1.2 * first.to_target]:
        text += f" Within a fifth of it, which passes of another net may reverse: {', '.join(close)}."
    return text
