"""Effects that a program builds and forgets to yield, found in its source."""

from __future__ import annotations

import ast
from typing import Any

EFFECTS = {"Compute", "Send", "Recv", "Poll", "Choose", "Mark", "Load", "Add"}


def forgotten_yields(tree: ast.AST) -> list[int]:
    """Lines where an effect is built outside a ``yield``, or a sub-program of the module is called without
    ``yield from``."""
    generators = {f.name for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)
                  and any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(f))}
    lines = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name not in generators:
            continue
        yielded = {id(n.value) for n in ast.walk(function) if isinstance(n, ast.Yield | ast.YieldFrom)}
        inner = [n for f in ast.walk(function) if isinstance(f, ast.FunctionDef) and f is not function
                 for n in ast.walk(f)]
        yields_inside = any(isinstance(n, ast.Yield | ast.YieldFrom) for n in inner)
        nested = {id(n) for n in inner} if yields_inside else set()
        for n in ast.walk(function):
            if (isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in EFFECTS | generators
                    and id(n) not in yielded | nested and not _deploys(function)):
                lines.append(n.lineno)
    return sorted(set(lines))


def _deploys(function: ast.FunctionDef) -> bool:
    """Whether a function itself, not one nested in it, has no yield: it builds programs instead of being
    one."""
    nested = {id(n) for f in ast.walk(function) if isinstance(f, ast.FunctionDef) and f is not function
              for n in ast.walk(f)}
    return not any(isinstance(n, ast.Yield | ast.YieldFrom) and id(n) not in nested
                   for n in ast.walk(function))


def parts_of(tree: ast.Module, function: Any) -> ast.AST:
    """A deployment function and, in turn, the functions that it can see and names; the whole module where
    it is not found."""
    first = getattr(getattr(function, "__code__", None), "co_firstlineno", 0)
    defined = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.Lambda)]
    around = {id(g): f for f in defined for g in ast.walk(f) if g is not f}  # the innermost comes last
    found = [f for f in defined if first in (f.lineno, *(d.lineno for d in getattr(f, "decorator_list", ())))]
    for f in found:  # which grows
        named = {n.id for n in ast.walk(f) if isinstance(n, ast.Name)}
        for g in defined:
            scope = around.get(id(g), tree)
            if getattr(g, "name", None) in named and g not in found and any(n is f for n in ast.walk(scope)):
                found.append(g)
    return ast.Module([f if isinstance(f, ast.stmt) else ast.Expr(f) for f in found], []) if found else tree
