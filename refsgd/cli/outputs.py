"""Output of the commands: files before talk, standard streams that never raise, progress."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import select
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from refsgd.display.files import replaceable, save
from refsgd.experiment.options.problems import DEFAULT_DATA, LARGEST_NET, default_net, only_sizes
from refsgd.experiment.prepare import Usage
from refsgd.experiment.result import Result
from refsgd.runtimes.processes.system import standard_descriptors

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

PIPE, ADVICE = 140, 100  #: columns of a table without a terminal, and of an advice
SUMMARY = 11  #: indent of the values in a run's summary
#: options that name a file to write
OUTPUTS = ("json", "plot", "save", "trace", "record", "player", "page", "written", "html", "gradescope",
           "net_output", "curves")


# -- standard streams ---------------------------------------------------------------------------------------


class Standard(io.FileIO):
    """A standard stream that drops what cannot be written: a full disk ends no command before its files."""

    failure: OSError | None = None  #: the first error

    def write(self, data: Any) -> int:
        """Write bytes to the stream's descriptor."""
        try:
            while self.failure is None:
                if (count := super().write(data)) is not None:
                    return count
                select.select([], [self], [])  # another program made the pipe one that does not block
        except OSError as error:
            self.failure = error
        return len(data)


def _lasting(stream: Any) -> Any:
    """A standard stream of which no write raises: not for its encoding, and not for what it leads to."""
    if stream is None:  # it was closed when the program began
        return open(os.devnull, "w", encoding="utf-8", errors="replace")
    raw = getattr(getattr(stream, "buffer", None), "raw", getattr(stream, "buffer", None))
    if not isinstance(raw, io.FileIO):
        return stream  # a notebook's, or the console of Windows
    return io.TextIOWrapper(io.BufferedWriter(Standard(raw.fileno(), "w", closefd=False)), stream.encoding,
                            "replace", None, stream.line_buffering, stream.write_through)


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Replace standard output and standard error by streams that last until the command ends."""
    before = sys.stdout, sys.stderr
    with standard_descriptors():
        sys.stdout, sys.stderr = map(_lasting, before)
        try:
            yield
        finally:
            for lasting, stream in zip((sys.stdout, sys.stderr), before):
                lasting.flush() if stream else lasting.close()
            sys.stdout, sys.stderr = before


def failure() -> OSError | None:
    """Why standard output could not be written; None if it could."""
    sys.stdout.flush()
    return getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "failure", None)


# -- files --------------------------------------------------------------------------------------------------


def deliver(files: Iterable[tuple[str | None, Callable[[], str | bytes | Figure]]],
            talk: Callable[[], object] = lambda: None) -> None:
    """Write the requested files, then print the text of "-" or what `talk` prints; an output that fails keeps
    no other from being written, and the first error is raised at the end."""
    failed, wanted = list[Exception](), [(path, make) for path, make in files if path]
    for path, make in sorted(wanted, key=lambda each: each[0] == "-"):
        try:
            content = make()
            content = f"{content}\n" if isinstance(content, str) else content
            if path == "-":
                sys.stdout.write(str(content))
            else:
                save(path, content)
        except Exception as error:
            failed.append(error)
    if all(path != "-" for path, _ in wanted):
        talk()
    for other in failed[1:]:
        failed[0].add_note(str(other))
    if failed:
        raise failed[0]


def figure(kind: str, *what: Any) -> Figure:
    """A figure of `refsgd.display.plots`; it needs no backend, so one that is named may be missing."""
    named = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
    import matplotlib

    from refsgd.display import plots

    if named is not None:
        os.environ["MPLBACKEND"] = named
        with contextlib.suppress(ValueError):
            matplotlib.rcParams["backend"] = named
    return getattr(plots, kind)(*what)  # type: ignore[no-any-return]


def check_output(path: str | None) -> None:
    """Raise an error before anything runs if a file cannot be written."""
    if path == "-" and getattr(sys.stdout, "name", "") == os.devnull:  # from `_lasting`
        raise Usage("standard output is closed; expected a file's name in place of -")
    if not path or path == "-":
        return
    if Path(path).is_dir():
        raise Usage(f"cannot write {path}: it is a folder; expected a file's name")
    if not replaceable(path):
        return
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise Usage(f"cannot write {path}: no folder {Path(path).parent}; expected an existing one")
    if not os.access(folder, os.W_OK):
        raise Usage(f"cannot write {path}: the folder {Path(path).parent} is not writable; expected one that "
                    "is")


def check_outputs(args: argparse.Namespace) -> None:
    """Raise an error before anything runs if an output of the command cannot be written."""
    given = {name: path for name in OUTPUTS if (path := getattr(args, name, None))}
    for name, path in given.items():
        check_output(path)
        if path == "-" and name in ("record", "page", "save"):
            raise Usage(f"--{name} -; expected a file's name")
    plot = given.get("plot")
    if plot and Path(plot).suffix not in (".png", ".pdf", ".svg"):
        raise Usage(f"cannot draw {plot}; expected a name that ends in .png, .pdf or .svg")
    places = dict[str, str]()
    for name in (*OUTPUTS, "checkpoint", "file"):  # the last is replay's input
        path = getattr(args, name, None)
        if path and (path == "-" or replaceable(path) or name == "checkpoint"):
            other = places.setdefault(path if path == "-" else os.path.realpath(path), name)
            if other != name:
                raise Usage(f"{_flag(other)} and {_flag(name)} both name {path}; expected two paths")


def _flag(name: str) -> str:
    return {"written": "--output", "file": "FILE"}.get(name, f"--{name}")


# -- people -------------------------------------------------------------------------------------------------


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


def lay_out(table: Callable[[int], Table], usual: int = PIPE) -> Table:
    """Print a table as wide as the terminal, also in a notebook as text, and return it."""
    from rich.console import Console

    wide = width() or usual
    Console(width=wide, markup=False, force_jupyter=False).print(found := table(wide))
    return found


def show(result: Result, args: argparse.Namespace, *more: str) -> None:
    """Output a run's JSON, trace, player, parameters and plot, as the options request, and its summary."""
    def player() -> str:
        import refsgd

        return refsgd.player(result).html

    def trace() -> str:
        assert result.trace is not None
        return result.trace.to_chrome()

    def parameters() -> bytes:
        if result.parameters is None:
            raise RuntimeError(f"{args.save}: a shape-only net has no parameters; expected another net")
        np.save(file := io.BytesIO(), result.parameters)
        return file.getvalue()

    def talk() -> None:
        tell("\n".join([result.summary(), *more]), SUMMARY)
        if args.player and result.trace is not None:
            from refsgd.display.player import LIMIT

            count = len(result.trace.events)
            print(f"player: {args.player}, events 1 to {min(LIMIT, count)} of {count}")

    deliver([(args.json, result.to_json), (getattr(args, "trace", None), trace), (args.player, player),
             (getattr(args, "save", None), parameters),
             (args.plot, lambda: figure("run", result))], talk)


def compile_kernels(data: str | None, name: str | None, quiet: bool) -> None:
    """Compile the net's kernels in this process, before any fork, with a notice the first time."""
    from refsgd.problems.data import NAMES

    data = data or DEFAULT_DATA
    if data.partition(":")[0] not in NAMES or only_sizes(name):
        return  # nothing to compile, or refused with its own message later
    from refsgd.problems.nn import nets

    try:
        net = nets.build(name or default_net(data))
    except ValueError:
        return  # refused with its own message later
    if net.parameters > LARGEST_NET:
        return  # likewise
    if nets.needs_compiling() and not quiet:
        sys.stderr.write(
            "refsgd: compiling kernels for the first time (some seconds, then cached)\n")
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
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
                  console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def say(text: str, share: float | None = None) -> None:
            done = bar.tasks[0].completed + 1 if share is None else share * total
            bar.update(task, description=text, completed=done, refresh=True)

        yield say
