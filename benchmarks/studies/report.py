"""A study for people: tables on a terminal, a page for the documentation, pictures in the layout of the
document's."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from rich.table import Table

from benchmarks.studies.study import Panel, Part, Study, cells, shown, tally

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
#: what a study asks, as the title of its page
TITLES = {"jia2020": "Staleness, accuracy and more workers (Jia et al., 2020)",
          "ko2021": "Seven algorithms and three techniques (Ko et al., 2021)",
          "graur2019": "Servers, rings and sessions in two frameworks (Graur, 2019)",
          "pani2020": "Batches, losses and devices of different speeds (Pani et al., 2020)"}
#: a verdict in words, and of several claims
SAID: dict[str, str] = {"holds": "holds", "holds in shape": "holds in order, not in size", "does not hold": "does not hold",
                        "not testable": "cannot be tested here"}
PLURAL = {"holds": "hold", "holds in shape": "hold in order, not in size", "does not hold": "do not hold",
          "not testable": "cannot be tested here"}
FEW = 3  #: curves whose legend may stand among them


def tables(study: Study) -> list[Table]:
    """A table of figures and one of verdicts for each part that has them."""
    out = []
    for part in study.parts:
        if part.lines:
            header, rows = cells(part)
            table = Table(title=f"{part.where}: {part.title}", title_justify="left")
            for i, name in enumerate(header):
                table.add_column(name, justify="left" if not i else "right")
            for row in rows:
                table.add_row(*row)
            out.append(table)
        for grid in part.grids:
            table = Table("", *grid.columns, title=f"{part.where}: {grid.title}", title_justify="left")
            for name, values in grid.rows.items():
                table.add_row(name, *map(shown, values))
            out.append(table)
        if part.claims:
            table = Table(title=f"{part.where}: what became of its claims", title_justify="left")
            for name in ("claim", "verdict", "because"):
                table.add_column(name)
            for claim in part.claims:
                table.add_row(claim.says, claim.verdict, claim.because)
            out.append(table)
    return out


def markdown(study: Study, pictures: str = "") -> str:
    """The study as a page in MyST markdown; `pictures` is the folder of the parts' pictures."""
    size = "the sizes of continuous integration (`--quick`)" if study.quick else "full size"
    first = next((part for part in study.parts if part.panels), None)
    out = [f"# {TITLES.get(study.name, study.name)}", "", study.document, "", *verdicts(study), ""]
    if first:
        out += [_picture(study, first, pictures), ""]
    if study.learn:
        out += ["**What to learn**", "", study.learn, ""]
    out += [f"Made by `python -m benchmarks.studies {study.name}{' --quick' if study.quick else ''} --seed {study.seed}` at {size}.", ""]
    for part in study.parts:
        timed = f" Timed on {part.processor}." if part.timed and part.processor else ""
        out += [f"## {part.title}", "", f"*{part.where}.* {part.note}{timed}".strip(), ""]
        if part.lines:
            header, rows = cells(part)
            out += [_row(header), _row(["---"] + ["---:"] * (len(header) - 1)), *(_row(row) for row in rows),
                    ""]
        for grid in part.grids:
            out += [f"**{grid.title}**", "", _row(["", *grid.columns]),
                    _row(["---"] + ["---:"] * len(grid.columns)),
                    *(_row([name, *map(shown, values)]) for name, values in grid.rows.items()), ""]
        if part.panels:
            out += ["The picture at the top shows it." if part is first else _picture(study, part, pictures), ""]
        if part.claims:
            out += [_row(["claim", "where", "verdict", "because"]), _row(["---"] * 4)]
            out += [_row([c.says, c.where, f"**{SAID[c.verdict]}**", c.because]) for c in part.claims] + [""]
    return "\n".join(out)


def verdicts(study: Study) -> list[str]:
    """How many claims hold, in a sentence."""
    found = tally(study.claims)
    said = [f"{n} {PLURAL[verdict] if n > 1 else SAID[verdict]}" for verdict in SAID if (n := found.get(verdict, 0))]
    count = len(study.claims)
    return [f"Of {count} claims, {'; '.join(said)}."] if said else []


def _picture(study: Study, part: Part, pictures: str) -> str:
    return f"![{_shown(part)}]({pictures}{study.name}-{part.key}.png)"


def _shown(part: Part) -> str:
    """What a part's picture shows, as its alternative text."""
    panels = "; ".join(f"{panel.y or 'timeline'} by {panel.x} ({panel.title})" for panel in part.panels)
    return (
        f"{part.title}: {panels}. Curves: "
        f"{', '.join(dict.fromkeys(curve for panel in part.panels for curve in panel.curves))}.")


def _row(texts: list[str]) -> str:
    return "| " + " | ".join(t.replace("|", "\\|") for t in texts) + " |"


