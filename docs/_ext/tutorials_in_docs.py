"""Brings the notebooks of ``tutorials/``, which also run in Jupyter, into the site as ``docs/tutorials/``.

They are copied before Sphinx reads its sources (a symbolic link would be lost in a source archive), and only
where they changed, so that a second build executes only what is new.  Links to ``../docs/page.md`` become
``../page.md``.  Where the folder has no index of its own, one is written that lists the notebooks in the
order of their numbers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # its plain functions are tested also where there is no Sphinx
    from sphinx.application import Sphinx


SUFFIXES = {".md", ".png", ".svg", ".py", ".txt"}


INDEX = """# Tutorials

Notebooks in the order of a course, with exercises and folded solutions. Running one takes up to four minutes on two cores. The
output shown was produced when this site was built; the same files open in Jupyter. The minutes are estimates from their length.

%s

```{toctree}
:maxdepth: 1

%s
```
"""
ABOUT = re.compile(r"^# (?P<title>[^\n]+)$.*?^\*\*You need\*\* (?P<need>.*?)\n\n\*\*Time\*\*: about (?P<minutes>\d+) "
                   r"minutes with the exercises\. \*\*Level\*\*: (?P<level>introductory|intermediate|advanced)\.$",
                   re.M | re.S)


def for_the_site(text: str) -> str:
    """A tutorial as it stands in the site: its links to ``../docs/`` and from there are those of its new
    place."""
    return re.sub(r"(\]\(|\]: )\.\./docs/", r"\1../", text)


def table(pages: dict[str, str]) -> str:
    """Minutes, level and prerequisites of each tutorial that says them, as it says them."""
    rows = [f"| [{said['title']}]({name}) | {said['minutes']} | {said['level']} | {' '.join(said['need'].split())} |"
            for name, text in pages.items() if (said := ABOUT.search(text))]
    return "\n".join(["| tutorial | minutes | level | you need |", "|---|---|---|---|", *rows] if rows else [])


def contents(source: Path) -> dict[str, bytes]:
    """What the site shows of a folder of tutorials, by name."""
    found = {}
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and path.suffix in SUFFIXES and not any(part.startswith((".", "_"))
                                                                  for part in name.parts):
            found[name.as_posix()] = for_the_site(
                path.read_text(encoding="utf-8")).encode() if path.suffix == ".md" else path.read_bytes()
    if "index.md" not in found:
        pages = {name: found[name].decode() for name in sorted(found) if name.endswith(".md")}
        found["index.md"] = (INDEX % (table(pages), "\n".join(name[:-3] for name in pages))).encode()
    return found


def bring(source: Path, target: Path) -> list[str]:
    """Make `target` hold what the site shows of `source`; returns the names of the files that were
    written or removed."""
    wanted = contents(source)
    changed = []
    for name, new in wanted.items():
        old = target / name
        if not old.exists() or old.read_bytes() != new:
            old.parent.mkdir(parents=True, exist_ok=True)
            old.write_bytes(new)
            changed.append(name)
    for path in [p for p in target.rglob("*") if p.is_file()
                 and p.relative_to(target).as_posix() not in wanted]:
        path.unlink()
        changed.append(path.relative_to(target).as_posix())
    return changed


def setup(app: Sphinx) -> dict[str, bool]:
    """Copy when the extension is loaded: before Sphinx looks for its sources."""
    source = Path(app.srcdir)
    if (source.parent / "tutorials").is_dir():
        bring(source.parent / "tutorials", source / "tutorials")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
