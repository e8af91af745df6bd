"""Coverage of the source documents: ``python -m benchmarks.coverage`` writes docs/studies/coverage.md from the
items of docs/studies/coverage.toml.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ITEMS = Path(__file__).parents[1] / "docs" / "studies" / "coverage.toml"
PAGE = ITEMS.with_suffix(".md")
STATES = ("works", "partial", "absent", "background")
TITLES = {
    "A": "Algorithms and systems that the documents name", "B": "Parallelism and topologies",
    "C": "Machines: placement, links, devices", "D": "Optimisation techniques",
    "E": "Nets, data and the mechanics of training", "F": "Metrics and instruments",
    "G": "Experiments, tables, figures, claims", "H": "The library itself, and how the documents measure"}
HEAD = """# Coverage: what the documents contain, and what is here

Every algorithm, system, machine, technique, net, metric, experiment and claim that the five documents name, one row each.

* *works*: a command does it, or a study or a test shows it. A claim works if a verdict decides it, either way.
* *partial*: some of it is here; or it runs, and no study judges it.
* *absent*: nothing here does it.
* *background*: a motive, or a statement about other systems: there is nothing to run.

Rows that are partial or absent say why, and what it would take. The documents are [jia2020](jia2020.md) and its *summary*,
[pani2020](pani2020.md), [ko2021](ko2021.md) and [graur2019](graur2019.md); *own* is what none of them asks for.
`python -m benchmarks.coverage` makes this page from `coverage.toml`, and a test parses every command and finds every study's part, page and test
of it.
"""

Item = Mapping[str, Any]


def load() -> dict[str, list[Item]]:
    """The items of each section."""
    return tomllib.loads(ITEMS.read_text(encoding="utf-8"))


def shown(where: str) -> str:
    """A place as the page has it: a link to a page or a study, or a command or a test as it is written."""
    if where.endswith(".md"):
        return f"{{doc}}`../{where.removeprefix('docs/').removesuffix('.md')}`"
    if part := re.fullmatch(r"([a-z]+\d{4}) (\w+)", where):
        return f"[{part[1]}]({part[1]}.md), {part[2]}"
    return f"`{where}`"


def row(item: Item) -> str:
    """The line of an item."""
    last = ["; ".join(map(shown, item["where"])) + "." * ("reason" in item)] if "where" in item else []
    last += [item["reason"]] if "reason" in item else []
    last += [f"*It would take:* {item['takes']}"] if "takes" in item else []
    return f"| {item['id']} | {item['item']} | {item['document']} | {item['state']} | {' '.join(last)} |"


def counts(title: str, items: Sequence[Item]) -> str:
    """A line of totals."""
    found = [sum(item["state"] == state for item in items) for state in STATES]
    return f"| {title} | {len(items)} | {' | '.join(map(str, found))} |"


def page(sections: Mapping[str, Sequence[Item]]) -> str:
    """The page: totals by section, and a table of each."""
    out = [HEAD, f"| | items | {' | '.join(STATES)} |", "|---|" + "---:|" * (1 + len(STATES))]
    out += [counts(f"{key}. {TITLES[key]}", items) for key, items in sections.items()]
    out += [counts("all", [item for items in sections.values() for item in items]), ""]
    for key, items in sections.items():
        out += [f"## {key}. {TITLES[key]}", "", "| | item | document | state | where, or why not |", "|---:|---|---|---|---|",
                *map(row, items), ""]
    return "\n".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(load()), encoding="utf-8")
