"""The step player: a run as one self-contained HTML page, stepped forwards and backwards by event.

Its data come from a trace; the lines and variables come from a bit-identical replay.  The page's behaviour is
in ``player.js`` and ``shared.js``, its style in ``player.css``, its skeleton in ``player.html``.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from refsgd.display.files import save
from refsgd.display.player.listing import listing, title
from refsgd.display.player.states import follow
from refsgd.display.player.tape import Tape
from refsgd.effects import Factory
from refsgd.trace import Trace
from refsgd.trace.schema import json_text

LIMIT = 500  #: default number of events on a page

__all__ = ["LIMIT", "Player", "player_html"]


def _window(trace: Trace, events: tuple[int, int] | None, limit: int) -> tuple[int, int]:
    if events is None:
        if limit < 1:
            raise ValueError(f"limit {limit}; expected at least 1 event")
        return 0, min(limit, len(trace.events))
    first, last = events
    if not 0 <= first < last:
        raise ValueError(f"events {events}; expected (first, last) with 0 <= first < last")
    if first >= max(1, len(trace.events)):
        raise ValueError(f"events {events}; the run has {len(trace.events)}")
    return first, min(last, len(trace.events))


def player_html(trace: Trace, factory: Factory | None = None, *, name: str = "run", unit: str = "s",
                events: tuple[int, int] | None = None, limit: int = LIMIT, at_end: bool = False,
                actions: Sequence[tuple[str, str]] | None = None) -> str:
    """A run as one HTML page."""
    first, last = _window(trace, events, limit)
    states = follow(trace, factory, first, last)
    data = Tape(trace, states, first, last, unit).to_json()
    data |= {"name": name, "atEnd": at_end, "actions": actions, "files": [title(f) for f in states.files]}
    source = "".join(listing(i, f, functions) for i, (f, functions) in enumerate(states.files.items()))
    if states.note:
        source = f'<p class="note">{html.escape(states.note)}</p>{source}'
    return page("player", name, source, data)


def page(kind: str, name: str, source: str, data: Mapping[str, Any]) -> str:
    """A page of the package `kind` next to this one, in the player's style and its own."""
    def asset(kind: str, file: str) -> str:
        return files(f"refsgd.display.{kind}").joinpath(file).read_text(encoding="utf-8")

    values = json_text(data, separators=(",", ":"), ensure_ascii=False)
    parts = {"name": html.escape(name), "source": source, "data": values.replace("<", "\\u003c"),
             "css": "".join(asset(each, f"{each}.css") for each in dict.fromkeys(("player", kind))),
             "js": asset("player", "shared.js") + asset(kind, f"{kind}.js")}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset(kind, f"{kind}.html"))


class Player:
    """The step player's page, `html`, which a notebook shows in a frame of `height` pixels; also written to
    `path` if one is given."""

    def __init__(self, html: str, path: str | Path | None = None, height: int = 860) -> None:
        self.html, self.height = html, height
        if path is not None:
            self.save(path)

    def save(self, path: str | Path) -> Path:
        """Write the page; returns its path."""
        save(path, self.html)
        return Path(path)

    def _repr_html_(self) -> str:
        return (f'<iframe title="step player" srcdoc="{html.escape(self.html, quote=True)}" '
                f'style="width:100%;height:{self.height}px;border:1px solid #8884;border-radius:6px" '
                'loading="lazy"></iframe>')

    def __repr__(self) -> str:
        return f"Player({len(self.html.encode()) / 1e3:.0f} kB; .save('run.html') writes the page)"
