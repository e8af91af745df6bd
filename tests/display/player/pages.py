"""What the player's tests share: small runs as pages, and a page read back."""

import json
import re
from functools import cache
from typing import NamedTuple

from refsgd.cluster.machine import Machine
from refsgd.display.player import player_html
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.problems import quadratic
from refsgd.trace import Trace

MACHINE = Machine(compute="lognormal(0.02,0.6)", latency=0.002, bandwidth=20e3)


class Page(NamedTuple):
    """A page, the trace that it shows, and the data in it."""

    html: str
    trace: Trace
    data: dict


def data_of(html: str) -> dict:
    """The JSON of a page."""
    return json.loads(re.search(r'<script type="application/json" id="run">(.*?)</script>', html,
                                re.S).group(1))


@cache
def page(name: str, workers: int = 3, steps: int = 4, machine: Machine = MACHINE, *, events=None, limit=500,
         **options) -> Page:
    """Simulate a small case and make its page, once for all tests that ask for it."""
    experiment = prepare(name, quadratic(3, workers), workers=workers, steps=steps, lr=0.125, machine=machine,
                         **options)
    run = perform(experiment, "simulator")
    html = player_html(run.trace, experiment.deploy, name=name, events=events, limit=limit)
    return Page(html, run.trace, data_of(html))


def column(pairs, k):
    """The value of a column at position k."""
    found = [pair for pair in pairs if pair[0] <= k]
    return found[-1] if found else None


def frames_at(found: Page, p: int, k: int) -> list[list[int]]:
    """File and line of each frame of program p at position k, the outermost first."""
    place = column(found.data["programs"][p]["stands"], k)[1]
    return [] if place < 0 else found.data["places"][place]


def line_at(found: Page, p: int, k: int) -> tuple[str, int] | None:
    """File and line at which program p stands at position k: the innermost frame."""
    place = column(found.data["programs"][p]["stands"], k)[1]
    return None if place < 0 else (found.data["files"][found.data["places"][place][-1][0]],
                                   found.data["places"][place][-1][1])


def text_at(found: Page, p: int, k: int) -> str:
    """The source line at which program p stands at position k, as the page has it."""
    place = column(found.data["programs"][p]["stands"], k)[1]
    if place < 0:
        return ""
    file, line = found.data["places"][place][-1]
    row = re.search(rf'id="f{file}l{line}">.*?<code>(.*?)</code>', found.html, re.S).group(1)
    return re.sub("<[^>]*>", "", row).replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&").strip()


__all__ = ["MACHINE", "Page", "column", "data_of", "frames_at", "line_at", "page", "text_at"]
