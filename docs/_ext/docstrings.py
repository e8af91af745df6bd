"""Docstrings as the library writes them, read by Sphinx.

Names become links: `Machine` in a module that imports it, `refsgd.run` anywhere.  Sphinx knows an object by
the module that defines it.  Where a reference finds nothing, the name is looked up as Python would, and the
reference goes to its definition.

Functions of a module or package whose docstring has a section Parameters, or Returns, share what it says:
on the page of each it stands with what that function says itself.

Bars are bars: ``|x|`` in a sentence is an absolute value, not a substitution.  Works in a References section
are listed one by one, with links.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from numpydoc.docscrape import NumpyDocString
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def found(name: str, module: str | None) -> Any:
    """The object that `name` means in `module`, or by itself; None if there is none."""
    places = [f"{module}.{name}"] if module else []
    for dotted in [*places, name, f"refsgd.{name}"]:
        parts = dotted.split(".")
        for cut in range(len(parts), 0, -1):
            try:
                thing = importlib.import_module(".".join(parts[:cut]))
                for part in parts[cut:]:
                    thing = getattr(thing, part)
            except (ImportError, AttributeError):
                continue
            return thing
    return None


def definition(name: str, module: str | None) -> str | None:
    """Where the library defines what `name` means: "refsgd.cluster.machine.Machine" for "refsgd.Machine"."""
    thing = found(name, module)
    home, qualified = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return f"{home}.{qualified}" if isinstance(home, str) and isinstance(qualified, str) else None


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref,
            contnode: nodes.TextElement) -> nodes.Node | None:
    """A reference that Sphinx did not find: a link where the library documents it under another name,
    plain text where it is internal."""
    if node.get("refdomain") != "py":
        return None
    thing = found(node["reftarget"], node.get("py:module"))
    target = definition(node["reftarget"], node.get("py:module"))
    documented = env.domains.python_domain.objects
    names = [target, f"refsgd.{getattr(thing, '__name__', '')}"]
    target = next((name for name in names if name in documented), None)
    if target is None:
        home = getattr(thing, "__module__", None) or getattr(thing, "__name__", "")
        return contnode if str(home).split(".")[0] == "refsgd" else None
    entry = documented[target]
    uri = app.builder.get_relative_uri(node["refdoc"], entry.docname) + "#" + entry.node_id
    reference = nodes.reference("", "", internal=True, refuri=uri, reftitle=target)
    reference += contnode
    return reference


def plain_fields(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out named tuples' "Alias for field number 0", and aliases of built-in containers, whose
    signature nobody can read."""
    return True if type(thing).__name__ == "_tuplegetter" or getattr(thing, "__origin__",
                                                                     None) in (dict, list, set,
                                                                               tuple) else None


def literal_lines(lines: list[str]) -> Iterator[tuple[int, bool]]:
    """(number, whether it is literal) of each line: blocks after ``::``, doctests and grid tables are."""
    block: int | None = None  # indentation of the paragraph that announced a literal block
    doctest = False
    for i, line in enumerate(lines):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if block is not None and text and indent <= block:
            block = None
        doctest = bool(text) and (doctest or text.startswith(">>>"))
        yield i, block is not None or doctest or text.startswith(("| ", "+-"))
        if block is None and text.endswith("::"):
            block = indent


def keep_bars(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Escape the bars of a docstring's sentences."""
    for i, literal in literal_lines(lines):
        if not literal and "|" in lines[i]:
            parts = re.split(r"(``.*?``|`[^`]*`)", lines[i])
            lines[i] = "".join(part if part.startswith("`") else re.sub(r"(?<!\\)\|", r"\|", part)
                               for part in parts)


def separate_references(app: Sphinx, what: str, name: str, thing: Any, options: Any,
                        lines: list[str]) -> None:
    """Each work of a References section on lines of its own (one ends with a full stop, the next begins with a
    capital), with links to arXiv and by DOI."""
    start = next(
        (i for i, line in enumerate(lines) if line.strip() in ("References", ".. rubric:: References")),
        len(lines))
    for i in range(len(lines) - 1, start + 1, -1):
        lines[i] = re.sub(r"\barXiv:(\d{4}\.\d{4,5})", r"`arXiv:\1 <https://arxiv.org/abs/\1>`__", lines[i])
        lines[i] = re.sub(r"\bdoi:(10\.\S+[\w)])", r"`doi:\1 <https://doi.org/\1>`__", lines[i])
        if i > start + 2 and lines[i - 1].rstrip().endswith(".") and lines[i][:1].isupper():
            lines.insert(i, "")


def shared(thing: Any) -> Iterator[NumpyDocString]:
    """What the module of a function says for all its functions, and then each package around it."""
    module = thing.__module__
    while module:
        text = inspect.getdoc(importlib.import_module(module)) or ""
        if re.search(r"^Parameters\n---", text, re.MULTILINE):
            yield NumpyDocString(text)
        module = module.rpartition(".")[0]


def completed(thing: Any, text: str) -> NumpyDocString:
    """The docstring of a function, with the parameters that it shares and does not say itself, and with the
    shared result where it describes none."""
    doc, signature = NumpyDocString(text), inspect.signature(thing)
    order = list(signature.parameters)
    gives = str(signature.return_annotation) not in ("None", "Program[None]", "Deployment")
    for common in shared(thing):
        said = {name.strip() for p in doc["Parameters"] for name in p.name.split(",")}
        wanted = [p for p in common["Parameters"] if p.name in order and p.name not in said]
        doc["Parameters"] = sorted(wanted + doc["Parameters"],
                                   key=lambda p: order.index(p.name.split(",")[0].strip("* ")))
        doc["Returns"] = doc["Returns"] or (common["Returns"] if gives and not doc["Yields"] else [])
    return doc


def share(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Complete a function's docstring, before numpydoc reads it."""
    if what == "function" and any(shared(thing)):
        lines[:] = str(completed(thing, "\n".join(lines))).splitlines()


def setup(app: Sphinx) -> dict[str, bool]:
    """Listen for references without a target, for members to be listed, and for docstrings before and after
    numpydoc reads them."""
    app.connect("missing-reference", resolve)
    app.connect("autodoc-skip-member", plain_fields)
    app.connect("autodoc-process-docstring", share, priority=400)
    app.connect("autodoc-process-docstring", keep_bars, priority=900)
    app.connect("autodoc-process-docstring", separate_references, priority=901)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
