"""``refsgd run --listen`` and ``refsgd run --join``: one run on several computers, over TCP."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from refsgd.cli.options import explicit
from refsgd.cli.outputs import compile_kernels
from refsgd.effects import Deployment
from refsgd.evaluation import evaluate
from refsgd.experiment import Experiment, Usage, prepare
from refsgd.machine import Machine
from refsgd.result import Result
from refsgd.running import recording
from refsgd.runtimes.simulator import RunFailed
from refsgd.version import __version__

SHORTEST_SECRET = 16


def options(parser: argparse.ArgumentParser) -> None:
    """Options of a run that others join.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        To which they are added.
    """
    group = parser.add_argument_group("several hosts (with --runtime tcp)")
    group.add_argument("--listen", metavar="HOST:PORT", help="wait there for the other hosts, which `refsgd run --join HOST:PORT`")
    group.add_argument("--hosts", type=int, default=2, metavar="N", help="how many there are in all (default 2)")
    secret_option(group)


def secret_option(parser: Any) -> None:
    """The option by which both sides get to know the secret.

    Parameters
    ----------
    parser : argparse.ArgumentParser or argument group
        To which it is added.
    """
    parser.add_argument("--secret-file", metavar="FILE", help="holds what all hosts must know; else the environment's REFSGD_SECRET is taken")


def address_of(text: str) -> tuple[str, int]:
    """Read an address.

    Parameters
    ----------
    text : str
        ``HOST:PORT``; an IPv6 address stands in brackets.

    Returns
    -------
    host : str
    port : int

    Raises
    ------
    Usage
        If it is none.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise Usage(f"address {text!r}; expected HOST:PORT, e.g. 192.168.1.5:7070")
    return host.strip("[]"), int(port)


def secret_of(args: argparse.Namespace) -> bytes:
    """What both sides must know.

    Parameters
    ----------
    args : argparse.Namespace
        Its ``secret_file`` names the file that holds it; else it is in the environment's REFSGD_SECRET.

    Returns
    -------
    bytes

    Raises
    ------
    Usage
        If the file cannot be read, or the secret is shorter than `SHORTEST_SECRET` bytes.
    """
    if args.secret_file:
        try:
            secret = Path(args.secret_file).read_bytes().strip()
        except OSError as error:
            raise Usage(f"secret file {args.secret_file}: {error.strerror}; expected one that holds {SHORTEST_SECRET} bytes or more") from None
    else:
        secret = os.environ.get("REFSGD_SECRET", "").encode()
    if len(secret) < SHORTEST_SECRET:
        raise Usage(f"a secret of {len(secret)} bytes; expected {SHORTEST_SECRET} or more, the same on all hosts, in REFSGD_SECRET or a "
                    "--secret-file: openssl rand -hex 32")
    return secret


def _say(text: str) -> None:
    sys.stderr.write(f"refsgd: {text}\n")
    sys.stderr.flush()


def listen(args: argparse.Namespace, arguments: dict[str, Any]) -> Result:
    """Be the first host of a run: wait for the others, and collect what they saw.

    Parameters
    ----------
    args : argparse.Namespace
        Of ``refsgd run``, with an address to listen at.
    arguments : dict of str to object
        Of the experiment, as `refsgd.cli.options.arguments_of` gives them.

    Returns
    -------
    Result

    Raises
    ------
    Usage
        If the options or the algorithm do not suit several hosts.
    """
    from refsgd.runtimes import processes, sites

    if args.runtime != "tcp":
        raise Usage(f"--listen with --runtime {args.runtime}; expected --runtime tcp")
    if args.hosts < 2:
        raise Usage(f"--hosts {args.hosts}; expected at least 2, or no --listen")
    if args.checkpoint or args.resume or args.fault or args.on_death != "stop":
        raise Usage("checkpoints, faults and --on-death are for runs on one host; expected none of them with --listen")
    address, secret = address_of(args.listen), secret_of(args)
    if "machine" not in explicit(args):
        arguments["machine"] = Machine()
    if arguments["machine"].paced or arguments["machine"].linked:
        raise Usage("a paced machine on several hosts, whose clocks differ; expected --compute none and no link")
    experiment = prepare(args.algorithm, **arguments)
    about = {"refsgd": __version__, "algorithm": args.algorithm, "arguments": experiment.arguments}
    deployment = _deployed(experiment)
    with recording(experiment, "tcp", args.record) as journal:
        run = sites.listen(processes.child, about, deployment, experiment.machine, experiment.seed, address, args.hosts, secret, _say,
                           experiment.largest_message)
        result = evaluate(experiment, "tcp", run)
        if journal is not None:  # on one host as it goes on; here when all is known
            for event in run.trace.events:
                journal(event)
            journal.finish(run.trace, result.parameters_sha256)
    return result


def _deployed(experiment: Experiment) -> Deployment:
    deployment = experiment.deploy()
    if any(node.cells for node in deployment.values()):
        raise Usage(f"the nodes of {experiment.name} share memory, which hosts do not; expected another algorithm")
    return deployment


def join(args: argparse.Namespace) -> None:
    """Take part in the run of another host, to its end.

    Parameters
    ----------
    args : argparse.Namespace
        Its ``join`` is that host's address.

    Raises
    ------
    refsgd.runtimes.simulator.RunFailed
        If the other host runs another version.
    """
    from refsgd.runtimes import processes, sites

    def build(about: dict[str, Any]) -> tuple[Deployment, Machine, int]:
        if about["refsgd"] != __version__:
            raise RunFailed(f"refsgd {about['refsgd']} there and {__version__} here; expected the same version")
        arguments = {**about["arguments"], "machine": Machine.from_json(about["arguments"]["machine"])}
        experiment = prepare(about["algorithm"], **arguments)
        compile_kernels(argparse.Namespace(data=arguments["data"], net=arguments["net"], quiet=True))
        return _deployed(experiment), experiment.machine, experiment.seed

    sites.join(processes.child, build, address_of(args.join), secret_of(args), _say)
    _say("the run has ended")


def do(args: argparse.Namespace) -> None:
    """Do the work of ``refsgd run`` without an algorithm: join.

    Parameters
    ----------
    args : argparse.Namespace

    Raises
    ------
    Usage
        If there is no address to join.
    """
    if not args.join:
        raise Usage("run: no algorithm; expected one of `refsgd run --help`, or --join HOST:PORT")
    join(args)
