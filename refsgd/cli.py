"""The command line: ``refsgd compare``, ``run``, ``predict``, ``replay``, ``step``, ``explore``, ``check``, ``calibrate``, ``list``."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
import typing
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from refsgd import __version__, terminal
from refsgd.algorithms import CATALOGUE
from refsgd.experiment import (
    DEFAULT_ALGORITHMS,
    DEFAULT_BATCH,
    DEFAULT_EPOCHS,
    DEFAULT_LR,
    DEFAULT_MACHINE,
    DEFAULT_MOMENTUM,
    RUNTIMES,
    Usage,
    compare,
    default_net,
    options_of,
    predict,
    replay,
    run,
)
from refsgd.machine import FAMILIES, PRESETS, Law, Machine, load_machine


class _Parser(argparse.ArgumentParser):
    """Errors in one line, exit code 2."""

    def error(self, message: str) -> typing.NoReturn:
        sys.stderr.write(f"refsgd: {message}\n")
        raise SystemExit(2)


def _common(parser: argparse.ArgumentParser, runtime: str) -> None:
    """The options that `run`, `predict` and `compare` share."""
    work = parser.add_argument_group("what is trained")
    work.add_argument("--data", default="digits", metavar="NAME", help="data set: digits (default), mnist, fashion-mnist")
    work.add_argument("--net", metavar="NAME", help="net: see refsgd list; default: the one that fits the data; phantom:P has P parameters in name only")
    work.add_argument("--batch", type=int, default=DEFAULT_BATCH, metavar="B",
                      help=f"images per worker and iteration (default {DEFAULT_BATCH})")
    work.add_argument("--steps", type=int, metavar="T", help="iterations of each worker")
    work.add_argument("--epochs", type=float, metavar="E", help=f"passes over the data (default {DEFAULT_EPOCHS})")
    work.add_argument("--lr", type=float, default=DEFAULT_LR, help=f"learning rate (default {DEFAULT_LR})")
    work.add_argument("--momentum", type=float, default=DEFAULT_MOMENTUM, help=f"default {DEFAULT_MOMENTUM}")
    work.add_argument("--weight-decay", type=float, default=0.0, help="default 0")
    work.add_argument("--schedule", default="constant", metavar="S",
                      help="constant, or step(every,factor): decay by number of updates")
    work.add_argument("--shards", choices=("iid", "by-label"), default="iid", help="how images are dealt to workers")
    work.add_argument("--seed", type=int, default=0, help="of parameters, data order, durations and choices (default 0)")
    where = parser.add_argument_group("machine")
    where.add_argument("--workers", type=int, default=4, metavar="N", help="default 4")
    where.add_argument("--servers", type=int, default=1, metavar="K", help="parameter servers, a slice each (default 1)")
    where.add_argument("--machine", metavar="FILE|PRESET",
                       help=f"a machine file of `refsgd calibrate`, or one of {', '.join(PRESETS)}; the flags below change it")
    where.add_argument("--compute", metavar="LAW",
                       help=f"seconds of one gradient, default {DEFAULT_MACHINE.compute}; `none` leaves processes unpaced. "
                       "Laws: " + "; ".join(f.help for f in FAMILIES.values()))
    where.add_argument("--latency", type=float, metavar="SECONDS",
                       help=f"until the first byte arrives (default {DEFAULT_MACHINE.latency:g}; 0 with --compute)")
    where.add_argument("--bandwidth", type=float, metavar="BYTES_PER_S",
                       help=f"of each link and direction (default {DEFAULT_MACHINE.bandwidth:g}; unlimited with --compute)")
    where.add_argument("--update", metavar="LAW", help="seconds of one update (default 0)")
    where.add_argument("--speeds", metavar="1,1,4", help="speed of each worker relative to the law")
    where.add_argument("--collocated", action="store_true", help="server k shares the node of worker k mod n")
    out = parser.add_argument_group("output")
    out.add_argument("--runtime", choices=RUNTIMES, default=runtime, help=f"default {runtime}")
    out.add_argument("--json", metavar="PATH", help="write the result as JSON; - for standard output and nothing else")
    out.add_argument("--plot", metavar="PATH", help="write a picture (png, pdf or svg)")
    out.add_argument("--quiet", action="store_true", help="no progress")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _number(text: str) -> float:
    value = float(text)
    return int(value) if math.isfinite(value) and value == int(value) else value


def _own_options(parser: argparse.ArgumentParser, algorithm: str) -> None:
    """Flags for the keyword-only parameters of an algorithm's function."""
    group = parser.add_argument_group(f"options of {algorithm}")
    for name, parameter in options_of(CATALOGUE[algorithm]).items():
        kind = parameter.annotation
        if type(None) in typing.get_args(kind):  # "number or None": None is what leaving the flag out means
            kind = next(k for k in typing.get_args(kind) if k is not type(None))
        shown = f"default {parameter.default}"
        if typing.get_origin(kind) is Literal:
            group.add_argument(_flag(name), dest=f"own_{name}", choices=typing.get_args(kind), help=shown)
        elif kind is bool:
            group.add_argument(_flag(name), dest=f"own_{name}", action=argparse.BooleanOptionalAction, default=None, help=shown)
        else:
            read: Any = {int: int, float: _number}.get(kind, str)
            group.add_argument(_flag(name), dest=f"own_{name}", type=read, metavar=name.upper(), help=shown)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(prog="refsgd", description="Distributed SGD: every consistency algorithm as one readable program, "
                     "predicted, simulated and run as real processes.")
    parser.add_argument("--version", action="version", version=f"refsgd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    p = commands.add_parser("compare", help="train the same net under several algorithms: predicted | simulated | measured",
                            description="Trains one net on real images under several algorithms, as OS processes paced to one "
                            "machine, and shows what the formula says, what the simulation says and what was measured.")
    p.add_argument("--algorithms", default="seven", metavar="A,B,...",
                   help="seven (default: sequential and the seven of the IPDPS 2021 study), all, or a list")
    p.add_argument("--staleness", type=_number, default=3, help="slack of ssp in clocks (default 3)")
    p.add_argument("--no-hard", action="store_true", help="leave out the second panel (8 workers, shards by label, simulated)")
    _common(p, "processes")

    p = commands.add_parser("run", help="train with one algorithm", description="Trains with one algorithm in virtual time or as "
                            "OS processes and prints what was seen.")
    algorithms = p.add_subparsers(dest="algorithm", metavar="ALGORITHM", required=True)
    for name in CATALOGUE:
        q = algorithms.add_parser(name, help=first_line(name), description=first_line(name))
        _common(q, "simulator")
        q.add_argument("--trace", metavar="PATH", help="write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing")
        q.add_argument("--record", metavar="PATH", help="write the schedule; `refsgd replay PATH` reproduces the run bit for bit")
        q.add_argument("--player", metavar="FILE.html", help="write the run's first events as a page to go forwards and backwards in")
        _own_options(q, name)

    p = commands.add_parser("predict", help="closed forms for one algorithm",
                            description="Prints what the formulas say, term by term, without running anything.")
    algorithms = p.add_subparsers(dest="algorithm", metavar="ALGORITHM", required=True)
    for name in CATALOGUE:
        q = algorithms.add_parser(name, help=first_line(name), description=first_line(name))
        _common(q, "simulator")
        q.add_argument("--sweep", metavar="QUANTITY=RANGE", help="curves over workers, servers, batch, bandwidth, latency or staleness, "
                       "e.g. workers=1:64; writes a picture and marks crossings")
        q.add_argument("--against", default="", metavar="A,B,...", help="other algorithms for the sweep")
        q.add_argument("--figure", default="images_per_second", metavar="KEY", help="what the sweep shows (default images_per_second)")
        _own_options(q, name)

    p = commands.add_parser("replay", help="reproduce a recorded run bit for bit", description="Reads a file that `refsgd run --record` "
                            "wrote and reproduces the run in the simulator: every receive and choice returns what it returned then.")
    p.add_argument("file", metavar="FILE")
    p.add_argument("--json", metavar="PATH", help="write the result as JSON; - for standard output and nothing else")
    p.add_argument("--plot", metavar="PATH", help="write a picture (png, pdf or svg)")
    p.add_argument("--player", metavar="FILE.html", help="write the run's first events as a page to go forwards and backwards in")

    p = commands.add_parser("step", help="step through an algorithm: you decide what happens next", description="Runs a small case "
                            "action by action: type the number of what shall happen next, go back, look where each program stands.")
    algorithms = p.add_subparsers(dest="algorithm", metavar="ALGORITHM", required=True)
    for name in CATALOGUE:
        q = algorithms.add_parser(name, help=first_line(name), description=first_line(name))
        terminal.add_options(q)
        _own_options(q, name)

    p = commands.add_parser("explore", help="every schedule of a small case", description="Follows every schedule of a small case "
                            "and checks what must hold for each of them; prints the shortest schedule that breaks it.")
    algorithms = p.add_subparsers(dest="algorithm", metavar="ALGORITHM", required=True)
    for name in CATALOGUE:
        q = algorithms.add_parser(name, help=first_line(name), description=first_line(name))
        q.add_argument("--workers", type=int, default=2, metavar="N", help="default 2")
        q.add_argument("--servers", type=int, default=1, metavar="K", help="default 1")
        q.add_argument("--steps", type=int, default=2, metavar="T", help="default 2")
        q.add_argument("--max-runs", type=int, default=20_000, help="stop after so many schedules (default 20000)")
        q.add_argument("--walks", type=int, metavar="R", help="R random schedules instead of all, for larger cases")
        q.add_argument("--seed", type=int, default=0, help="of random schedules")
        _own_options(q, name)

    p = commands.add_parser("check", help="put your own algorithm through everything that must hold",
                            description="Lint, sizes, determinism, the ledger of gradients, the fixed point, descent, every schedule of "
                            "a small case, real processes: says what broke, with the shortest schedule.")
    p.add_argument("target", metavar="MODULE:FUNCTION", help="your deployment function f(problem, workers, steps, sgd, *, options), "
                   "or the name of an algorithm of the catalogue")
    p.add_argument("--no-processes", action="store_true", help="leave real processes out")

    p = commands.add_parser("calibrate", help="measure this machine; writes a machine file for --machine",
                            description="Measures gradient times by batch, update time, latency and bandwidth of each transport, in under "
                            "30 s for the small nets, and writes a machine file that every command accepts.")
    p.add_argument("--net", default="tiny", metavar="NAME", help="net (default tiny)")
    p.add_argument("--batch", type=int, default=DEFAULT_BATCH, metavar="B", help=f"whose gradient time is used (default {DEFAULT_BATCH})")
    p.add_argument("--output", default="machine.json", metavar="PATH", help="default machine.json; - for standard output alone")

    p = commands.add_parser("data", help="which data sets are here; fetches those that are not", description="Lists which data sets are "
                            "here, in REFSGD_DATA or in the cache, and fetches one, with its checksums, into the cache.")
    p.add_argument("fetch", nargs="?", metavar="NAME", help="a set to fetch: mnist, fashion-mnist, cifar10")

    commands.add_parser("list", help="algorithms, nets, data sets and laws")
    return parser


