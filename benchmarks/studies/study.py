"""What a study says: tables of paper | formula | simulation | processes, a verdict on each claim,
pictures as data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

# scipy.special is loaded when it is asked for; scipy.stats would cost every command half a second
import scipy

from refsgd.trace.schema import json_text

if TYPE_CHECKING:
    from benchmarks.studies.lab import Lab

FORMAT = 1  #: version of the JSON format
Verdict = Literal["holds", "holds in shape", "does not hold", "not testable"]
Value = float | str | None


class Line(NamedTuple):
    """One quantity: what the document says beside what we find; None where there is nothing to say."""

    what: str
    paper: Value = None
    formula: Value = None
    simulated: Value = None
    processes: Value = None
    unit: str = ""
    #: half width of the 95 % interval over seeds: of what is simulated, else of the processes'
    half: float | None = None
    implementation: Value = None  #: with what an implementation adds to the messages of an algorithm


class Claim(NamedTuple):
    """One statement of the document, and what became of it."""

    says: str
    where: str  #: section, table or figure of the document
    verdict: Verdict
    because: str  #: the figures that decide it, or why it cannot be tested


class Panel(NamedTuple):
    """One diagram: curves of points (x, y) by label; a label that ends in "(paper)" is drawn as marks.

    The points of a timeline are bars (start, end), its labels "row: what"; a series has too many points for marks.
    """

    title: str
    x: str
    y: str
    curves: Mapping[str, Sequence[tuple[float, float]]]
    kind: Literal["lines", "bars", "timeline", "series"] = "lines"
    log: str = ""  #: "x", "y" or "xy"
    names: Sequence[str] = ()  #: of the groups of bars, in place of their x values


class Grid(NamedTuple):
    """A table of one quantity: a row of values by its name, a column for each way to do it."""

    title: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[Value]]


@dataclass(frozen=True)
class Part:
    """One table or figure of a document, redone.

    Attributes
    ----------
    key : str
        Short name, also of the picture's file.
    title, where : str
        What it is about; the table or figure it answers to.
    lines, claims, panels, grids
        See `Line`, `Claim`, `Panel`, `Grid`; panels stand side by side as in the document's figure.
    note : str
        What differs from the document, and what a reader should learn from it.
    processor : str
        What it was run on.
    """

    key: str
    title: str
    where: str
    lines: Sequence[Line] = ()
    claims: Sequence[Claim] = ()
    panels: Sequence[Panel] = ()
    note: str = ""
    grids: Sequence[Grid] = ()
    processor: str = ""

    @property
    def timed(self) -> bool:
        """Whether anything in it was timed on this computer, where other work would have slowed it."""
        return any(line.processes is not None for line in self.lines)


@dataclass(frozen=True)
class Study:
    """A document's experiments, redone.

    Attributes
    ----------
    name, document : str
    quick : bool
        Whether the sizes were those of continuous integration.
    seed : int
    parts : sequence of Part
    learn : str
        What a reader should learn from where we and the document part.
    """

    name: str
    document: str
    quick: bool
    seed: int
    parts: Sequence[Part] = field(default=())
    learn: str = ""

    @property
    def claims(self) -> list[Claim]:
        """All verdicts in order."""
        return [claim for part in self.parts for claim in part.claims]

    def part(self, key: str) -> Part:
        """The part of that key; raises KeyError."""
        return {part.key: part for part in self.parts}[key]

    def beside(self, older: Study) -> Study:
        """The older study with these parts in the places of its own, or after them."""
        parts = {part.key: part for part in (*older.parts, *self.parts)}
        return replace(self, parts=list(parts.values()))

    @classmethod
    def from_json(cls, text: str) -> Study:
        """The study that `to_json` wrote."""
        told = json.loads(text)
        if told["format"] != FORMAT:
            raise ValueError(f"a study of format {told['format']}; expected {FORMAT}")
        kinds = {"lines": Line, "claims": Claim, "panels": Panel, "grids": Grid}
        parts = [Part(**{key: [kinds[key](**each) for each in value] if key in kinds else value
                         for key, value in part.items()}) for part in told["parts"]]
        return cls(told["study"], told["document"], told["quick"], told["seed"], parts, told["learn"])

    def to_json(self) -> str:
        """The study as JSON, format 1."""
        from refsgd import __version__

        parts = [{**asdict(part), "lines": [line._asdict() for line in part.lines],
                  "claims": [c._asdict() for c in part.claims],
                  "panels": [p._asdict() for p in part.panels],
                  "grids": [grid._asdict() for grid in part.grids]} for part in self.parts]
        return json_text({"refsgd": __version__, "format": FORMAT, "study": self.name,
                           "document": self.document,
                           "quick": self.quick, "seed": self.seed, "learn": self.learn, "parts": parts})


class Document(NamedTuple):
    """A document as a study: its title, one function for each part in the document's order, and what its
    redoing teaches."""

    title: str
    parts: Sequence[Callable[[Lab], Part]]
    learn: str = ""


def judged(says: str, where: str, holds: bool, because: str, *, shape: bool = False) -> Claim:
    """A claim that figures decide; `shape`: only its shape could be tested, not its absolute values.

    Examples
    --------
    >>> judged("asynchronous training makes n times the updates", "Table II", 32 == 8 * 4, "32 and 4 updates").verdict
    'holds'
    """
    verdict: Verdict = "does not hold" if not holds else "holds in shape" if shape else "holds"
    return Claim(says, where, verdict, because)


def interval(found: Sequence[float], among: int = 1) -> tuple[float, float]:
    """Mean and half width of its 95 % interval: Student's t over the seeds."""
    half = float(scipy.special.stdtrit(len(found) - 1, 1 - 0.025 / among) * np.std(found, ddof=1) / math.sqrt(
        len(found))) if len(found) > 2 else math.nan
    return float(np.mean(found)), half


