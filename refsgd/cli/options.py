"""Options of the commands: common options, those of each algorithm, and the arguments that they describe."""

from __future__ import annotations

import argparse
import math
import re
import sys
import typing
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Literal

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import EXCHANGE
from refsgd.cluster import placement
from refsgd.cluster.devices import written
from refsgd.cluster.distributions import DISTRIBUTIONS
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import PRESETS, load_timed
from refsgd.cluster.prices import on_devices
from refsgd.cluster.units import slowed
from refsgd.experiment.arguments import elsewhere, nearest, options_of, plain, suggestion
from refsgd.experiment.execution.perform import RUNTIMES
from refsgd.experiment.functions import deployment_function
from refsgd.experiment.options.architectures import ARCHITECTURES, named
from refsgd.experiment.options.problems import default_net
from refsgd.experiment.options.rules import OPTIMISERS
from refsgd.experiment.prepare import DEFAULT_EPOCHS, DEFAULT_MACHINE, DEFAULT_STEPS, Training, Usage

#: options that describe the machine
FIELDS = ("compute", "latency", "bandwidth", "duplex", "update", "reduction", "speeds", "colocated", "cores",
          "hosts", "inside", "groups", "uplink", "server_speeds", "loads", "codec")
MACHINE = ("machine", "slow", "slow_motion", *FIELDS)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with exit code 2."""

    def error(self, message: str) -> typing.NoReturn:
        """Print the error, with the choice that was probably meant, and exit."""
        choice = re.search(r"invalid choice: '(.+?)' \(choose from (.+)\)", message)
        if choice and (name := {plain(a): a for a in CATALOGUE}.get(plain(choice[1]))):
            message = f"{name} is an algorithm; did you mean: refsgd run {name}"
        elif choice:
            message += suggestion(choice[1], re.findall(r"[\w-]+", choice[2]))
        sys.stderr.write(f"refsgd: {message}\n")
        raise SystemExit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse, but an unknown flag is reported by its own command."""
        found, rest = super().parse_known_args(args, namespace)
        unknown = next((text.split("=")[0] for text in rest if text.startswith("-")), None)
        if unknown is not None:
            self.error(f"{self.prog.removeprefix('refsgd ')} has no option {unknown}; {self._meant(unknown)}")
        return found, rest

    def _meant(self, name: str) -> str:
        """The flag probably meant by an unknown one, and the algorithms that have it."""
        mine = [f for f in self._option_string_actions if f.startswith("--")]
        others = {flag(o): o for f in CATALOGUE.values()
                  for o in options_of(f)} if self.prog.split()[-1] in CATALOGUE else {}
        near = nearest(name, [*others, *mine])
        said = [f"did you mean {near}?"] if near and near != name else []
        said += [elsewhere(others[near])] if near in others and near not in mine else []
        return " ".join(said) or f"see {self.prog} --help"


