"""Sphinx directives for the page of an algorithm: everything on it that must not go stale is made when the
site is built.

=========================== ==============================================================================================
``algorithm-picture`` NAME  space-time diagram of a small simulated run, as SVG that follows the page's colours
``algorithm-player`` NAME   the same run in the step player, in a frame that loads when it comes into view
``algorithm-facts`` NAME    the "Quick facts" of the module's docstring as a table
``algorithm-pseudocode``    numbered lines, each beside the line of the source where it stands: ``pseudo @ function: source``
``algorithm-source`` NAME   the file, or with ``:function:`` one of its functions, numbered, its lines being targets
``algorithm-check`` NAME    what the closed forms predict beside what a simulated run gives
``algorithm-change`` NAME   a changed line as a diff, the experiment that notices it, and what it saw
``algorithm-experiment``    a few lines of Python and what they print
``algorithm-dialogue``      what happens next and what the programs then do, in words; a test of `tests.interactions`
=========================== ==============================================================================================

A run is described by options: ``:workers: 3``, ``:steps: 4``, ``:machine: latency=0.1 update=fixed(0.2)``,
``:seed:``, ``:lr:``, ``:batch: 4`` and ``:options: staleness=1``; where the algorithm is not in the catalogue, by Python in
the directive's body that defines ``deploy()``.  Whatever does not hold any more (a line that is not in the
source, an experiment that notices nothing, a bound that a run crosses) fails the build.
"""

from __future__ import annotations

import ast
import difflib
import html
import io
import itertools
import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import experiments
import matplotlib
import numpy as np
from docutils import nodes
from docutils.parsers.rst import directives
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.cluster import prices
from refsgd.cluster.machine import Machine
from refsgd.display import plots
from refsgd.display.player import player_html
from refsgd.effects import Deployment
from refsgd.experiment.prepare import prepare
from refsgd.problems import quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Sent, Trace
from refsgd.trace.metrics import METRICS, measure

#: a worker at half speed, and messages slow enough to be seen
PICTURE = {"compute": "fixed(1)", "latency": "0.05", "bandwidth": "400", "update": "fixed(0.1)",
           "speeds": "1,1,0.5"}
#: a small cluster with memoryless workers
CLUSTER = {"compute": "exponential(0.02)", "latency": "0.0005", "bandwidth": "4e6", "update": "fixed(0.0005)"}
INK = "#010203"  #: drawn with it, and written as the page's own text colour
#: metrics of a table, in their order
FIGURES = ("seconds_per_iteration", "seconds", "updates", "bytes_sent", "staleness_mean", "staleness_max",
           "idle_ratio", "clock_gap_max", "lead_max")
KIND = {"exact": "exact", "numerical": "numerical", "approximation": "approximation", "lower": "lower bound",
        "upper": "upper bound"}