def first_line(algorithm: str) -> str:
    """The first sentence of an algorithm's module."""
    doc = sys.modules[CATALOGUE[algorithm].__module__].__doc__ or ""
    return doc.strip().split("\n\n")[0].replace("\n", " ").split(":", 1)[0].rstrip(".")


def _machine(args: argparse.Namespace) -> Machine:
    """The machine that the flags describe; DEFAULT_MACHINE where they say nothing."""
    try:
        return _described(args)
    except ValueError as error:
        raise Usage(str(error)) from None


def _described(args: argparse.Namespace) -> Machine:
    said: dict[str, Any] = {}
    if args.compute is not None:
        said["compute"] = None if args.compute == "none" else Law.parse(args.compute)
    for name in ("latency", "bandwidth"):
        if getattr(args, name) is not None:
            said[name] = getattr(args, name)
    if args.update is not None:
        said["update"] = Law.parse(args.update)
    if args.speeds is not None:
        try:
            said["speeds"] = tuple(float(s) for s in args.speeds.split(","))
        except ValueError:
            raise Usage(f"speeds {args.speeds!r}; expected numbers separated by commas, e.g. 1,1,4") from None
    if args.collocated:
        said["collocated"] = True
    if args.machine is not None:
        return load_machine(args.machine).with_(**said)
    return Machine(**said) if args.compute is not None else DEFAULT_MACHINE.with_(**said)