def common(parser: argparse.ArgumentParser, runtime: str, picture: str) -> None:
    """Add the options that `run`, `predict` and `compare` share; defaults are those of `Training`.  Without a
    usual runtime nothing is run."""
    work = parser.add_argument_group("training")
    work.add_argument("--data", metavar="NAME",
                      help=f"data set: {Training.data} (default), mnist, fashion-mnist; or generated: "
                           "lasso[:samples,features,correlation], logistic[:...]")
    work.add_argument("--net", metavar="NAME",
                      help="net, see refsgd list; default: the one that fits the data. tiny:8,tanh,squared "
                           "has 8 channels, tanh and the squared error. Shape-only: shapes:P has P "
                           "parameters, shapes:resnet50@224 those of a net for images of 224 pixels, and "
                           "nothing to compute")
    work.add_argument("--batch", type=batch, metavar="B",
                      help=f"images per worker and iteration (default {Training.batch}); 20,1: for each "
                           "worker; auto:21 divides 21 by the workers' speeds")
    work.add_argument("--steps", type=int, metavar="T", help="iterations of each worker")
    work.add_argument("--epochs", type=float, metavar="E",
                      help=f"passes over the data (default {DEFAULT_EPOCHS}; sandblaster: {DEFAULT_STEPS} "
                           "steps)")
    work.add_argument("--optimiser", choices=tuple(OPTIMISERS), help="update rule (default sgd)")
    work.add_argument("--lr", type=float, help="learning rate (default " + ", ".join(
        f"{name} {rate:g}" for name, (_, rate) in OPTIMISERS.items()) + ")")
    work.add_argument("--momentum", type=float, help=f"default {Training.momentum}")
    work.add_argument("--weight-decay", type=float, help="default 0")
    work.add_argument("--schedule", metavar="S",
                      help="constant; cosine, to 0 at the end; or step(every,factor): decay by number of "
                           "updates")
    work.add_argument("--warmup", type=int, metavar="UPDATES",
                      help="number of updates over which the rate rises to its full value (default 0)")
    work.add_argument("--scale-lr", action="store_true", default=None,
                      help="multiply the rate by the number of gradients in an update's mean")
    work.add_argument("--validation", type=float, metavar="SHARE",
                      help="hold back a share of the training images, such as 0.1, and show the accuracy on "
                           "them, for choosing a rate")
    work.add_argument("--shards", choices=("iid", "by-label"), help="how images are divided among workers")
    work.add_argument("--seed", type=int,
                      help="seed of parameters, data order, durations and choices (default 0)")
    where = parser.add_argument_group("machine")
    where.add_argument("--workers", type=int, metavar="N", help=f"default {Training.workers}")
    where.add_argument("--servers", type=int, metavar="K", help="number of parameter servers (default 1)")
    where.add_argument("--machine", metavar="FILE|PRESET",
                       help=f"a machine file (TOML, JSON), or one of {', '.join(PRESETS)}; the flags "
                            "below change it")
    of_machine(where)
    of_exchange(parser)
    out = parser.add_argument_group("output")
    if runtime:
        out.add_argument("--runtime", choices=RUNTIMES, default=runtime, help=f"default {runtime}")
    files(out, picture)
    out.add_argument("--quiet", action="store_true", help="no progress")


def of_exchange(parser: argparse.ArgumentParser) -> None:
    """Add the options of an exchange."""
    how = parser.add_argument_group("exchange of gradients")
    how.add_argument("--layout", metavar="PARTS",
                     help="how the parameters are cut into parts: equal (default), layers, or chunks:BYTES "
                          "of layers")
    how.add_argument("--balance", choices=("robin", "size", "hash"),
                     help="how parts are assigned to servers (default robin)")
    how.add_argument("--overlap", choices=("none", "backward", "both"),
                     help="backward: send a layer's gradient as soon as it is computed; both: also start the "
                          "next forward pass layer by layer as parameters arrive (default none)")
    how.add_argument("--priority", action="store_true", default=None,
                     help="links serve the lowest layers first")
    how.add_argument("--bucket", type=int, metavar="BYTES",
                     help="bytes that an all-reduce with overlap sums at once (default 0: one layer)")
    how.add_argument("--compress", metavar="CODEC",
                     help="topk:0.01, randk:0.01, dgc:0.001, onebit, twobit:0.1, qsgd:16, fp16 or powersgd:2")
    how.add_argument("--feedback", choices=("on", "off"),
                     help="add what a message leaves out to the next one (default on)")


def files(out: argparse._ActionsContainer, picture: str) -> None:
    """Add the options for output files of a result."""
    out.add_argument("--json", metavar="PATH",
                     help="write the result as JSON; -: to standard output, and nothing else")
    out.add_argument("--plot", metavar="PATH", nargs="?", const=picture,
                     help=f"write a picture (png, pdf or svg; without a path {picture})")


def player_file(out: argparse._ActionsContainer) -> None:
    """Add the option for a page of the step player."""
    out.add_argument("--player", metavar="FILE.html",
                     help="write the run's first events as a page of the step player")


def typed(read: Callable[[str], float]) -> Callable[[str], float]:
    """Turn a reader into a type for argparse that reports the reader's errors."""
    def option(text: str) -> float:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return option


def links_and_speeds(where: argparse._ArgumentGroup, latency: str, bandwidth: str) -> None:
    """Add the options for a machine's links and speeds, as text that `refsgd.cluster.units` reads."""
    where.add_argument("--latency", metavar="TIME",
                       help="time from sending a message to the arrival of its first byte: seconds, or with "
                            f"a unit: 25us, 1ms ({latency})")
    where.add_argument("--bandwidth", metavar="RATE",
                       help="rate of each link and direction, in bytes/s or with a unit: 1.25GB/s, 10Gbps "
                            f"({bandwidth})")
    where.add_argument("--update", metavar="DIST", help="time of one update, e.g. 2ms (default 0)")
    where.add_argument("--speeds", metavar="1,1,4",
                       help="each worker's speed relative to --compute; 15x1,0.5: fifteen at 1, one at 0.5")
    where.add_argument("--server-speeds", metavar="1,0.5", help="each server's speed relative to --update")
    where.add_argument("--load", dest="loads", metavar="NODE: FACTOR@SECOND,...", action="append",
                       help="factors by which a node computes more slowly, each from a given second on: "
                            "'worker2: 1@0, 3@30, 1@60'; repeatable, or separated by semicolons")
    where.add_argument("--slow", metavar="W=SPEED", action="append",
                       help="speed of one worker: 15=0.5 for worker 15 at half speed; repeatable, or "
                            "separated by commas")


