"""Be the scheduler: the state graph of a small case as one self-contained HTML page.

The reader picks what happens next among all actions that the explorer allows, takes moves back, and tries to
reach goals.  The page needs no network and no kernel; its style, listing and sentences are the step player's.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Hashable
from importlib.resources import files

from refsgd.display.player.listing import listing
from refsgd.display.scheduler.graph import MOST, Graph, TooLarge
from refsgd.effects import Factory
from refsgd.runtimes.explorer import Check
from refsgd.trace import Run

__all__ = ["MOST", "Graph", "TooLarge", "scheduler_html"]


def scheduler_html(factory: Factory, check: Check, observe: Callable[[Run], Hashable], *, name: str = "run",
                   deaths: int = 0, most: int = MOST) -> str:
    """The page of a deployment: each effect is a move, or, if that is too large, each decision."""
    try:
        graph = Graph(factory, check, observe, every=True, deaths=deaths, most=most)
    except TooLarge:
        graph = Graph(factory, check, observe, every=False, deaths=deaths, most=most)
    return page(graph, name)


def page(graph: Graph, name: str) -> str:
    """The page of a graph."""
    data = json.dumps(graph.to_json(), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    source = "".join(listing(i, name, lines) for i, (name, lines) in enumerate(graph.files.items()))
    css = _asset("player", "player.css") + _asset("scheduler", "scheduler.css")
    js = _asset("player", "theme.js") + _asset("scheduler", "scheduler.js")
    parts = {"name": html.escape(name), "css": css, "js": js, "source": source,
             "graph": data.replace("<", "\\u003c")}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("scheduler", "scheduler.html"))


def _asset(room: str, name: str) -> str:
    return files(f"refsgd.display.{room}").joinpath(name).read_text(encoding="utf-8")
