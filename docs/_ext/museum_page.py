"""Sphinx directives of the museum of wrong code; everything that they show is found when the site is built.

``exhibit-training`` NAME AGAINST trains the exhibit on the digits, and an algorithm of the catalogue beside
it; ``:accuracy:`` is the least that the page claims, and ``:options:`` and ``:against:`` are those of the two
runs.  ``exhibit-counterexample`` NAME has the code of a small case; it shows the shortest schedule that
breaks the case, whose number of ``:events:`` the page states, and, unless it is ``:player-only:``, a page of
all schedules.  ``exhibit-correction`` NAME has a diff.  ``exhibit-figures`` NAME runs code that calls the
exhibit ``program``, and shows what it prints.
"""

from __future__ import annotations

import difflib
import html
import itertools
import textwrap
from pathlib import Path
from typing import Any, ClassVar

import exhibits
import experiments
import matplotlib
import numpy as np
from algorithm_page import Directive, element, folded, listing, style
from docutils import nodes
from docutils.parsers.rst import directives
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri

import refsgd
from refsgd.cluster.units import counted
from refsgd.display.player import player_html
from refsgd.display.scheduler import scheduler_html


class Exhibit(Directive):
    """What the directives share."""

    def frame(self, target: str, title: str) -> nodes.Node:
        """A page of the site's static files in a frame."""
        uri = relative_uri(self.env.app.builder.get_target_uri(self.env.docname), f"_static/{target}")
        return nodes.raw("", f'<iframe class="algorithm-player" loading="lazy" src="{uri}" '
                             f'title="{html.escape(title)}"></iframe><p class="algorithm-player-link">'
                             f'<a href="{uri}">On a page of its own</a></p>', format="html")

    def write(self, target: str, text: str) -> str:
        """Write a page into the site's static files; its place there."""
        path = Path(self.env.app.outdir, "_static", target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return target

    def depend(self, name: str) -> exhibits.Source:
        """The exhibit's source; the page is regenerated when it changes."""
        source = exhibits.source_of(name)
        self.env.note_dependency(str(source.path))
        return source


class Training(Exhibit):
    """``exhibit-training``."""

    option_spec: ClassVar[dict[str, Any]] = {"accuracy": float, "options": directives.unchanged,
                                             "against": directives.unchanged}

    def make(self) -> list[nodes.Node]:
        """A figure of two curves, and the accuracies."""
        name, other = self.name_of_algorithm().split()
        self.depend(name)
        options = self.options.get("options", "")
        mine = exhibits.train(exhibits.algorithm(exhibits.program(name)), options)
        theirs = exhibits.train(other, self.options.get("against", options))
        claimed, reached = self.options["accuracy"], mine.accuracy["test"]
        if reached < claimed:
            raise ValueError(f"{name} reaches {reached:.1%}; expected at least {claimed:.1%}")
        said = (f"Test accuracy on the digits with {counted(mine.workers, 'worker')} and "
                f"{counted(mine.steps, 'step')} each: this program {reached:.1%}, `{other}` of the catalogue "
                f"{theirs.accuracy['test']:.1%}. Trained in the simulator when this page was built.")
        figure = nodes.figure(classes=["algorithm-picture"])
        figure += nodes.raw("", f"<div class='scroll'>{self.curves(mine, theirs, other, said)}</div>",
                            format="html")
        text = nodes.caption(said, "")
        text += self.markdown(said)[0].children
        figure += text
        return [figure]

    def curves(self, mine: refsgd.Result, theirs: refsgd.Result, other: str, said: str) -> str:
        """Accuracy against virtual seconds."""
        prefix = f"{self.env.docname.rsplit('/', 1)[-1]}-{self.lineno}"
        with matplotlib.rc_context(style(prefix)):
            figure = Figure(figsize=(7.2, 2.8), layout="constrained")
            ax = figure.add_subplot()
            for result, label, look, color in ((mine, "this program", "-", "#0072b2"),
                                               (theirs, other, ":", "#d55e00")):
                history = np.array(result.history)  # seconds, updates, images, loss, test accuracy
                ax.plot(history[:, 0], 100 * history[:, 4], look, label=label, color=color, linewidth=2.2)
            ax.set_xlabel("seconds (virtual)")
            ax.set_ylabel("test accuracy, %")
            ax.set_ylim(0, 100)
            ax.legend(frameon=False, loc="lower right")
            return element(figure, prefix, said.replace("`", ""))


class Broken(Exhibit):
    """``exhibit-counterexample``."""

    option_spec: ClassVar[dict[str, Any]] = {"events": directives.positive_int,
                                             "player-only": directives.flag}

    def make(self) -> list[nodes.Node]:
        """What fails, the schedule, the player of it, and the page on which the reader looks for it."""
        name, code = self.name_of_algorithm(), "\n".join(self.content) + "\n"
        self.depend(name)
        self.env.temp_data["exhibit_case"] = code
        found = exhibits.broken(name, code)
        assert found.world is not None and found.factory is not None
        length = len(found.world.events)
        if length != self.options["events"]:
            raise ValueError(f"{name}: the shortest counterexample has {counted(length, 'event')}; "
                             f"the page says {self.options['events']}")
        played = self.write(f"museum/{name}-player.html", player_html(
            found.world.trace(), found.factory, name=f"{name}, the shortest counterexample", limit=250))
        said = textwrap.fill(experiments.tidy(f"{type(found.error).__name__}: {found.error}"),
                             80, break_on_hyphens=False)
        share = exhibits.share_broken(name, code)
        rare = f"Of a thousand random schedules of this case, {'all' if share == 1 else f'{1000 * share:.0f}'} show it"
        return [*self.markdown(f"{rare}. The shortest counterexample has **{counted(length, 'event')}**:"),
                listing(f"{said}\n\n{found.text}", "text", ["seen"]),
                *self.markdown("Step through it, forwards and backwards:"),
                self.frame(played, f"The shortest counterexample of {name}"),
                *([] if "player-only" in self.options else self.find(name, code)),
                *folded("The small case and the check", listing(experiments.imports(code) + "\n" + code))]

    def find(self, name: str, code: str) -> list[nodes.Node]:
        """The page of all schedules."""
        deploy, check, _ = exhibits.case(exhibits.program(name), code)
        page = scheduler_html(deploy, check, lambda run: "", name=name)
        target = self.write(f"museum/{name}-scheduler.html", page)
        return folded("Be the scheduler: find it yourself. You decide what happens next.",
                      self.frame(target, f"Be the scheduler: {name}"))


class Figures(Exhibit):
    """``exhibit-figures``."""

    def make(self) -> list[nodes.Node]:
        """What the code prints; the code is folded."""
        name, code = self.name_of_algorithm(), "\n".join(self.content) + "\n"
        self.depend(name)
        return [listing(exhibits.figures(name, code), "text", ["seen"]),
                *folded("How these figures are computed", listing(experiments.imports(code) + "\n" + code))]


class Correction(Exhibit):
    """``exhibit-correction``."""

    def make(self) -> list[nodes.Node]:
        """The diff, and what the explorer says of the corrected program."""
        name, text = self.name_of_algorithm(), "\n".join(self.content)
        source, diff = self.depend(name), list[str]()
        for hunk in experiments.parse(text)[0]:
            first = source.find(hunk.old, hunk.function)
            old = textwrap.dedent("".join(source.lines[first:first + len(hunk.old)])).splitlines()
            lines = difflib.unified_diff(old, hunk.new, n=len(old), lineterm="")
            diff += [f"@@ line {first + 1}, {hunk.function} @@",
                     *itertools.islice(lines, 3, None)]
        report = exhibits.holds(name, self.env.temp_data["exhibit_case"], text)
        if not report.complete:
            raise ValueError(f"{name}: more than {counted(report.runs, 'schedule')}; expected a smaller case")
        return [listing("\n".join(diff), "diff"),
                *self.markdown(
                    "The same check **holds in every schedule** of the corrected program "
                    f"({counted(report.runs, 'schedule')}, up to the order of independent steps).")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    for name, directive in {"training": Training, "counterexample": Broken, "figures": Figures,
                            "correction": Correction}.items():
        app.add_directive(f"exhibit-{name}", directive)
    return {"version": refsgd.__version__, "parallel_read_safe": True, "parallel_write_safe": True}