def batch(text: str) -> int | str:
    """A batch as a number, or as text that `refsgd.experiment.options.batches` reads."""
    return int(text) if re.fullmatch(r"\s*-?\d+\s*", text) else text


def of_machine(where: argparse._ArgumentGroup) -> None:
    """Add the options for all fields of a machine."""
    where.add_argument("--compute", metavar="DIST",
                       help="time of one gradient, e.g. 158ms or exponential(20ms), default "
                            f"{DEFAULT_MACHINE.compute}; or a device that prices it by the net's operations, "
                            "device(5TFLOPS,2ms,lognormal(1,0.1)); or one for each worker: '3x 20ms; 40ms'; "
                            "`none` leaves processes unpaced. "
                            "Distributions: " + "; ".join(DISTRIBUTIONS))
    links_and_speeds(where, f"default {DEFAULT_MACHINE.latency * 1e3:g}ms; 0 with --compute",
                     f"default {DEFAULT_MACHINE.bandwidth / 1e6:g}MB/s; unlimited with --compute")
    where.add_argument("--slow-motion", type=float, metavar="K",
                       help="make the whole machine K times slower, so that real processes can keep pace")
    where.add_argument("--colocated", action=argparse.BooleanOptionalAction, default=None,
                       help="server k shares the host of worker k mod n")
    where.add_argument("--cores", type=int, metavar="C",
                       help="cores of a host, which its programs share (default: enough for all)")
    levels(where)


def levels(where: argparse._ArgumentGroup) -> None:
    """Add the options for hosts and groups of hosts; `none` removes the value of a file or preset."""
    where.add_argument("--hosts", metavar="WHERE", help="placement of nodes: " + placement.HOSTS)
    where.add_argument("--duplex", choices=("full", "half"),
                       help="half: a host's link serves both directions, one message at a time")
    where.add_argument("--inside", metavar="LINK",
                       help="link of each node to others on its host: latency and bandwidth, such as "
                            "10us,32GB/s or 10us,32GB/s,half (default: free)")
    where.add_argument("--groups", metavar="HOSTS", help="racks or sites: " + placement.GROUPS)
    where.add_argument("--uplink", metavar="LINK",
                       help="link of each group to the others, shared by its hosts, such as 20ms,1Gbps")
    where.add_argument("--reduction", type=float, metavar="S",
                       help="seconds per byte that is added in a collective (default 0)")
    where.add_argument("--codec", type=float, metavar="S",
                       help="seconds per byte of a gradient that is encoded or decoded (default 0)")


def with_unit(text: str, unit: str) -> str:
    """": did you mean ...?", the end of an error about a number that probably lacks its unit."""
    return f": did you mean {text.strip()}{unit}?" if re.fullmatch(r"[\d.\s]+", text) else ""


def small_case(parser: argparse.ArgumentParser, size: int, steps: str) -> None:
    """Add the options for a small case without images, of `size` workers and steps by default."""
    parser.add_argument("--workers", type=int, default=size, metavar="N", help=f"default {size}")
    parser.add_argument("--servers", type=int, default=1, metavar="K", help="default 1")
    parser.add_argument("--steps", type=int, default=size, metavar="T", help=steps)
    parser.add_argument("--batch", type=batch, default=1, metavar="B",
                        help="examples in each worker's gradient, its weight: 3,1 (default: all equal)")
    of_exchange(parser)


def flag(name: str) -> str:
    """The flag of a Python option."""
    return "--" + name.replace("_", "-")


def number(text: str) -> float:
    """A number, as an int if it is whole."""
    value = float(text)
    return int(value) if math.isfinite(value) and value == int(value) else value


