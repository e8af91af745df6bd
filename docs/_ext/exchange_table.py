"""The directives ``exchange-table``, which algorithm takes which option of an exchange, and why others do not,
from the facts by which the library refuses them, and ``outcome-table``, what becomes of a run in which a worker
dies, as the tests expect it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import EXCHANGE, facts_of

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

#: options that the same algorithms take stand in one column
COLUMNS = (("layout", "balance", "priority"), ("overlap",), ("bucket",), ("compress", "feedback"))


def row(name: str) -> list[str]:
    """The algorithm, what it takes in each column, and why it does not take the rest."""
    facts, cells, reasons = facts_of(CATALOGUE[name]), [], dict[str, list[str]]()
    against = facts.because.get("overlap both", "")
    for options in COLUMNS:
        taken = [option for option in options if not facts.refusal(option)]
        kind = "yes" if taken != ["overlap"] else "backward" if against else "backward, both"
        cells.append("" if not taken else kind if len(taken) == len(options) else ", ".join(taken))
        for option in options:
            if reason := facts.refusal(option):
                reasons.setdefault(reason, []).append(option)
    if cells[1] == "backward":
        reasons[against] = ["overlap both"]
    every = sum(map(len, COLUMNS))
    said = [reason if len(options) == every else f"{', '.join(options)}: {reason}"
            for reason, options in reasons.items()]
    return [f"`{name}`", *cells, "; ".join(said)]


def table() -> str:
    """All algorithms of the catalogue, in its order, as Markdown."""
    heads = ["algorithm", *(", ".join(f"`{option}`" for option in options) for options in COLUMNS), "why not"]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *map(row, CATALOGUE)))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    from algorithm_page import Directive  # it needs docutils, and a test of `table` does not

    from tests.runtimes import outcomes

    class ExchangeTable(Directive):
        """``exchange-table``."""

        def make(self) -> list[nodes.Node]:
            """The table."""
            assert {option for options in COLUMNS for option in options} == set(EXCHANGE)
            return self.markdown(table())

    class OutcomeTable(Directive):
        """``outcome-table``."""

        def make(self) -> list[nodes.Node]:
            """The table."""
            return self.markdown(outcomes.table())

    app.add_directive("exchange-table", ExchangeTable)
    app.add_directive("outcome-table", OutcomeTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
