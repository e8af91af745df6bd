"""Source files as HTML: coloured, one element per line, relevant functions open and the rest folded, and long
docstrings folded to their first line, so that the program's lines stay in view.
"""

from __future__ import annotations

import ast
import html
import io
import keyword
import linecache
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path, PurePath

from refsgd.runtimes.programs import LIBRARY

EFFECTS = {"Compute", "Send", "Recv", "Poll", "Choose", "Mark", "Load", "Add"}
QUOTES = ('"""', "'''")


def title(filename: str) -> str:
    """A readable file name: the path in the library, ``cell`` for notebook cells, else the last part."""
    parts = PurePath(filename).parts
    if filename.startswith(LIBRARY):
        return Path(filename).relative_to(Path(LIBRARY).parent).as_posix()
    if filename.startswith("<ipython-input") or any(p.startswith("ipykernel_") for p in parts):
        number = re.search(r"<ipython-input-(\d+)", filename)
        return f"cell {number.group(1)}" if number else "cell"
    return filename if filename.startswith("<") else parts[-1]


@lru_cache(maxsize=64)
def parsed(source: str) -> ast.Module:
    """The syntax tree of a file; empty if it is not pure Python, such as a cell with notebook commands."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


def _class_of(token: tokenize.TokenInfo, before: str) -> str:
    if token.type == tokenize.COMMENT:
        return "c"
    if token.type == tokenize.STRING or tokenize.tok_name[token.type].startswith("FSTRING"):
        return "s"
    if token.type == tokenize.NUMBER:
        return "n"
    if token.type == tokenize.NAME:
        if token.string == "yield" or (token.string == "from" and before == "yield"):
            return "y"
        if keyword.iskeyword(token.string) or (token.string in ("match", "case") and before == ""):
            return "k"
        if before in ("def", "class"):
            return "d"
        if token.string in EFFECTS:
            return "e"
    return ""


def colour(lines: list[str]) -> list[str]:
    """Each line as HTML, with an element around each token that has a class: keyword ``k``, yield ``y``,
    effect ``e``, string ``s``, comment ``c``, number ``n``, defined name ``d``.

    >>> colour(["g = yield Recv(Push)\\n"])
    ['g = <i class="y">yield</i> <i class="e">Recv</i>(Push)']
    """
    out, before = [""] * len(lines), ""
    ends = [0] * len(lines)  # length of the finished part of each line
    try:
        for token in tokenize.generate_tokens(io.StringIO("".join(lines)).readline):
            kind = _class_of(token, before)
            before = token.string.strip()
            (first, a), (last, b) = token.start, token.end
            for row in range(first - 1, min(last, len(lines))) if kind else ():
                text = lines[row].rstrip("\n")
                begin, end = a if row == first - 1 else 0, b if row == last - 1 else len(text)
                if end > begin >= ends[row]:
                    out[row] += (html.escape(text[ends[row]:begin], quote=False)
                                 + f'<i class="{kind}">{html.escape(text[begin:end], quote=False)}</i>')
                    ends[row] = end
    except (tokenize.TokenError, SyntaxError):
        pass  # incomplete source: what could be read is coloured
    return [done + html.escape(line.rstrip("\n")[end:], quote=False)
            for line, done, end in zip(lines, out, ends)]


def _docstrings(lines: list[str], tree: ast.Module) -> dict[int, int]:
    """Docstrings of several lines: first line with text, last line."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            text = node.body[0]
            first, last = text.lineno, text.end_lineno or text.lineno
            alone = not lines[first - 1][:text.col_offset].strip() and lines[last - 1].rstrip().endswith(
                QUOTES)
            while lines[first - 1].strip() in ("", *QUOTES):
                first += 1
            if alone and last - first >= 2:
                found[first] = last
    return found


def _extents(lines: list[str], tree: ast.Module, wanted: Iterable[int]) -> list[tuple[int, int]]:
    """First and last lines of the outermost functions that begin at the wanted lines, in order."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            if first in wanted or node.lineno in wanted:
                found.add((first, node.end_lineno or first))
    outer = [(a, b) for a, b in found if not any(c <= a and b <= d and (c, d) != (a, b) for c, d in found)]
    return sorted(outer) or [(1, len(lines))]


def _rows(file: int, coloured: list[str], first: int, last: int, folds: dict[int, int]) -> Iterator[str]:
    """The lines from first to last; a closed fold shows only its first line."""
    number = first
    while number <= last:
        end = folds.get(number, number)
        if end == number:
            yield f'<div class="line" id="f{file}l{number}">{_row(number, coloured)}</div>'
        else:
            more = (f'<span class="more" title="{end - number} more lines">…<span '
                    f'class="hidden">{end - number} more lines</span></span>')
            yield ('<details class="doc"><summary class="line" '
                   f'id="f{file}l{number}">{_row(number, coloured, more)}</summary>')
            yield from _rows(file, coloured, number + 1, end, {})
            yield "</details>"
        number = end + 1


def _row(number: int, coloured: list[str], marks: str = "") -> str:
    return (f'<span class="number">{number}</span><span '
            f'class="marks">{marks}</span><code>{coloured[number - 1] or " "}</code>')


def listing(file: int, filename: str, functions: Iterable[int]) -> str:
    """A source file as a section of HTML."""
    lines, name = linecache.getlines(filename), html.escape(title(filename))
    if not lines:
        return (f'<section class="file"><h3>{name}</h3><p class="note">no source to read (defined '
                'interactively)</p></section>')
    coloured, tree = colour(lines), parsed("".join(lines))
    folds, at = _docstrings(lines, tree), 1

    def folded(until: int) -> list[str]:
        """The lines up to `until`, folded into one."""
        if not "".join(lines[at - 1:until]).strip():
            return []
        return [f"<details><summary>lines {at} to {until}</summary>",
                *_rows(file, coloured, at, until, folds), "</details>"]

    out = [f'<section class="file"><h3>{name}</h3>']
    for first, last in _extents(lines, tree, set(functions)):
        blank = at > 1 and first - at < 3 and not "".join(lines[at - 1:first - 1]).strip()
        out += _rows(file, coloured, at, first - 1, folds) if blank else folded(first - 1)
        out += ['<div class="function">', *_rows(file, coloured, first, last, folds), "</div>"]
        at = last + 1
    return "".join([*out, *folded(len(lines)), "</section>"])
