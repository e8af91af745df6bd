"""The documents that the library grew from, redone: each of their tables and figures, with a verdict on
every claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

from benchmarks.quiet import Foreign, processor
from benchmarks.studies.lab import Lab
from benchmarks.studies.study import Claim, Document, Line, Panel, Part, Study

__all__ = ["NAMES", "Claim", "Document", "Lab", "Line", "Panel", "Part", "Study", "parts_of", "perform"]

#: first author and year; a module each, with a `DOCUMENT`
NAMES = ("jia2020", "pani2020", "ko2021", "graur2019")

BUSY = 0.3  #: processors that other programs may keep busy while a part's processes are timed


def parts_of(name: str, parts: Sequence[str] = ()) -> tuple[str, list[Callable[[Lab], Part]]]:
    """A document's title, and the functions that redo its parts (all, or those named)."""
    if name not in NAMES:
        raise ValueError(f"study {name!r} is unknown; expected one of {', '.join(NAMES)}")
    document: Document = import_module(f"benchmarks.studies.{name}").DOCUMENT
    known = {f.__name__: f for f in document.parts}
    for part in parts:
        if part not in known:
            raise ValueError(f"{name} has no part {part!r}; expected some of {', '.join(known)}")
    return " ".join(document.title.split()), [f for f in document.parts if not parts or f.__name__ in parts]


def perform(name: str, lab: Lab, parts: Sequence[str] = ()) -> Study:
    """Redo a document's experiments."""
    title, functions = parts_of(name, parts)
    done, here = [], processor()
    for function in functions:
        lab.say(f"{name}: {function.__name__}")
        with Foreign() as others:
            part = function(lab)
        if part.timed and not lab.quick and others.cores > BUSY:
            raise RuntimeError(f"{name}, part {part.key}: other programs kept {others.cores:.1f} processors busy while "
                               f"processes were timed; expected at most {BUSY:g}: end them, then repeat with "
                               f"--parts {part.key} --no-cache")
        done.append(replace(part, processor=here))
    learn: str = import_module(f"benchmarks.studies.{name}").DOCUMENT.learn
    return Study(name, title, lab.quick, lab.seed, done, learn)
