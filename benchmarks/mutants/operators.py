"""Small changes of a source file, each of which makes a program that is wrong, or at least another one.

Left alone are docstrings, annotations, imports, patterns, what is raised, and the `strict` of a zip, which
asserts what always holds. A changed file has as many lines as before.
"""

from __future__ import annotations

import ast
import copy
import random
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted(str(path.relative_to(ROOT)) for folder in ("algorithms", "collectives")
               for path in (ROOT / "refsgd" / folder).rglob("*.py"))
DOMAIN = Path(__file__).with_name("domain.toml")  #: mistakes in the algorithms' own terms
COMPARISONS = {ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt),
               ast.GtE: (ast.Gt, ast.LtE), ast.Eq: (ast.NotEq,),
               ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
               ast.NotIn: (ast.In,)}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
              ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
              ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
              ast.BitXor: ast.BitOr}
OTHERS = {"min": "max", "max": "min", "any": "all", "all": "any", "reversed": "list", "sorted": "list",
          "floor": "ceil", "ceil": "floor", "maximum": "minimum",
          "minimum": "maximum", "zeros_like": "ones_like", "ones_like": "zeros_like"}
#: variables of one kind: one is taken for another
KINDS = ({"t", "c", "b", "version", "read", "since", "done", "now", "last", "previous", "before", "slowest",
          "evaluation", "fetched", "portion"},
         {"rank", "me", "i", "j", "k", "root", "child", "partner", "seat", "node", "y", "x_"},
         {"n", "workers", "steps", "pushes", "rounds", "size"},
         {"x", "v", "g", "u", "r", "z", "old", "new", "start", "move", "center", "total", "velocity",
          "squares", "mean", "m1", "m2", "s"},
         {"lower", "upper", "bound"})
COUNTERS = set().union(*KINDS[:3])  #: whole numbers


@dataclass(frozen=True)
class Mutant:
    """One change of one file; `line` is where it is, `statement` where the statement around it begins (0:
    a definition)."""

    file: str
    line: int
    operator: str
    start: int
    end: int
    new: bytes
    statement: int
    number: int = 1

    @property
    def name(self) -> str:
        """By which it is tried again."""
        return f"{self.file}:{self.line}:{self.operator}" + f":{self.number}" * (self.number > 1)

    def text(self) -> bytes:
        """The changed file."""
        source = (ROOT / self.file).read_bytes()
        return source[: self.start] + self.new + source[self.end :]

    def lines(self) -> tuple[str, str]:
        """The lines that differ, before and after."""
        pairs = zip((ROOT / self.file).read_text().splitlines(), self.text().decode().splitlines(),
                    strict=True)
        old, new = zip(*((a.strip(), b.strip()) for a, b in pairs if a != b), strict=True)
        return "\n".join(old), "\n".join(new)


