"""Output of the commands: files that are never incomplete, a run's summary and plot, progress."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from refsgd.experiment.options.problems import DEFAULT_DATA, default_net
from refsgd.experiment.prepare import Usage
from refsgd.experiment.result import Result

PIPE = 140  #: columns of a table without a terminal
SUMMARY = 11  #: indent of the values in a run's summary
#: options that name a file to write
OUTPUTS = ("json", "plot", "trace", "record", "player", "written", "html", "gradescope")


@contextlib.contextmanager
def writing(path: str) -> Iterator[Path]:
    """A temporary file that replaces the output file if the block succeeds, so that none is left incomplete.

    A link is kept, and its target replaced; to a device or a pipe the bytes are written.
    """
    check_output(path)
    target, replaceable = Path(os.path.realpath(path)), _replaceable(path)
    with tempfile.TemporaryDirectory(dir=target.parent if replaceable else None, prefix=".refsgd-") as folder:
        beside = Path(folder) / f"output{target.suffix}"
        yield beside
        if replaceable:
            beside.replace(target)
        else:
            with open(path, "wb") as stream:
                stream.write(beside.read_bytes())


def _replaceable(path: str) -> bool:
    """Whether a new file may replace a path: not a device, a pipe or /dev/stdout, which may be a file."""
    stream = Path(path).is_relative_to("/dev") and not Path(path).is_relative_to("/dev/shm")
    return not stream and (Path(path).is_file() or not Path(path).exists())


def write(path: str | None, text: str) -> None:
    """Write a text and a newline to a file, or to standard output for "-"."""
    if path == "-":
        sys.stdout.write(text + "\n")
    elif path:
        with writing(path) as temporary:
            temporary.write_text(text + "\n")


def draw(path: str | None, kind: str, *what: Any) -> None:
    """Write a figure of `refsgd.display.plots`, if there is a path."""
    if path:
        from refsgd.display import plots

        with writing(path) as temporary:
            plots.save(getattr(plots, kind)(*what), temporary)


def check_output(path: str | None) -> None:
    """Raise an error before anything runs if a file cannot be written."""
    if not path or path == "-":
        return
    if Path(path).is_dir():
        raise Usage(f"cannot write {path}: it is a folder; expected a file's name")
    if not _replaceable(path):
        return
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise Usage(f"cannot write {path}: no folder {Path(path).parent}; expected an existing one")
    if not os.access(folder, os.W_OK):
        raise Usage(f"cannot write {path}: the folder {Path(path).parent} is not writable; expected one that "
                    "is")


def check_outputs(args: argparse.Namespace) -> None:
    """Raise an error before anything runs if an output of the command cannot be written."""
    for name in OUTPUTS:
        check_output(getattr(args, name, None))
    plot = getattr(args, "plot", None)
    if plot and Path(plot).suffix not in (".png", ".pdf", ".svg"):
        raise Usage(f"cannot draw {plot}; expected a name that ends in .png, .pdf or .svg")


def width() -> int | None:
    """The value of ``COLUMNS``, or columns of the terminal; None in a pipe, where lines are not wrapped."""
    return shutil.get_terminal_size().columns if "COLUMNS" in os.environ or sys.stdout.isatty() else None


def tell(text: str, indent: int = 0) -> None:
    """Print lines, wrapped between words to the width of the terminal."""
    for line in text.splitlines():
        wide = width()
        fits = wide is None or len(line) <= wide
        print(line if fits else textwrap.fill(line, wide or 0, subsequent_indent=" " * indent,
                                              break_long_words=False, break_on_hyphens=False))


def show(result: Result, args: argparse.Namespace, *more: str) -> None:
    """Output a run's summary, JSON, player, plot and trace, as the options request."""
    if args.json != "-":
        tell("\n".join([result.summary(), *more]), SUMMARY)
    write(args.json, result.to_json())
    if args.player:
        from refsgd.display.player import LIMIT

        write(args.player, result.player(limit=LIMIT).html)
        if "-" not in (args.json, args.player) and result.trace is not None:
            count = len(result.trace.events)
            print(f"player: {args.player}, events 1 to {min(LIMIT, count)} of {count}")
    draw(args.plot, "run", result)
    if getattr(args, "trace", None):
        assert result.trace is not None
        with writing(args.trace) as temporary:
            temporary.write_text(result.trace.to_chrome())


def compile_kernels(data: str | None, name: str | None, quiet: bool) -> None:
    """Compile the net's kernels in this process, before any fork, with a notice the first time."""
    from refsgd.problems.data import NAMES

    data = data or DEFAULT_DATA
    if data.partition(":")[0] not in NAMES or (name or "").startswith("shapes:"):
        return  # nothing to compile, or refused with its own message later
    from refsgd.problems.nn import nets

    try:
        net = nets.build(name or default_net(data))
    except ValueError:
        return  # refused with its own message later
    if nets.needs_compiling() and not quiet:
        sys.stderr.write(
            "refsgd: compiling kernels for the first time (once, some seconds; cached on disk)\n")
    net.compile()


def notice(quiet: bool) -> Callable[[str], None] | None:
    """A function that writes a line to standard error, even without a terminal; None with ``--quiet``."""
    return None if quiet else lambda text: print(f"refsgd: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(quiet: bool, total: int) -> Iterator[Any]:
    """A progress bar on a terminal, without a thread, since processes are forked while it is shown."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
                  console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def say(text: str) -> None:
            bar.update(task, description=text, advance=1, refresh=True)

        yield say