def averaged(what: str, found: Sequence[float], paper: Value = None, formula: Value = None,
             unit: str = "") -> Line:
    """A line of what several seeds gave: their mean and its interval."""
    mean, half = interval(found)
    return Line(what, paper, formula, mean, unit=unit, half=half)


def decided(says: str, where: str, differences: Sequence[float], because: str) -> Claim:
    """A claim in shape that a difference is above zero: by its interval over seeds, by its sign where one
    seed has to do.

    Examples
    --------
    >>> [decided("a rises", "Fig. 1", d, "").verdict for d in ([0.1, 0.2, 0.15], [-0.1, 0.2, 0.15], [-0.1, -0.2, -0.15])]
    ['holds in shape', 'not testable', 'does not hold']
    """
    mean, half = interval(differences)
    if abs(mean) <= half:
        return untestable(says, where, f"{because}: {len(differences)} seeds do not decide")
    return judged(says, where, mean > 0, because, shape=True)


def untestable(says: str, where: str, why: str) -> Claim:
    """A claim that cannot be tested here."""
    return Claim(says, where, "not testable", why)


def shown(value: Value, exact: bool = False) -> str:
    """A value as a cell of a table: three significant digits, empty for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if exact:
        return f"{value:,.6g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def cells(part: Part) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a part's table, without the columns in which nothing stands."""
    names = ("paper", "formula", "simulated", "implementation", "processes")
    used = [name for name in names if any(getattr(line, name) is not None for line in part.lines)]
    rows = [[line.what + (f" [{line.unit}]" if line.unit else ""),
             *(shown(getattr(line, name), name == "paper") + _within(line, name) for name in used)]
             for line in part.lines]
    return ["", *used], rows


def _within(line: Line, column: str) -> str:
    """The half width of an interval in the column that it belongs to, with two digits; nothing where it
    is no more than rounding."""
    value = getattr(line, column)
    if column != ("processes" if line.simulated is None else "simulated") or not isinstance(value, float):
        return ""
    if line.half is None or math.isnan(line.half) or line.half <= 1e-9 * abs(value):
        return ""
    return f" ± {float(f'{line.half:.2g}'):,g}"


def tally(claims: Sequence[Claim]) -> dict[str, int]:
    """How many claims have each verdict."""
    out: dict[str, Any] = {}
    for claim in claims:
        out[claim.verdict] = out.get(claim.verdict, 0) + 1
    return out