def _arguments(args: argparse.Namespace) -> dict[str, Any]:
    names = ("workers", "servers", "steps", "epochs", "batch", "data", "net", "lr", "momentum", "weight_decay",
             "schedule", "shards", "seed")
    own = {k[4:]: v for k, v in vars(args).items() if k.startswith("own_") and v is not None}
    return {name: getattr(args, name) for name in names} | {"machine": _machine(args)} | own


@contextlib.contextmanager
def writing(path: str) -> Iterator[Path]:
    """A temporary file beside `path`, renamed to it when the block ends well: nothing half-written."""
    target = Path(path)
    if not target.parent.is_dir():
        raise Usage(f"cannot write {path}: there is no folder {target.parent}; expected an existing one")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".refsgd-", suffix=target.suffix)
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o644)
        os.replace(name, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _write(path: str | None, text: str) -> None:
    if path == "-":
        sys.stdout.write(text + "\n")
    elif path:
        with writing(path) as temporary:
            temporary.write_text(text + "\n")


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse what could not be written before anything runs."""
    for name in ("json", "plot", "trace", "record", "player"):
        path = getattr(args, name, None)
        if path and path != "-" and not Path(path).parent.is_dir():
            raise Usage(f"cannot write {path}: there is no folder {Path(path).parent}; expected an existing one")
    plot = getattr(args, "plot", None)
    if plot and Path(plot).suffix not in (".png", ".pdf", ".svg"):
        raise Usage(f"cannot draw {plot}; expected a name that ends in .png, .pdf or .svg")


def _compile(args: argparse.Namespace) -> None:
    """Compile the net's kernels in this process, before any fork, and say so the first time."""
    if args.data in ("quadratic", "integers") or (args.net or "").startswith("phantom:"):
        return
    from refsgd.nn import nets

    name = args.net or default_net(args.data)
    try:
        net = nets.build(name)
    except ValueError:
        return  # refused with its own message later
    if nets.needs_compiling() and not args.quiet:
        sys.stderr.write("refsgd: compiling kernels for the first time (once, some seconds; cached on disk)\n")
    net.compile()


def _compare(args: argparse.Namespace) -> None:
    from refsgd.report import comparison_table, sentences

    groups = {"all": list(CATALOGUE), "seven": list(DEFAULT_ALGORITHMS)}
    names = groups.get(args.algorithms) or [a for a in args.algorithms.split(",") if a]
    if not names:
        raise Usage("algorithms: none named; expected e.g. bsp,asp")
    arguments = _arguments(args)
    for name in names:
        if name not in CATALOGUE:
            raise Usage(f"algorithm {name!r} is unknown; expected one of {', '.join(CATALOGUE)}")
    _compile(args)
    quiet = args.quiet or args.json == "-"
    with _progress(quiet, 2 * len(names) + 1) as say:
        comparison = compare(names, runtime=args.runtime, options={"ssp": {"staleness": args.staleness}}, progress=say,
                             hard=not args.no_hard and args.data == "digits", **arguments)
    if args.json != "-":
        from rich.console import Console

        console = Console(width=None if sys.stdout.isatty() else 150)
        console.print(comparison_table(comparison))
        for sentence in sentences(comparison):
            console.print(sentence, highlight=False)
    picture = args.plot or ("refsgd-compare.png" if args.json != "-" else None)
    data = args.json or "refsgd-compare.json"
    if picture:
        from refsgd import plots

        with writing(picture) as temporary:
            plots.save(plots.comparison(comparison), temporary)
    _write(data, comparison.to_json())
    if args.json != "-":
        print(f"picture: {picture}   figures: {data}")


@contextlib.contextmanager
def _progress(quiet: bool, total: int) -> Iterator[Any]:
    """A progress bar on a terminal, nothing in a pipe; without a thread, since processes are forked meanwhile."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True),
                  auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def say(text: str) -> None:
            bar.update(task, description=text, advance=1, refresh=True)

        yield say


def _run(args: argparse.Namespace) -> None:
    arguments = _arguments(args)
    _compile(args)
    with _progress(args.quiet or args.json == "-", 2) as say:
        if say:
            say(f"{args.algorithm}: running")
        if args.record:
            with writing(args.record) as temporary:
                result = run(args.algorithm, runtime=args.runtime, record=temporary, **arguments)
        else:
            result = run(args.algorithm, runtime=args.runtime, **arguments)
    if args.json != "-":
        print(result.summary())
    _write(args.json, result.to_json())
    if args.trace:
        assert result.trace is not None
        with writing(args.trace) as temporary:
            temporary.write_text(result.trace.to_chrome())
    if args.player:
        _write(args.player, result.player().html)
    if args.plot:
        from refsgd import plots

        with writing(args.plot) as temporary:
            plots.save(plots.run(result), temporary)


def _replay(args: argparse.Namespace) -> None:
    if not Path(args.file).is_file():
        raise Usage(f"no file {args.file}; expected one that `refsgd run --record` wrote")
    result = replay(args.file)
    if args.json != "-":
        print(result.summary())
        print("the same bits as recorded")
    _write(args.json, result.to_json())
    if args.player:
        _write(args.player, result.player().html)
    if args.plot:
        from refsgd import plots

        with writing(args.plot) as temporary:
            plots.save(plots.run(result), temporary)


def _step(args: argparse.Namespace) -> None:
    terminal.step(args, _write)


def _explore(args: argparse.Namespace) -> None:
    from refsgd.testing import explore_algorithm

    own = {k[4:]: v for k, v in vars(args).items() if k.startswith("own_") and v is not None}
    print(explore_algorithm(args.algorithm, workers=args.workers, servers=args.servers, steps=args.steps, max_runs=args.max_runs,
                            walks=args.walks, seed=args.seed, **own))


def _data(args: argparse.Namespace) -> None:
    from refsgd.data import fetch, load, status

    if args.fetch:
        print(f"{args.fetch}: {fetch(args.fetch)}")
        return
    for row in status():
        if not row.expected:
            where = "needs no files"
        elif row.folder is None:
            where = f"not here; refsgd data {row.name} fetches it"
        else:
            where = f"{row.found} of {row.expected} files in {row.folder}"
            where += "" if row.found == row.expected else f"; {load(row.name).note}"
        print(f"{row.name:14} {where}")


def _calibrate(args: argparse.Namespace) -> None:
    from refsgd.calibration import calibrate
    from refsgd.nn import nets

    if args.net.partition(":")[0] not in nets.NAMES:
        raise Usage(f"net {args.net!r} is unknown; expected one of {', '.join(nets.NAMES)}")
    if args.batch < 1:
        raise Usage(f"batch {args.batch}; expected at least 1 image")
    found = calibrate(args.net, args.batch)
    if args.output != "-":
        print(found.summary())
    _write(args.output, found.to_json())


def _check(args: argparse.Namespace) -> None:
    from refsgd.testing import check

    function = CATALOGUE.get(args.target) or _imported(args.target)
    failed = 0
    for finding in check(function, processes=not args.no_processes):
        print(finding, flush=True)
        failed += finding.held is False
    if failed:
        raise RuntimeError(f"{failed} checks failed; expected none")


def _imported(target: str) -> Any:
    """The function that MODULE:FUNCTION names; MODULE may be a file's path."""
    import importlib
    import importlib.util

    module_name, _, name = target.partition(":")
    if not name:
        raise Usage(f"target {target!r}; expected MODULE:FUNCTION, e.g. mine.py:my_algorithm, or one of {', '.join(CATALOGUE)}")
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(module_name).stem, module_name)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(module_name)
    except (ImportError, FileNotFoundError) as error:
        raise Usage(f"cannot import {module_name}: {error}; expected a module or a file that ends in .py") from None
    if not callable(getattr(module, name, None)):
        raise Usage(f"{module_name} has no function {name!r}; expected a deployment function")
    return getattr(module, name)