def own_options(parser: argparse.ArgumentParser, algorithm: str, function: Callable[..., Any]) -> None:
    """Add a flag for each keyword-only parameter of an algorithm's function."""
    group = parser.add_argument_group(f"options of {algorithm}")
    for name, parameter in options_of(function).items():
        kind = parameter.annotation
        if kind is parameter.empty:
            kind = type(parameter.default)
        if type(None) in typing.get_args(kind):
            kind = next(k for k in typing.get_args(kind) if k is not type(None))
        how: dict[str, Any] = {"dest": f"own_{name}", "help": f"default {parameter.default}"}
        if typing.get_origin(kind) is Literal:
            how["choices"] = typing.get_args(kind)
        elif kind is bool:
            how |= {"action": argparse.BooleanOptionalAction, "default": None}
        else:
            how |= {"type": {int: int, float: number}.get(kind, str), "metavar": name.upper()}
        group.add_argument(flag(name), **how)


def as_meant(arguments: Sequence[str]) -> list[str]:
    """Normalise arguments: ``help`` or none to ``--help``, ``run SSP`` to ``run ssp``, a preset to its flags.

    >>> as_meant([]), as_meant(["help", "run"]), as_meant(["run", "AD-PSGD"])
    (['--help'], ['run', '--help'], ['run', 'adpsgd'])
    """
    given = expand_preset(arguments)
    for at in range(len(given) - 1, 0, -1):  # argparse takes -5 for a number, but -5ms for a flag
        if given[at - 1].startswith("--") and "=" not in given[at - 1] and re.fullmatch(
            r"-\.?\d.*[a-zA-Z].*", given[at]):
            given[at - 1 : at + 1] = [f"{given[at - 1]}={given[at]}"]
    if given[:1] in ([], ["help"]):
        given = [*given[1:], "--help"]
    spelt = {plain(name): name for name in CATALOGUE}
    at = 1 if given[0] in ("run", "predict", "step", "explore") else 0
    return [spelt.get(plain(text), text) if i == at else text for i, text in enumerate(given)]


def expand_preset(arguments: Sequence[str]) -> list[str]:
    """``run --preset NAME ...`` as ``run ALGORITHM ...`` with the flags of the update architecture.

    >>> expand_preset(["run", "--preset", "caffe2", "--workers", "8"])
    ['run', 'allreduce', '--collective', 'halving-doubling', '--workers', '8']
    """
    given = [part for a in arguments for part in (a.split("=", 1) if a.startswith("--preset=") else [a])]
    if "--preset" not in given or given[0] not in ("run", "predict"):
        return given
    at = given.index("--preset")
    text = given[at + 1] if at + 1 < len(given) else ""
    if not (name := named(text)):
        raise Usage(f"preset {text!r} is unknown; expected one of {', '.join(ARCHITECTURES)}")
    how, rest = ARCHITECTURES[name], given[1:at] + given[at + 2 :]
    like = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    like.add_argument("--workers", type=int, default=Training.workers)
    like.add_argument("--hosts")
    like.add_argument("--machine")
    try:
        said, _ = like.parse_known_args(rest)
    except argparse.ArgumentError:
        return [given[0], how.algorithm, *rest]  # the command says what is wrong
    hosts = said.hosts or (load_timed(said.machine)[0].hosts if said.machine else "")
    options = how.on(placement.read_hosts("" if hosts == "none" else hosts) if hosts else "", said.workers)
    flags = [text for key, value in {**options, **how.fields(said.workers)}.items()
             for text in ((flag(key),) if value is True else (flag(key), str(value)))]
    more = ["--workers", str(said.workers + how.extra)] if how.extra else []
    return [given[0], how.algorithm, *flags, *rest, *more]


def first_line(algorithm: str) -> str:
    """The first sentence of an algorithm's module."""
    doc = sys.modules[CATALOGUE[algorithm].__module__].__doc__ or ""
    return doc.strip().split("\n\n")[0].replace("\n", " ").split(":", 1)[0].rstrip(".")


def each_algorithm(command: argparse.ArgumentParser, options: Callable[[argparse.ArgumentParser], None],
                   do: Callable[[argparse.Namespace], None]) -> None:
    """Add a parser for every algorithm to a command."""
    algorithms = command.add_subparsers(dest="algorithm", metavar="ALGORITHM", required=True,
                                        description="One of the catalogue, or your own: FILE.py:FUNCTION.")
    for algorithm in CATALOGUE:
        line = first_line(algorithm)
        of_algorithm(algorithms.add_parser(algorithm, help=line, description=line), algorithm, options, do)


