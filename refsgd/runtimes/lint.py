"""Finds effects that a program builds but does not yield, in its source."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from inspect import isgeneratorfunction
from types import CodeType

EFFECTS = {"Compute", "Send", "Recv", "Poll", "Choose", "Mark", "Load", "Add"}


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of nested functions."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _own(child)


def _choices(value: ast.AST | None) -> list[ast.AST | None]:
    """An expression, or those between which a condition chooses."""
    return _choices(value.body) + _choices(value.orelse) if isinstance(value, ast.IfExp) else [value]


def _yielded(function: ast.FunctionDef) -> list[ast.AST | None]:
    return [value for n in _own(function) if isinstance(n, ast.Yield | ast.YieldFrom)
            for value in _choices(n.value)]


def _called(value: ast.AST | None) -> str | None:
    """The name of the function that an expression calls, if it is a plain one."""
    return value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else None


def _imported(tree: ast.AST) -> set[str]:
    """The names of the library's generator functions that a module imports, all of which are sub-programs."""
    found = {alias.asname or alias.name: getattr(sys.modules.get(n.module or ""), alias.name, None)
             for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for alias in n.names}
    return {name for name, f in found.items()
            if isgeneratorfunction(f) and f.__module__.startswith("refsgd.")}


def forgotten_yields(tree: ast.AST) -> list[int]:
    """Lines where an effect is built outside a ``yield``, or a sub-program of the module or of the library is
    called without ``yield from``."""
    functions = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and _yielded(f)]
    names, programs = EFFECTS | _imported(tree), list[ast.FunctionDef]()
    for _ in functions:  # a generator of other values is no program, unless it yields from one
        programs = [f for f in functions if any(_called(value) in names for value in _yielded(f))]
        names |= {f.name for f in programs}
    yielded = {id(value) for f in programs for value in _yielded(f)}
    return sorted({n.lineno for f in programs for n in _own(f) if isinstance(n, ast.Call)
                   and isinstance(n.func, ast.Name) and n.func.id in names and id(n) not in yielded})


def forgotten_by(codes: Iterable[CodeType]) -> list[str]:
    """``file:line`` of each effect without a yield in these programs and the functions that they name."""
    found = list[str]()
    for code in codes:
        with suppress(SyntaxError):  # the file has changed since
            tree = ast.parse("".join(linecache.getlines(code.co_filename)))
            lines = forgotten_yields(parts_of(tree, code.co_firstlineno))
            found += [f"{code.co_filename}:{line}" for line in lines]
    return list(dict.fromkeys(found))


def parts_of(tree: ast.Module, first: int) -> ast.AST:
    """The deployment function that begins at this line and, recursively, the functions that it names; or the
    whole module."""
    defined = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.Lambda)]
    around = {id(g): f for f in defined for g in ast.walk(f) if g is not f}  # the innermost comes last
    found = [f for f in defined if first in (f.lineno, *(d.lineno for d in getattr(f, "decorator_list", ())))]
    for f in found:  # which grows
        named = {n.id for n in ast.walk(f) if isinstance(n, ast.Name)}
        for g in defined:
            scope = around.get(id(g), tree)
            if getattr(g, "name", None) in named and g not in found and any(n is f for n in ast.walk(scope)):
                found.append(g)
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    return ast.Module([*imports, *(f if isinstance(f, ast.stmt) else ast.Expr(f) for f in found)],
                      []) if found else tree
