"""Be the scheduler: the state graph of a small case as one self-contained HTML page.

The reader picks what happens next among all actions that the explorer allows, takes moves back, and tries to
reach goals.  The page needs no network and no kernel; its style, listing and sentences are the step player's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from refsgd.display.player import page
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
    source = "".join(listing(i, file, lines) for i, (file, lines) in enumerate(graph.files.items()))
    return page("scheduler", name, source, graph.to_json())
