"""Builds what students get of a homework: ``python -m docs.course.handout OUT [HOMEWORK ...]`` in a checkout.

``OUT/A-ssp`` is then a folder with ``handout.html`` and, where there is a Chromium, ``handout.pdf``: the sheet, the
skeleton's definitions, the points of the rubric without its answers, and blanks for the course and the date.  Beside
it are ``skeleton.py`` and ``submit.py``, with which students pack what they upload.
"""

from __future__ import annotations

import ast
import html
import json
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

import refsgd
from docs.course import decks

COURSE = Path(__file__).parent
TEMPLATE = COURSE / "handout.html"
SUBMIT = COURSE / "submit.py"
markdown = MarkdownIt("commonmark").render
COMMAND = re.compile(r"`(refsgd check [^`]+)`")


class Homework(NamedTuple):
    """A homework, read from the files of its folder."""

    name: str
    title: str
    time: str
    task: str  #: Markdown
    definitions: str  #: the skeleton's docstring
    commands: list[str]
    points: list[tuple[int, str]]
    graded: list[str]  #: the names that the grader takes from the file
    check: list[str]  #: options of the grader's check; none where hidden tests give the points


def read(folder: Path) -> Homework:
    """What the sheet, the skeleton, the rubric and the hidden tests say."""
    sheet, skeleton, rubric, tests = ((folder / name).read_text(encoding="utf-8")
                                      for name in ("README.md", "skeleton.py", "rubric.md", "hidden_test.py"))
    title, _, task = sheet.partition("\n")
    task = re.sub(r" Time: .*?\.", "", task).strip().rpartition("\n\n")[0]  # the rest is said in other places
    grader = re.search(r"refsgd check homework\.py:\w+ (.*?) --json", rubric)
    return Homework(folder.name, title.removeprefix("# "), re.search(r"Time: (.*?)\.", sheet)[1], task,
                    ast.get_docstring(ast.parse(skeleton)).partition("\n")[2].partition("\nTry it:")[0].strip(),
                    list(dict.fromkeys(COMMAND.findall(sheet))),
                    [(int(points), what) for points, what in re.findall(r"^\| (\d+) \| ([^|]+) \|", rubric, re.M)],
                    list(dict.fromkeys(re.findall(r'submitted\("(\w+)"\)', tests))), shlex.split(grader[1]) if grader else [])


def sources() -> list[Path]:
    """The folders of all homework."""
    return sorted((COURSE / "homework").glob("[A-Z]-*"))


def test(made: Homework) -> str:
    """How students try their file, as Markdown."""
    if not made.commands:
        return "Try what you write on small cases whose results you know. The hidden tests do the same with other cases."
    step = re.sub(r" check (\S+).*", r" step \1", made.commands[0])
    more = "The grader runs the same check." if made.check else "The hidden tests, which give the points, ask for more."
    return ("```\n" + "\n".join(made.commands) + "\n```\n\nThis prints a line for each property and, where one fails, the shortest schedule that "
            f"makes it fail. With `{step}` you choose the steps yourself. {more}")


def rules(made: Homework) -> list[str]:
    """The rules, as Markdown."""
    python = re.search(r'requires-python = ">=([\d.]+)"', (COURSE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))[1]
    forbidden = [module for option, module in zip(made.check, made.check[1:]) if option == "--forbid"]
    found = ["**Own work.** Discuss the task with others, but write the file and the answers yourself. Name in `answers.txt` "
             "what helped you: people, pages, programs.",
             f"**Versions.** Python {python} or newer, refsgd {refsgd.__version__}. `refsgd doctor` says whether your installation works.",
             "**The file** imports the standard library, numpy and refsgd only. It is graded on another computer, where it may start no "
             "processes, open no connections, and read and write no other files."]
    if forbidden:
        found.append(f"**Forbidden**: {', '.join(f'`{module}`' for module in forbidden)}. A file that imports it gets no points.")
    return found


def render(folder: Path) -> str:
    """The hand-out as one HTML page."""
    made = read(folder)
    points = "\n".join(f"<tr><td>{points}</td><td>{markdown(what)[3:-5]}</td></tr>" for points, what in made.points)
    parts = {"title": html.escape(made.title), "time": html.escape(made.time), "task": markdown(made.task),
             "definitions": markdown(made.definitions.replace("::\n", ":\n")), "test": markdown(test(made)), "points": points,
             "total": str(sum(points for points, _ in made.points)), "rules": markdown("\n".join(f"* {rule}" for rule in rules(made))),
             "version": refsgd.__version__}
    return re.sub(r"\{\{(\w+)\}\}", lambda blank: parts[blank[1]], TEMPLATE.read_text(encoding="utf-8"))


def submission(folder: Path) -> str:
    """The script that packs this homework."""
    made = read(folder)
    said = {"NAMES": made.graded, "CHECK": made.check, "VERSION": refsgd.__version__}
    return re.sub(r"^(NAMES|CHECK|VERSION) = .*$", lambda line: f"{line[1]} = {json.dumps(said[line[1]], allow_nan=False)}",
                  SUBMIT.read_text(encoding="utf-8"), flags=re.M)


def build(folder: Path, out: Path) -> list[Path]:
    """Write what students get of one homework; returns the files, the hand-out first."""
    out = out / folder.name
    out.mkdir(parents=True, exist_ok=True)
    files = {"handout.html": render(folder), "submit.py": submission(folder),
             "skeleton.py": (folder / "skeleton.py").read_text(encoding="utf-8")}
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
    return [*decks.printed(out / "handout.html"), *(out / name for name in files)]


def main(arguments: list[str]) -> None:
    """Build the hand-outs of all homework, or of those whose names begin as given."""
    if not arguments:
        sys.exit("usage: python -m docs.course.handout OUT [HOMEWORK ...]")
    out, *wanted = arguments
    for folder in sources():
        if not wanted or folder.name.startswith(tuple(wanted)):
            print(*build(folder, Path(out)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