def of_algorithm(parser: argparse.ArgumentParser, algorithm: str,
                 options: Callable[[argparse.ArgumentParser], None],
                 do: Callable[[argparse.Namespace], None]) -> None:
    """Add the command's options, then the algorithm's own."""
    options(parser)
    own_options(parser, algorithm, deployment_function(algorithm)[1])
    parser.set_defaults(algorithm=algorithm, do=do)


def machine_of(args: argparse.Namespace) -> Machine:
    """The machine that the flags describe."""
    try:
        return _described(args)
    except ValueError as error:
        raise Usage(str(error)) from None


def _described(args: argparse.Namespace) -> Machine:
    said = {name: value for name in FIELDS if (value := getattr(args, name, None)) is not None}
    said |= {name: getattr(Machine, name) for name, value in said.items() if value in ("none", ["none"])}
    if said.get("groups") in ("", ()):
        said["uplink"] = None
    if args.latency is not None and args.latency.strip().startswith("-"):
        raise Usage(f"latency {args.latency}; expected a time >= 0")
    base = Machine() if args.compute is not None else DEFAULT_MACHINE
    if args.machine is not None:
        base, timed = load_timed(args.machine)
        if timed and base.compute and args.compute is None and hasattr(args, "batch"):
            _check_timed(args, *timed)
    machine = base.with_(**said)
    for name in ("bandwidth", "inside", "uplink"):
        link = machine.between if name == "bandwidth" else getattr(machine, name)
        if said.get(name) and link.bandwidth < 1e3:
            raise Usage(f"{name} {said[name]} is {link.bandwidth:g} bytes/s; expected at least 1kB/s"
                        + with_unit(said[name], "Gbps"))
    if getattr(args, "slow_motion", None) is not None:
        machine = machine.slow_motion(args.slow_motion)
    if not args.slow:
        return machine
    varies = getattr(args, "sweep", None) or getattr(args, "resume", None)  # the number of workers
    return machine.with_(speeds=slowed(args.slow, machine.speeds,
                                       None if varies else args.workers or Training.workers))


def _check_timed(args: argparse.Namespace, net: str, size: int) -> None:
    """Warn if a machine's compute times are for another net or batch than the run's."""
    from refsgd.problems.data import NAMES

    trains = hasattr(args, "data")  # `advise` does not
    data, given = (args.data or Training.data) if trains else "", args.batch or Training.batch
    asked = args.net or (default_net(data) if data in NAMES else None)
    fits = size == given and (asked is None or asked == net or asked.startswith("shapes:"))
    if fits or (trains and data not in (*NAMES, "none")):
        return
    rate = "" if trains else " or --rate FLOP/S"
    warnings.warn(f"machine {args.machine}: its gradient times are for {net} at batch {size}, not "
                  f"{asked or 'your model'} at batch {given}; give the time of one such gradient with "
                  f"--compute DIST{rate}", stacklevel=3)


def own_given(args: argparse.Namespace) -> dict[str, Any]:
    """The algorithm's options that were given."""
    return {k[4:]: v for k, v in vars(args).items() if k.startswith("own_") and v is not None}


def exchange_given(args: argparse.Namespace) -> dict[str, Any]:
    """The exchange's options that were given."""
    given = {name: value for name in EXCHANGE if (value := getattr(args, name)) is not None}
    return given | {"feedback": given["feedback"] == "on"} if "feedback" in given else given


def arguments_of(args: argparse.Namespace) -> dict[str, Any]:
    """The given arguments, as keywords of `refsgd.run` and similar functions."""
    given = {f.name: value for f in fields(Training) if (value := getattr(args, f.name)) is not None}
    given |= exchange_given(args)
    if any(getattr(args, name, None) is not None for name in MACHINE):
        given["machine"] = machine = machine_of(args)
        given["stated"] = [name for name in FIELDS if getattr(args, name, None) is not None
                           and getattr(machine, name) != getattr(Machine, name)]
    return given | own_given(args)


def check_priced(args: argparse.Namespace, machine: Machine, swept: bool = False) -> None:
    """Warn if the batch is given, or `swept`, and times are in seconds that were not measured for a batch."""
    measured = args.machine is not None and args.compute is None and load_timed(args.machine)[1]
    given = swept or args.batch not in (None, Training.batch)
    if given and machine.paced and not on_devices(machine) and not measured:
        warnings.warn(f"compute {written(machine.compute)}: times in seconds do not follow the batch; "
                      "--compute 'device(FLOP/S)' prices a gradient by its images", stacklevel=2)
