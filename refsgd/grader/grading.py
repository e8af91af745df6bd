"""Grade a submission: `refsgd check FILE.py:FUNCTION --as ALGORITHM` gives points for each property.

A submission that loops, exits, prints without end or takes all memory loses only the points of what is left.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from refsgd.display.player.listing import title
from refsgd.experiment.arguments import Usage
from refsgd.grader.judge import Submission
from refsgd.grader.process import Gone
from refsgd.runtimes.programs import in_words
from refsgd.testing import Finding, findings
from refsgd.testing.comparison import names_of
from refsgd.testing.findings import in_full, once

GENERAL = ("file", "lint", "deployment", "sizes", "determinism", "gradients", "fixed point", "descent",
           "all schedules")
LONGEST = 160  #: characters of an explanation
#: points of what makes an algorithm; any other property has one: SSP without its bound gets 13 of 20
POINTS = {"models read": 4, "result": 4, "staleness bound": 3, "each gradient once": 2,
          "lead of fast workers": 4}


def _found(submission: Submission, algorithm: str | None,
           options: Callable[[Submission], Mapping[str, Any]]) -> Iterator[Finding]:
    """The findings of all checks, the last of which is about what ended the submission, if anything did."""
    done = list[str]()
    try:
        why = submission.load()
        yield Finding("file", not why, why or "can be imported")
        done.append("file")
        if why:
            return
        for finding in findings(submission, algorithm=algorithm, processes=False, max_runs=60,
                                **options(submission)):
            yield finding
            done.append(finding.name)
    except Usage as error:  # of the options
        yield Finding("deployment", False, str(error))
    except (Gone, Exception) as why:  # one submission never ends the grading of a class
        unknown = [each for each in _expected(algorithm) if each not in done]
        yield Finding((unknown or ["end"])[0], False, str(why) if isinstance(why, Gone) else in_words(why))


def grade(target: str, algorithm: str | None, forbidden: Sequence[str], seconds: float,
          options: Callable[[Submission], Mapping[str, Any]], pages: bool) -> dict[str, Any]:
    """Check a submission in a process of its own, and give points.

    The limit is one of processor time, so that a busy machine changes no mark; a submission that only sleeps
    is ended after as many seconds without progress.
    """
    began = time.monotonic()
    path, _, function = target.rpartition(":")
    submission = Submission(path, function, forbidden, seconds)
    found, shown = list[Finding](), dict[str, str]()
    try:
        for finding in _found(submission, algorithm, options):
            if finding.found is not None and finding.found.factory is not None:
                new = once([*found, finding])[-1].found is not None
                with suppress(Gone, Exception):
                    finding.found.factory()  # of which it is the newest deployment
                    why, page = submission.show(finding.schedule or (), finding.name,
                                                pages and new and len(shown) < 3)
                    finding = replace(finding, text=in_full(finding.found, why))
                    shown |= {finding.name: page} if page else {}
            found.append(finding)
        printed = submission.process.printed
    finally:
        submission.process.close()
    return _graded(target, algorithm, found, shown, printed, time.monotonic() - began)


def refused(target: str, algorithm: str | None, why: str) -> dict[str, Any]:
    """The grade of a submission that is not there."""
    return _graded(target, algorithm, [Finding("file", False, why)], {}, "", 0.0)


def _expected(algorithm: str | None) -> list[str]:
    return [*GENERAL, *(names_of(algorithm) if algorithm else ())]


def _parted(said: str) -> tuple[str, str]:
    """The first parts of an explanation, at most `LONGEST` characters, and the others."""
    parts = said.split("; ")
    count = max((k for k in range(1, len(parts) + 1) if len("; ".join(parts[:k])) <= LONGEST), default=1)
    first = "; ".join(parts[:count])
    return first if len(first) <= LONGEST else f"{first[:LONGEST - 4]} ...", "; ".join(parts[count:])


def _graded(target: str, algorithm: str | None, found: Sequence[Finding], shown: Mapping[str, str],
            printed: str, seconds: float) -> dict[str, Any]:
    """Points by property."""
    by_name, rows = {each.name: each for each in once(found)}, []
    for name in _expected(algorithm):
        each = by_name.get(name, Finding(name, False, "not checked, because of the failure above"))
        most = POINTS.get(name, 1)
        said, _, details = each.text.partition("\n")
        # without the folders of the grader's machine
        said = re.sub(r"/\S+\.py", lambda path: title(path[0]), said[:4000])
        said = re.sub(r"^(Misread|Usage|AssertionError): ", "", said)
        said, more = _parted(said.replace(", and no program can continue", ""))  # which a deadlock means
        rows.append({"name": name, "passed": each.held, "score": 0 if each.held is False else most,
                     "max_score": most, "text": said, "schedule": each.schedule,
                     "details": "\n".join(filter(None, (more, details))),
                     "page": shown.get(name, "") if each.found is not None else ""})
    return {"format": "refsgd grade 1", "score": sum(r["score"] for r in rows),
            "max_score": sum(r["max_score"] for r in rows), "properties": rows, "submission": target,
            "as": algorithm, "printed": printed, "seconds": round(seconds, 2)}