def _sweep(args: argparse.Namespace) -> None:
    from refsgd.sweep import parse_range, sweep

    quantity, values = parse_range(args.sweep)
    names = [args.algorithm, *(a for a in args.against.split(",") if a)]
    for name in names:
        if name not in CATALOGUE:
            raise Usage(f"algorithm {name!r} is unknown; expected one of {', '.join(CATALOGUE)}")
    arguments = {k: v for k, v in _arguments(args).items() if k in ("machine", "batch", "data", "net", "workers", "servers", "steps", "epochs")}
    if arguments.get("steps") is None and arguments.get("epochs") is None:
        arguments["steps"] = 100
    found = sweep(names, quantity, values, figure=args.figure, **arguments)
    if args.json != "-":
        for name, points in found.curves.items():
            shown = [f"{x:g}: {y:.4g}" for x, y in zip(found.values, points) if y is not None]
            print(f"{name:16} {found.figure} [{found.unit}]  " + "  ".join(shown[:: max(1, len(shown) // 8)]))
        for a, b, x in found.crossings:
            print(f"{a} and {b} cross at {quantity} = {x:.4g}")
        from refsgd import plots

        picture = args.plot or "refsgd-sweep.png"
        with writing(picture) as temporary:
            plots.save(plots.sweep_figure(found), temporary)
        print(f"picture: {picture}")
    _write(args.json, json.dumps(found.to_dict(), indent=1))


def _predict(args: argparse.Namespace) -> None:
    if args.sweep:
        _sweep(args)
        return
    from refsgd.report import prediction_table

    predictions = predict(args.algorithm, **_arguments(args))
    if not predictions:
        raise Usage(f"no formula covers {args.algorithm} on an unpaced machine; expected --compute LAW")
    if args.json != "-":
        from rich.console import Console

        console = Console(width=None if sys.stdout.isatty() else 140)
        console.print(f"{args.algorithm} on: {_machine(args)}", highlight=False)
        console.print(prediction_table(predictions))
    _write(args.json, json.dumps({k: p.to_json() for k, p in predictions.items()}, indent=1))


def _list(args: argparse.Namespace) -> None:
    from refsgd.data import NAMES as DATA
    from refsgd.nn.nets import NAMES as NETS

    print("algorithms")
    for name in CATALOGUE:
        own = ", ".join(_flag(o) for o in options_of(CATALOGUE[name]))
        print(f"  {name:12} {first_line(name)}" + (f" [{own}]" if own else ""))
    print("nets\n  " + ", ".join(NETS))
    print("data sets\n  " + ", ".join(DATA))
    print("machines")
    for name, preset in PRESETS.items():
        print(f"  {name:16} {preset.says}")
    print("laws of a compute time")
    for family in FAMILIES.values():
        print("  " + family.help)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 1 the run failed, 2 wrong use."""
    from refsgd.data import DataError

    try:
        args = build_parser().parse_args(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    warnings.showwarning = lambda message, *rest, **more: sys.stderr.write(f"refsgd: warning: {message}\n")  # type: ignore[assignment]
    commands = {"compare": _compare, "run": _run, "predict": _predict, "list": _list, "replay": _replay,
                "explore": _explore, "step": _step, "check": _check, "calibrate": _calibrate,
                "data": _data}
    try:
        if args.command in ("compare", "run", "predict", "replay", "step"):
            _check_outputs(args)
        commands[args.command](args)
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("refsgd: interrupted; all processes ended\n")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Usage as error:
        sys.stderr.write(f"refsgd: {error}\n")
        return 2
    except (DataError, RuntimeError, ArithmeticError, ValueError, OSError) as error:
        sys.stderr.write(f"refsgd: {error}\n")
        return 1
