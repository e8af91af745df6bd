"""The directive ``algorithm-index``: the catalogue by families, with what each page says at its top about who
waits for whom and what is stale."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsgd.algorithms import CATALOGUE, FAMILIES

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

PAGES = Path(__file__).parents[1] / "algorithms"


def row(name: str) -> str:
    """The page of an algorithm with its title, and the two facts above it."""
    _, facts, text = (PAGES / f"{name}.md").read_text().split("---\n", 2)
    known = {key: text.replace("''", "'") for key, text in re.findall(r"^(\w+): '(.*)'$", facts, re.M)}
    title = text.strip().splitlines()[0].removeprefix("# ")
    return f"| [{title}]({name}) | {known['waits']} | {known['stale']} |"


def families() -> dict[str, list[str]]:
    """The names of the catalogue by family, in words."""
    found: dict[str, list[str]] = {}
    for family in FAMILIES:
        names = [name for name, function in CATALOGUE.items() if function.__module__.split(".")[2] == family]
        found[family.replace("_", " ")] = names
    return found


def table() -> str:
    """All families as Markdown."""
    parts = []
    for family, names in families().items():
        head = f"| {family} | who waits for whom | what is stale |"
        parts.append("\n".join([head, "|---|---|---|", *map(row, names)]))
    return "\n\n".join(parts)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    from algorithm_page import Directive  # it needs docutils, and a test of `table` does not

    class AlgorithmIndex(Directive):
        """``algorithm-index``."""

        def make(self) -> list[nodes.Node]:
            """The tables."""
            for name in CATALOGUE:
                self.env.note_dependency(str(PAGES / f"{name}.md"))
            return self.markdown(table())

    app.add_directive("algorithm-index", AlgorithmIndex)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
