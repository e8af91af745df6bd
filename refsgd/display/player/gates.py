"""Source analysis: the condition that decides whether a program answers, around a line or before a Send."""

from __future__ import annotations

import ast
from functools import lru_cache

RECEIVING = ("Recv", "Poll", "recv")  #: effects, and a shard's sub-program
Branch = ast.If | ast.For | ast.While
Condition = tuple[int, tuple[str, ...]]  #: line, names on which it depends


@lru_cache(maxsize=64)
def parsed(source: str) -> ast.Module:
    """The syntax tree of a file; empty if it is not pure Python, such as a cell with notebook commands."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


@lru_cache(maxsize=4096)
def _chain(source: str, line: int) -> list[ast.stmt]:
    """The function and the statements around a line, outermost first; `pass` if the source is unreadable."""
    around = [s for s in ast.walk(parsed(source)) if isinstance(s, ast.stmt)
              and s.lineno <= line <= (s.end_lineno or s.lineno)]
    around.sort(key=lambda s: (s.lineno, -(s.end_lineno or s.lineno)))
    return around[max((i for i, s in enumerate(around) if isinstance(s, ast.FunctionDef)), default=0):] or [
        ast.Pass()]


@lru_cache(maxsize=4096)
def around(source: str, line: int, stands: int) -> Condition | None:
    """The innermost condition around a line."""
    function, *inside = _chain(source, line)
    return next((_condition(function, s) for s in reversed(inside)
                 if isinstance(s, Branch) and s.lineno < line
                 and (isinstance(s, ast.If) or not s.lineno <= stands <= (s.end_lineno or 0))), None)


@lru_cache(maxsize=4096)
def between(source: str, line: int, kinds: tuple[str, ...]) -> Condition | None:
    """The obstacle before the next Send: a loop to leave, a condition to leave by, or one that must hold."""
    function, *inside = _chain(source, line)
    sends = [n.lineno for n in ast.walk(function) if isinstance(n, ast.Call) and _called(n) == "Send"
             and len(n.args) > 1 and isinstance(n.args[1], ast.Call) and _called(n.args[1]) in kinds]
    for there in sorted(sends, key=lambda found: (found <= line, -found)):
        behind = _chain(source, there)[1:]
        leave = [s for s in inside if isinstance(s, ast.For | ast.While) and s not in behind]
        skip = [s for s in ast.walk(function) if isinstance(s, ast.If) and line < s.lineno
                and (s.end_lineno or s.lineno) < there
                and isinstance(s.body[-1], ast.Continue | ast.Break | ast.Return)]
        fulfil = [s for s in behind if isinstance(s, Branch) and s not in inside]
        if found := leave or skip or fulfil:
            return _condition(function, found[-1])
    return None


@lru_cache(maxsize=4096)
def bound(source: str, line: int) -> frozenset[str]:
    """The names that a function binds to received messages, or is about to bind."""
    chain = _chain(source, line)
    function, here = chain[0], chain[-1]
    binds = [s for s in ast.walk(function) if isinstance(s, ast.Assign)
             and any(isinstance(n, ast.Call) and _called(n) in RECEIVING for n in ast.walk(s.value))]
    return frozenset(n.id for s in [here, *binds] for n in _names(s) if isinstance(n.ctx, ast.Store)
                     and (s is not here or n.lineno == line))


def _condition(function: ast.stmt, s: Branch) -> Condition:
    """The line of a condition and the names in it.

    If it is a single name, the names from which that was computed; if it is a loop, also those it changes.
    """
    test = s.iter if isinstance(s, ast.For) else s.test
    if isinstance(test, ast.Name):
        made = [a for a in ast.walk(function) if isinstance(a, ast.Assign) and a.lineno < s.lineno
                and test.id in {n.id for t in a.targets for n in _names(t)}]
        if made:
            last = max(made, key=lambda a: a.lineno)
            return last.lineno, tuple(n.id for n in _names(last.value))
    changed = [n for n in ast.walk(s) if isinstance(n, ast.Subscript | ast.Attribute)
               and isinstance(n.value, ast.Name)] if isinstance(s, ast.For) else []
    return s.lineno, (*(n.id for n in _names(test)),
                      *(n.value.id for n in changed if isinstance(n.value, ast.Name)))


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _names(tree: ast.AST) -> list[ast.Name]:
    """The names in a syntax tree, in source order."""
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))
