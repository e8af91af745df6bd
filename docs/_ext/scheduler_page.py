"""Sphinx directives of the pages on which the reader decides: the scheduler, and questions that answer.

``scheduler`` NAME embeds the state graph of a small case as a page, folded unless ``:open:`` is given.  The
case has ``:workers:``, ``:steps:``, ``:options:`` and ``:deaths:``, or a body in Python that defines
``deploy()`` and perhaps ``check(run)``.  ``question`` asks; each line of its body is an answer and, after ``::``, what is
said to a reader who chooses it; the right one begins with ``*``.
"""

from __future__ import annotations

import html
import linecache
from pathlib import Path
from typing import Any, ClassVar

import experiments
from algorithm_page import Directive, values_of
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri

from refsgd.cluster.units import counted
from refsgd.display.scheduler import scheduler_html
from refsgd.testing import explore_algorithm


class Scheduler(Directive):
    """``scheduler``."""

    option_spec: ClassVar[dict[str, Any]] = {
        "workers": directives.positive_int, "steps": directives.positive_int,
        "deaths": directives.positive_int, "options": directives.unchanged, "open": directives.flag}

    def make(self) -> list[nodes.Node]:
        """A frame, and a link to the page in it."""
        name, o = self.name_of_algorithm(), self.options
        target = f"schedulers/{self.env.docname.rsplit('/', 1)[-1]}-{self.lineno}.html"
        path = Path(self.env.app.outdir, "_static", target)
        path.parent.mkdir(parents=True, exist_ok=True)
        workers, steps = o.get("workers", 2), o.get("steps", 1)
        if self.content:
            code = "\n".join(self.content) + "\n"
            outcome, text = experiments.perform(code, "program.py"), experiments.imports(code) + code
            linecache.cache["program.py"] = len(text), None, text.splitlines(keepends=True), "program.py"
            if outcome.failure or "deploy" not in outcome.values:
                raise ValueError(f"no programs: {outcome.failure or 'the body does not define deploy()'}")
            check = outcome.values.get("check", lambda run: None)
            path.write_text(scheduler_html(outcome.values["deploy"], check, lambda run: "", name=name),
                            encoding="utf-8")
            about = name
        else:
            explore_algorithm(name, workers=workers, steps=steps, page=path, deaths=o.get("deaths", 0),
                              **values_of(o.get("options", "")))
            about = f"{name} with {counted(workers, 'worker')} and {counted(steps, 'step')} each"
        uri = relative_uri(self.env.app.builder.get_target_uri(self.env.docname), f"_static/{target}")
        title = html.escape(about)
        frame = (f'<iframe class="algorithm-player" loading="lazy" src="{uri}" title="Be the scheduler: {title}">'
                 f'</iframe><p class="algorithm-player-link"><a href="{uri}">On a page of its own</a></p>')
        if "open" not in o:
            frame = (f'<details class="algorithm-fold"><summary>Be the scheduler: {title}. You decide what '
                     f"happens next.</summary>{frame}</details>")
        return [nodes.raw("", frame, format="html")]


class Question(Directive):
    """``question``."""

    def make(self) -> list[nodes.Node]:
        """The answers, each of which unfolds what is to be said of it."""
        answers, group = [], f"question-{self.lineno}"
        lines = [line for line in self.content if line.strip()]
        if sum(line.startswith("* ") for line in lines) != 1:
            raise ValueError("expected one right answer, which begins with '* '")
        for line in lines:
            right = line.startswith("* ")
            answer, sign, said = line.removeprefix("* ").partition(" :: ")
            if not sign:
                raise ValueError(f"{line!r}; expected an answer :: what is said of it")
            verdict = "Right." if right else "Not quite."
            answers.append(f'<details name="{group}" class="{"right" if right else "wrong"}"><summary>'
                           f"{html.escape(answer)}</summary><p><strong>{verdict}</strong> "
                           f"{html.escape(said)}</p></details>")
        asked = f'<p class="asked" id="{group}">{html.escape(str(self.arguments[0]))}</p>'
        return [nodes.raw("", f'<div class="question" role="group" aria-labelledby="{group}">{asked}'
                              f'{"".join(answers)}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("scheduler", Scheduler)
    app.add_directive("question", Question)
    return {"version": "1", "parallel_read_safe": True}