def values_of(text: str) -> dict[str, Any]:
    """Read ``staleness=1 refresh=lazy latency=0.1``; numbers and None as such, the rest as strings."""
    out: dict[str, Any] = {}
    for word in text.split():
        key, _, value = word.partition("=")
        try:
            out[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            out[key] = math.inf if value == "inf" else value
    return out


def machine_of(defaults: dict[str, str], text: str) -> Machine:
    """A machine from ``latency=0.1 speeds=1,2``, over the defaults."""
    given = defaults | {k: v for k, _, v in (word.partition("=") for word in text.split())}
    known: dict[str, Any] = {k: float(v) if k in ("latency", "bandwidth", "reduction") else v
                             for k, v in given.items()}
    known["speeds"] = tuple(float(s) for s in given.get("speeds", "").split(",") if s)
    known["colocated"] = given.get("colocated") == "true"
    return Machine(**known)


class SmallRun(NamedTuple):
    """A simulated run that is drawn and played."""

    trace: Trace
    deploy: Callable[[], Deployment]
    title: str


class Directive(SphinxDirective):
    """What all directives of a page share."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def name_of_algorithm(self) -> str:
        """The argument, or the page's own name."""
        return str(self.arguments[0]) if self.arguments else self.env.docname.rsplit("/", 1)[-1]

    def guarded(self, act: Callable[[], list[nodes.Node]]) -> list[nodes.Node]:
        """Report a failure where it is on the page."""
        try:
            return act()
        except (ValueError, AssertionError) as error:
            raise ExtensionError(f"{self.env.docname}, line {self.lineno}, {self.name}: {error}") from error

    def run(self) -> list[nodes.Node]:
        """The directive's nodes."""
        return self.guarded(self.make)

    def make(self) -> list[nodes.Node]:
        """Overridden by each directive."""
        raise NotImplementedError

    def depends_on(self, name: str) -> experiments.Source:
        """The source of a module; the page is regenerated when it changes."""
        source = experiments.source_of(name)
        self.env.note_dependency(str(source.path))
        return source

    def markdown(self, text: str) -> list[nodes.Node]:
        """Text in the page's own markup."""
        return list(self.parse_text_to_nodes(text))


RUN_OPTIONS = {"workers": directives.positive_int, "batch": directives.positive_int, "steps": directives.nonnegative_int,
               "seed": directives.nonnegative_int, "lr": float,
               "momentum": float, "servers": directives.positive_int, "machine": directives.unchanged,
               "options": directives.unchanged}


class Run(Directive):
    """A directive about one small run."""

    option_spec: ClassVar[dict[str, Any]] = {**RUN_OPTIONS, "end": float, "caption": directives.unchanged}

    def small_run(self) -> SmallRun:
        """The run that the options, or the body, describe."""
        name, o = self.name_of_algorithm(), self.options
        machine = machine_of(PICTURE, o.get("machine", ""))
        if name in CATALOGUE:
            own = values_of(o.get("options", ""))
            workers = 1 if name == "sequential" else o.get("workers", 3)
            machine = machine.for_workers(workers)
            problem = quadratic(d=10, workers=workers, noise=0.1, batches=[o.get("batch", 1)] * workers)
            experiment = prepare(name, problem, workers=workers,
                                 steps=o.get("steps", 4), lr=o.get("lr", 0.1),
                                 momentum=o.get("momentum", 0.0), servers=o.get("servers", 1),
                                 machine=machine, seed=o.get("seed", 0), **own)
            title = " ".join([name, *(f"{k}={v}" for k, v in own.items())])
            deploy = experiment.deploy
        else:
            outcome = experiments.perform("\n".join(self.content) + "\n")
            if outcome.failure or "deploy" not in outcome.values:
                raise ValueError(
                    f"no run of {name}: {outcome.failure or 'the body does not define deploy()'}")
            deploy, title = outcome.values["deploy"], name
        return SmallRun(simulate(deploy, machine, o.get("seed", 0)).trace, deploy, title)


class Picture(Run):
    """``algorithm-picture``."""

    def make(self) -> list[nodes.Node]:
        """A figure with an SVG, a caption and a legend."""
        small = self.small_run()
        self.env.temp_data["algorithm_page_run"] = small
        caption = self.options.get("caption", "")
        end = self.options.get("end", small.trace.seconds)
        picture = svg(small.trace, end, f"{self.env.docname.rsplit('/', 1)[-1]}-{self.lineno}",
                      f"Space-time diagram of {small.title}. {caption}")
        legend = "&#8194;".join(
            [*(f"<span style='background: {to_hex(patch.get_facecolor())}'></span> {patch.get_label()}"
                                   for patch in plots.causes_key(plots.causes_of(small.trace, 0.0, end))),
                                   "<span class='message'></span> message"])
        figure = nodes.figure(classes=["algorithm-picture"])
        figure += nodes.raw("",
                            f"<div class='scroll'>{picture}</div><div class='legend' aria-hidden='true'>{legend}</div>", format="html")
        if caption:
            text = nodes.caption(caption, "")
            paragraphs = self.markdown(caption)
            text += paragraphs[0].children
            figure += text
        return [figure]


def style(prefix: str) -> dict[str, Any]:
    """How figures of a page are drawn."""
    return {"svg.fonttype": "none", "svg.hashsalt": prefix, "text.color": INK, "axes.labelcolor": INK,
            "axes.edgecolor": INK, "xtick.color": INK,
            "ytick.color": INK, "font.size": 11, "axes.spines.top": False, "axes.spines.right": False}


def svg(trace: Trace, end: float, prefix: str, label: str) -> str:
    """A timeline as an SVG element; ids are made unique in the page by `prefix`."""
    lanes = list(trace.nodes)
    with matplotlib.rc_context(style(prefix)):
        figure = Figure(figsize=(7.2, 0.6 + 0.42 * len(lanes)), layout="constrained")
        ax = plots.timeline(trace, figure.add_subplot(), 0.0, end, causes=True)
        ax.get_legend().remove()  # the page has one in its own letters
        ax.set_yticks(range(len(lanes)), lanes)
        ax.set_ylim(len(lanes) - 0.4, -0.6)
        ax.set_xlim(0, end)
        ax.set_xlabel("seconds (virtual)")
        return element(figure, prefix, label)


def element(figure: Figure, prefix: str, label: str) -> str:
    """A figure drawn with `INK` as an SVG element."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r'<svg \1', text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r'<svg \1', text, count=1)
    for ink in (INK, "#555555", "#333333"):
        text = text.replace(ink, "currentColor")
    text = re.sub(r"\n\s*", "\n", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label, quote=True)}" ', 1)


class Player(Run):
    """``algorithm-player``: without options it plays the run of the page's picture."""

    def make(self) -> list[nodes.Node]:
        """A frame, and a link to the page in it."""
        known = self.env.temp_data.get("algorithm_page_run")
        small = known if known is not None and not self.options and not self.content else self.small_run()
        name = f"players/{self.env.docname.rsplit('/', 1)[-1]}-{self.lineno}.html"
        target = Path(self.env.app.outdir, "_static", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(player_html(small.trace, small.deploy, name=small.title, limit=250),
                          encoding="utf-8")
        uri = relative_uri(self.env.app.builder.get_target_uri(self.env.docname), f"_static/{name}")
        frame = (
            f'<iframe class="algorithm-player" loading="lazy" src="{uri}" title="Step player: '
            f'{html.escape(small.title)}"></iframe>'
                 f'<p class="algorithm-player-link"><a href="{uri}">The player on a page of its own</a></p>')
        return [nodes.raw("", frame, format="html")]


#: of the facts and of the formulas further down
SYMBOLS = (
    "Unless a page defines them otherwise: $n$ workers, $d$ parameters, $M = 4d$ bytes; $T$ is the time of a gradient, "
    "$u$ that of an update, $\\alpha$ the latency of a message, $\\beta$ the time of a byte on a link, $w = M\\beta$ "
    "that of a model, and $\\gamma$ that of adding a byte to another ([glossary](../explanation/glossary)).")


class Facts(Directive):
    """``algorithm-facts``."""

    def make(self) -> list[nodes.Node]:
        """A table, and the remarks below it."""
        source = self.depends_on(self.name_of_algorithm())
        facts, remarks = quick_facts(ast.get_docstring(ast.parse("".join(source.lines))) or "")
        rows = "".join(f"| {key.replace('|', chr(92) + '|')} | {value.replace('|', chr(92) + '|')} |\n"
                       for key, value in facts)
        return self.markdown(f"| fact | |\n|---|---|\n{rows}\n" + "\n\n".join([SYMBOLS, *remarks]))


def section(doc: str, title: str) -> list[str]:
    """The paragraphs of a section of a docstring."""
    found = re.search(rf"^{re.escape(title)}\n-+\n(.*?)(?=\n\n[^\n]+\n-{{3,}}\n|\Z)", doc, re.S | re.M)
    if not found:
        raise ValueError(f"the docstring has no section {title!r}")
    return [" ".join(p.split()) for p in found[1].strip().split("\n\n")]


def quick_facts(doc: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Pairs (what, value) of the section's first paragraph, and the paragraphs after it."""
    first, *remarks = section(doc, "Quick facts")
    facts: list[tuple[str, str]] = []
    for fact in first.split(" | "):
        key, colon, value = fact.partition(":")
        if colon:
            facts.append((key.strip(), value.strip()))
        else:  # another value of the one before
            facts[-1] = facts[-1][0], f"{facts[-1][1]}; {key.strip()}"
    return facts, remarks


class Pseudocode(Directive):
    """``algorithm-pseudocode``."""

    def make(self) -> list[nodes.Node]:
        """A table: number, line, where it stands."""
        own, rows, number = self.name_of_algorithm(), [], 0
        for line in self.content:
            if not line.strip():
                continue
            text, at, place = line.partition(" @ ")
            if not at:
                rows.append(f"<tr class='role'><th></th><th colspan='2'>{html.escape(text)}</th></tr>")
                continue
            number += 1
            rows.append(
                f"<tr><td class='number'>{number}</td><td><code>{html.escape(text.rstrip())}</code></td><td>{self.link(own, place)}</td></tr>")
        head = "<tr><th></th><th>pseudo-code</th><th>in the source</th></tr>"
        return [
            nodes.raw("",
                      "<div class='scroll'><table "
                      f"class='pseudocode'><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table></div>",
                          format="html")]

    def link(self, own: str, place: str) -> str:
        """A link to the line of ``function: text`` or ``module.function: text``; the text may be the
        beginning of the line."""
        where, colon, text = place.partition(": ")
        module, _, function = where.strip().rpartition(".")
        source = self.depends_on(module or own)
        within = source.within(function)
        hits = [i for i in within if source.lines[i].strip().startswith(text.strip())]
        if not colon or len(hits) != 1:
            raise ValueError(
                f"{source.name}.{function}: {len(hits)} lines begin with {text.strip()!r}; expected exactly "
                "1")
        stem = source.path.stem
        self.env.temp_data.setdefault("algorithm_page_links", set()).add(f"{stem}-{hits[0] + 1}")
        line = source.lines[hits[0]].strip()
        return (f"<a href='#{stem}-{hits[0] + 1}'>{'' if not module else stem + '.py '}{hits[0] + 1}</a> "
                f"<code>{html.escape(line if len(line) <= 70 else line[:68] + '…')}</code>")


class Listing(Directive):
    """``algorithm-source``."""

    option_spec: ClassVar[dict[str, Any]] = {"function": directives.unchanged, "folded": directives.unchanged}

    def make(self) -> list[nodes.Node]:
        """Numbered source lines; of a whole file the docstring is folded, since the page has said it."""
        source = self.depends_on(self.name_of_algorithm())
        if self.options.get("function"):
            found = [self.block(source, source.within(function.strip()))
                     for function in self.options["function"].split(",")]
            return folded(self.options["folded"], *found) if "folded" in self.options else found
        end = ast.parse("".join(source.lines)).body[0].end_lineno or 0
        found = [*folded(f"Its docstring, lines 1 to {end}", self.block(source, range(end))),
                 self.block(source, range(end + 1, len(source.lines)))]
        return folded(self.options["folded"], *found) if "folded" in self.options else found

    def block(self, source: experiments.Source, where: range) -> nodes.Node:
        """Lines of a file under its name."""
        text = "".join(source.lines[where.start:where.stop])
        block = nodes.literal_block(text, text, language="python", linenos=True, classes=["algorithm-source"])
        block["highlight_args"] = {"linenostart": where.start + 1, "lineanchors": source.path.stem}
        shown = self.env.temp_data.setdefault("algorithm_page_lines", set())
        shown |= {f"{source.path.stem}-{i + 1}" for i in where}
        caption = nodes.caption("", "", nodes.literal("", str(source.path.relative_to(experiments.ROOT))))
        return nodes.container("", caption, block, literal_block=True, classes=["literal-block-wrapper"])


def fitting(value: float) -> str:
    """A number for a table."""
    return f"{value:.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.4g}"


class Check(Run):
    """``algorithm-check``: fails where a bound is crossed, or where what must be equal is not."""

    option_spec: ClassVar[dict[str, Any]] = {**RUN_OPTIONS, "figures": directives.unchanged,
                                             "dimension": directives.positive_int}

    def make(self) -> list[nodes.Node]:
        """A table of predicted and simulated figures."""
        name, o = self.name_of_algorithm(), self.options
        workers = 1 if name == "sequential" else o.get("workers", 4)
        steps, machine, own = o.get("steps", 1000), machine_of(CLUSTER,
                                                               o.get("machine", "")).for_workers(
                                                                   workers), values_of(o.get("options", ""))
        problem = quadratic(d=o.get("dimension", 1000), workers=workers,
                            batches=[o.get("batch", 1)] * workers)
        experiment = prepare(name, problem, workers=workers, servers=o.get("servers", 1), steps=steps,
                             lr=o.get("lr", 0.001), machine=machine,
                             seed=o.get("seed", 0), **own)
        predicted = experiment.formulas()
        trace = simulate(experiment.deploy, machine, o.get("seed", 0)).trace
        measured = measure(trace)
        wanted = o.get("figures", " ".join(FIGURES)).split()
        errors = sampling_errors(trace, machine, steps)
        if "bytes_sent" in predicted and predicted["bytes_sent"].error:  # a mean: how many are sent is chance
            errors["bytes_sent"] = lambda p: scatter_of_bytes(trace)
        rows = [self.row(key, predicted[key], measured[key],
                         errors.get(key, lambda p: 0.0)(predicted[key].value)) for key in wanted
                         if key in predicted]
        if not rows:
            raise ValueError(f"{name} has no predicted figure among {', '.join(wanted)}")
        said = ", ".join([f"{workers} worker{'s' * (workers > 1)}", f"{steps} iterations each",
                          *(f"`{k}={v}`" for k, v in own.items()), str(machine),
                          f"model of {4 * problem.x0.size} bytes"])
        return self.markdown(
            "| figure | formula | predicted | | simulated | difference |\n|---|---|--:|---|--:|--:|\n"
            + "".join(rows)
                             + f"\nSimulated when this page was built: {said}.\n")

    def row(self, key: str, p: Any, seen: float, error: float) -> str:
        """One figure; raises ValueError where prediction and run contradict each other."""
        off, slack = seen - p.value, error + 1e-9 * max(1.0, abs(p.value))
        if (p.bound == "upper" and off > slack) or (p.bound == "lower"
                                                    and off < -slack) or (p.faithful and abs(off) > slack):
            raise ValueError(
                f"{key}: predicted {p.value:.6g} ({KIND[p.bound or p.kind]}), simulated {seen:.6g}; expected "
                f"at most {slack:.3g} apart")
        share = p.unit == "1" or not p.value  # the difference itself says more than its ratio to a share
        difference = "" if p.bound else f"{off:+.3f}" if share else f"{100 * off / p.value:+.1f} %"
        difference = "0" if difference in ("+0.000", "-0.000", "+0.0 %", "-0.0 %") else difference
        formula = p.formula.replace("|", "\\|").replace("*", "\\*")
        return (
            f"| {METRICS[key].label} | {formula} | {fitting(p.value)} | {KIND[p.bound or p.kind]} | "
            f"{fitting(seen)} | {difference} |\n")


def sampling_errors(trace: Trace, machine: Machine, steps: int) -> dict[str, Callable[[float], float]]:
    """Four standard errors of the figures that are means of drawn times, as functions of the predicted
    value."""
    law = prices.own(machine, 0)
    relative = 4 * math.sqrt(law.variance) / law.mean / math.sqrt(max(steps, 1)) if law else 0.0
    ages = [tau for _, tau in trace.staleness] or [0]
    age = 4 * statistics.pstdev(ages) / math.sqrt(len(ages))
    return {"seconds_per_iteration": lambda p: relative * p, "seconds": lambda p: relative * p,
            "idle_ratio": lambda p: relative,
            "staleness_mean": lambda p: max(relative * p, age)}


def scatter_of_bytes(trace: Trace, stretches: int = 20) -> float:
    """Four standard deviations of a run's bytes where the number of messages is random, from stretches with
    the same number of updates."""
    bounds = np.quantile([e.time for e in trace.marks("update")], np.linspace(0, 1, stretches + 1))
    sends = trace.of(Sent)
    sent, _ = np.histogram([e.time for e in sends], bounds, weights=[e.nbytes for e in sends])
    return float(4 * math.sqrt(stretches) * np.std(sent, ddof=1))


def listing(text: str, language: str = "python", classes: Sequence[str] = ()) -> nodes.literal_block:
    """Lines of text."""
    return nodes.literal_block(text, text, language=language, classes=list(classes))


def folded(title: str, *children: nodes.Node) -> list[nodes.Node]:
    """Something that opens on a click."""
    return [nodes.raw("", f"<details class='algorithm-fold'><summary>{html.escape(title)}</summary>",
                      format="html"), *children,
            nodes.raw("", "</details>", format="html")]


class Change(Directive):
    """``algorithm-change``."""

    def make(self) -> list[nodes.Node]:
        """The diff, what the experiment says without and with it, and the experiment."""
        name = self.name_of_algorithm()
        source = self.depends_on(name)
        text = "\n".join(self.content)
        hunks, code = experiments.parse(text)
        found = experiments.compare_with_change(name, text)
        diff = list[str]()
        for hunk in hunks:
            first = source.find(hunk.old, hunk.function)
            lines = difflib.unified_diff(hunk.old, hunk.new, n=len(hunk.old), lineterm="")
            place = (
                f"{source.path.relative_to(experiments.ROOT)}, line "
                f"{first + 1}{', ' + hunk.function if hunk.function else ''}")
            diff += [f"@@ {place} @@", *itertools.islice(lines, 3, None)]
        assert found.wrong.failure is not None
        seen = found.wrong.printed + experiments.complaint(found.wrong.failure)
        out: list[nodes.Node] = [listing("\n".join(diff), "diff")]
        if found.right.printed:
            out += [nodes.paragraph("", "In the source:"), listing(found.right.printed, "text")]
        out += [nodes.paragraph("", f"With the {'line' if len(hunks) == 1 else 'lines'} changed:"),
                listing(seen, "text", ["seen"])]
        return [*out,
                *folded("The experiment that found it", listing(experiments.imports(code) + "\n" + code))]


class Experiment(Directive):
    """``algorithm-experiment``."""

    def make(self) -> list[nodes.Node]:
        """The lines, and what they print."""
        code = "\n".join(self.content) + "\n"
        outcome = experiments.perform(code)
        if outcome.failure is not None:
            raise ValueError(f"the experiment fails: {experiments.complaint(outcome.failure)}")
        lines = experiments.imports(code)
        shown = [listing(lines + "\n" + code if lines else code)]
        return [*shown, *([listing(outcome.printed, "text")] if outcome.printed else [])]


class Dialogue(Directive):
    """``algorithm-dialogue``; its text is what `tests.interactions.player.play` gives."""

    def make(self) -> list[nodes.Node]:
        """Prose, and blocks of commands with their outputs."""
        shown: list[nodes.Node] = [nodes.paragraph("", (
            "Lines with > say what happens next, or ask; what the programs do is below. A test replays this dialogue."))]
        for commands, blocks in itertools.groupby("\n".join(self.content).split("\n\n"),
                                                  key=lambda block: block.startswith("> ")):
            text = "\n\n".join(blocks)
            shown += [listing(text, "text", ["dialogue"])] if commands else self.markdown(text)
        return folded(f"In words: {self.arguments[0]}", *shown)


def check_links(app: Sphinx, doctree: nodes.document) -> None:
    """Every line that pseudo-code points at is shown on its page."""
    links, lines = (app.env.temp_data.get(f"algorithm_page_{kind}", set()) for kind in ("links", "lines"))
    missing = sorted(links - lines)
    if missing:
        raise ExtensionError(
            f"{app.env.docname}: pseudo-code points at {', '.join(missing)}; expected an algorithm-source "
            "that shows these lines")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and their style sheet."""
    for name, directive in {"picture": Picture, "player": Player, "facts": Facts, "pseudocode": Pseudocode,
                            "source": Listing, "check": Check,
                            "change": Change, "experiment": Experiment, "dialogue": Dialogue}.items():
        app.add_directive(f"algorithm-{name}", directive)
    app.connect("doctree-read", check_links)
    app.connect("config-inited",
                lambda app, config: config.html_static_path.append(
                    str(Path(__file__).parent / "static" / "algorithm_page.css")))
    app.add_css_file("algorithm_page.css")
    return {"version": refsgd.__version__, "parallel_read_safe": True, "parallel_write_safe": True}
