"""The directive ``exchange-table``: which algorithm takes which option of an exchange, and why others do
not, from the table by which the library refuses them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.exchange import Exchange
from refsgd.experiment.arguments import Usage
from refsgd.experiment.options.exchanges import TAKES, check, refusal

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

#: options that the same algorithms take stand in one column
COLUMNS = (("layout", "balance", "priority"), ("overlap",), ("bucket",), ("compress", "feedback"))


def overlaps(name: str) -> str:
    """The overlaps that an algorithm takes by default, and the reason against `both`."""
    try:
        check(name, {}, Exchange(overlap="both"), SimpleNamespace(layers=()))  # type: ignore[arg-type]
        return "backward, both"
    except Usage as error:
        return "backward; " + str(error).partition(": ")[2].partition(";")[0]


def row(name: str) -> list[str]:
    """The algorithm, what it takes in each column, and why it does not take the rest."""
    cells, reasons = [], dict[str, list[str]]()
    for options in COLUMNS:
        taken = [option for option in options if not refusal(name, option)]
        kind = overlaps(name).partition(";")[0] if taken == ["overlap"] else "yes"
        cells.append("" if not taken else kind if len(taken) == len(options) else ", ".join(taken))
        for option in options:
            if reason := refusal(name, option):
                reasons.setdefault(reason, []).append(option)
    if cells[1] == "backward":
        reasons[overlaps(name).partition("; ")[2]] = ["overlap both"]
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

    class ExchangeTable(Directive):
        """``exchange-table``."""

        def make(self) -> list[nodes.Node]:
            """The table."""
            assert {option for options in COLUMNS for option in options} == set(TAKES)
            return self.markdown(table())

    app.add_directive("exchange-table", ExchangeTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