def sites(node: ast.AST, bound: Counter[str], statement: int) -> Iterator[tuple[ast.AST, Counter[str], int]]:
    """Each node that may be changed, how often its function binds each name, and the line at which its
    statement begins."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    strict = isinstance(node, ast.keyword) and node.arg == "strict"
    if text or strict or isinstance(node,
                                    ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr | ast.pattern):
        return
    if isinstance(node, ast.FunctionDef):
        bound = Counter(n.arg if isinstance(n, ast.arg) else n.id for n in ast.walk(node)
                        if isinstance(n, ast.arg)
                        or (isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)))
        statement = 0  # of its defaults
    elif isinstance(node, ast.stmt):
        statement = node.lineno
    yield node, bound, statement
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list", "bases"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from sites(child, bound, statement)


def altered(node: ast.AST, **fields: object) -> ast.AST:
    """A copy with other fields."""
    node = copy.copy(node)
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def without(items: list[ast.AST], k: int) -> list[ast.AST]:
    """All but number k."""
    return items[:k] + items[k + 1 :]


def changes(node: ast.AST, bound: Counter[str]) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Operator, the node that goes, the node that comes."""
    match node:
        case ast.Compare(ops=ops):
            for k, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield "comparison", node, altered(node, ops=[*ops[:k], other(), *ops[k + 1 :]])
        case ast.BinOp(left=left,
                       op=op) if type(op) in ARITHMETIC and not isinstance(left, ast.List | ast.Tuple):
            yield "arithmetic", node, altered(node, op=ARITHMETIC[type(op)]())
            if isinstance(op, ast.Add | ast.Sub):
                yield "term", node, left
        case ast.AugAssign(op=op):
            yield "arithmetic", node, altered(node, op=ARITHMETIC[type(op)]())
        case ast.UnaryOp(operand=operand):
            yield "sign", node, operand
        case ast.BoolOp(op=op, values=values):
            yield "and-or", node, altered(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for k in range(len(values)):
                yield "condition", node, altered(node,
                                                 values=without(values, k)) if len(values) > 2 else values[
                                                     1 - k]
        case ast.Constant(value=bool(value)):
            yield "constant", node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", node, ast.Constant(value + 1)
            yield "constant", node, ast.Constant(value - 1)
        case ast.Constant(value=float(value)):
            yield "constant", node, ast.Constant(2 * value or 1.0)
        case ast.Subscript(slice=ast.Slice()):
            for end in ("lower", "upper"):
                if getattr(node.slice, end) is not None:
                    yield "slice", node, altered(node, slice=altered(node.slice, **{end: None}))
        case ast.Name(id=name, ctx=ast.Load()) if name in bound:
            for other in sorted(
                {other for kind in KINDS if name in kind for other in kind & bound.keys()} - {name}):
                yield "variable", node, ast.Name(other)
        case ast.Call(func=func, args=args, keywords=keywords):
            called = func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")
            if called in OTHERS:
                yield "function", node, altered(node,
                                                func=altered(func,
                                                             **{"id" if isinstance(func, ast.Name)
                                                                else "attr": OTHERS[called]}))
            if called == "suppress" or (called in ("Recv", "Poll") and len(args) > 1):
                yield "argument", node, altered(node, args=args[:-1])
            for k in [k for k, keyword in enumerate(keywords) if keyword.arg != "strict"]:
                yield "keyword", node, altered(node, keywords=without(keywords, k))
            for k, (a, b) in enumerate(pairwise(args)):
                if isinstance(a, ast.Name) and isinstance(b,
                                                          ast.Name) and any(
                                                              {a.id, b.id} <= kind for kind in KINDS):
                    yield "swap", node, altered(node, args=[*args[:k], b, a, *args[k + 2 :]])
            for arg in [*args, *(keyword.value for keyword in keywords)]:
                if isinstance(arg, ast.Name) and arg.id in COUNTERS & bound.keys():
                    yield "counter", arg, ast.BinOp(arg, ast.Add(), ast.Constant(1))
                    yield "counter", arg, ast.Constant(0)
    for test in [*getattr(node, "ifs", []),
                 *([node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else [])]:
        yield "negation", test, ast.UnaryOp(ast.Not(), test)
    again = all(bound[n.id] > 1 for target in getattr(node, "targets", [getattr(node, "target", node)])
                for n in ast.walk(target)
                # else what follows would only lack a name
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    if isinstance(node, ast.Expr | ast.Break | ast.Continue) or (isinstance(node, ast.Assign | ast.AugAssign)
                                                                 and again and bound):
        yield "dropped", node, ast.Pass()


def found_in(file: str) -> list[Mutant]:
    """All of a file, without repetitions."""
    source = (ROOT / file).read_bytes()
    begin = [0]
    for line in source.splitlines(keepends=True):
        begin.append(begin[-1] + len(line))
    found, seen, count = [], set(), Counter[tuple[int, str]]()
    for node, bound, statement in sites(ast.parse(source), Counter(), 0):
        for operator, old, put in changes(node, bound):
            start, end = begin[old.lineno - 1] + old.col_offset, begin[
                old.end_lineno - 1] + old.end_col_offset
            text, lost = ast.unparse(put), "\n" * source[start:end].count(b"\n")
            new = (text + lost if isinstance(put, ast.stmt) else f"({text}{lost})").encode()
            if (start, end, new) not in seen and text != ast.unparse(old):
                seen.add((start, end, new))
                count[old.lineno, operator] += 1
                found.append(Mutant(file, old.lineno, operator, start, end, new, statement,
                                    count[old.lineno, operator]))
    return found


def domain() -> list[Mutant]:
    """The mistakes of domain.toml; raises ValueError where a text is not found exactly once."""
    found = []
    for entry in tomllib.loads(DOMAIN.read_text())["mutant"]:
        source, old, new = (ROOT / entry["file"]).read_bytes(), entry["old"].encode(), entry["new"].encode()
        if source.count(old) != 1 or old.count(b"\n") != new.count(b"\n"):
            raise ValueError(
                f"{DOMAIN.name}: {entry['old']!r} is {source.count(old)} times in {entry['file']}; expected "
                "once, and as many lines in its place")
        start, line = source.index(old), source[: source.index(old)].count(b"\n") + 1
        number = 1 + sum((m.file, m.line, m.operator) == (entry["file"], line, entry["kind"]) for m in found)
        found.append(Mutant(entry["file"], line, entry["kind"], start, start + len(old), new, line, number))
    return found


def sample(found: dict[str, list[Mutant]], number: int, seed: int) -> list[Mutant]:
    """About `number` of them: each file according to its share and with 4 at least, its operators in turn."""
    whole, chosen = sum(map(len, found.values())), list[Mutant]()
    for file, mutants in found.items():
        rng, turn = random.Random(f"{seed} {file}"), Counter[str]()
        order = []
        for mutant in rng.sample(mutants, len(mutants)):
            turn[mutant.operator] += 1
            order.append((turn[mutant.operator], rng.random(), mutant))
        count = max(4, round(number * len(mutants) / whole))
        chosen += sorted((m for *_, m in sorted(order, key=lambda entry: entry[:2])[:count]),
                         key=lambda m: (m.line, m.start))
    return chosen