def picture(part: Part) -> Figure:
    """The part's panels side by side; four as two rows, many as rows of three."""
    from matplotlib.figure import Figure

    count = len(part.panels)
    rows = 1 if count < 4 else 2 if count <= 8 else -(-count // 3)
    columns = -(-count // rows)
    figure = Figure(figsize=(4.6 * columns, 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    first = tuple(part.panels[0].curves)
    shared = [tuple(panel.curves) == first and len(first) > FEW for panel in part.panels]
    alike = all(shared) or (count > 8 and sum(shared) > 1)
    for ax, panel, same in zip(axes, part.panels, shared):
        draw(panel, ax, legend=not (alike and same))
    for ax in axes[len(part.panels) :]:
        ax.remove()
    if alike:  # one legend for all, which hides no point
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def draw(panel: Panel, ax: Axes, legend: bool = True) -> Axes:
    """One panel; the document's own figures as marks.  Of many curves the first have the largest marks
    and the widest lines: those on top hide none."""
    if panel.kind == "timeline":
        _timeline(panel, ax)
    elif panel.kind == "bars":
        _bars(panel, ax)
    elif panel.kind == "series":
        for i, (label, points) in enumerate(panel.curves.items()):
            ax.plot(*zip(*points), "-" if i < len(COLOURS) else "--", color=COLOURS[i % len(COLOURS)],
                    lw=1.2 + 0.6 * (len(panel.curves) - 1 - i), label=label)
    else:
        ours = sum(not label.endswith("(paper)") for label in panel.curves)
        for i, (label, points) in enumerate(panel.curves.items()):
            colour, mark = COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]
            if label.endswith("(paper)"):
                ax.plot(*zip(*points), mark, color=colour, mfc="none", ms=8, label=label)
            else:
                below = 1 - i / ours if ours > FEW else 0.0
                ax.plot(*zip(*points), mark + ("-" if i < len(COLOURS) else "--"), color=colour,
                        ms=4 + 6 * below, lw=1.5 + 2 * below,
                        mfc="none" if below else colour, label=label)
    if panel.kind == "lines":
        _ticks(panel, ax)
    ax.set_title(panel.title, fontsize=10)
    ax.set_xlabel(panel.x)
    ax.set_ylabel(panel.y)
    ax.grid(alpha=0.3)
    if panel.kind == "timeline":
        return ax
    if legend and len(panel.curves) > (1 if panel.kind == "bars" else FEW):
        ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    elif legend and panel.kind in ("lines", "series"):
        ax.legend(fontsize=8)
    return ax


def _ticks(panel: Panel, ax: Axes) -> None:
    """Marks at the x values where they are few whole numbers, plain numbers on logarithmic axes."""
    xs = sorted({x for points in panel.curves.values() for x, _ in points})
    ys = [y for points in panel.curves.values() for _, y in points]
    if "x" in panel.log:
        ax.set_xscale("log")
    few = len(xs) <= 8 and all(float(x).is_integer() for x in xs)
    if "x" in panel.log or (few and min(b - a for a, b in pairwise(xs)) > 0.05 * (xs[-1] - xs[0])):
        ax.set_xticks(xs, [f"{x:g}" for x in xs])
        ax.minorticks_off()
    if "y" in panel.log:
        ax.set_yscale("log")
        steps = (1, 2, 5) if max(ys) > 100 * min(ys) else (1, 2, 3, 4, 6, 8)
        ticks = [m * 10.0**e for e in range(-6, 9) for m in steps if min(ys) <= m * 10.0**e <= max(ys)]
        ax.set_yticks(ticks, [f"{y:g}" for y in ticks])
        ax.minorticks_off()


def _bars(panel: Panel, ax: Axes) -> None:
    """Groups of bars at the x values, which are categories."""
    xs = sorted({x for points in panel.curves.values() for x, _ in points})
    width = 0.8 / len(panel.curves)
    for i, (label, points) in enumerate(panel.curves.items()):
        at = [xs.index(x) + (i - (len(panel.curves) - 1) / 2) * width for x, _ in points]
        ax.bar(at, [y for _, y in points], width, label=label, color=COLOURS[i % len(COLOURS)])
    ax.set_xticks(range(len(xs)), panel.names or [f"{x:g}" for x in xs])


def _timeline(panel: Panel, ax: Axes) -> None:
    """A row for each kind of work, from the top; bars of one colour and label belong together."""
    rows, whats = (list(dict.fromkeys(label.split(": ")[i] for label in panel.curves)) for i in (0, 1))
    for label, bars in panel.curves.items():
        row, what = label.split(": ")
        for start, end in bars:
            y, colour = rows.index(row), COLOURS[whats.index(what) % len(COLOURS)]
            ax.broken_barh([(start, end - start)], (y - 0.38, 0.76), color=colour, edgecolor="white")
            ax.text((start + end) / 2, y, what.split()[-1], ha="center", va="center", fontsize=8, color="white")
    ax.set_yticks(range(len(rows)), rows)
    ax.invert_yaxis()
    ax.set_axisbelow(True)
