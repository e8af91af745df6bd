"""Advice for several settings: devices with prices, numbers of workers and servers, batches."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import product
from math import inf, isfinite, prod
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from refsgd.cli.options import machine_of
from refsgd.cli.outputs import ADVICE, deliver, lay_out, width
from refsgd.cluster.prices import on_devices
from refsgd.cluster.units import counted, flops, spoken
from refsgd.experiment.prepare import Usage
from refsgd.experiment.sweep import check_values, parse_range
from refsgd.trace.schema import json_text

if TYPE_CHECKING:
    from refsgd.experiment.advice.advise import Advice
    from refsgd.experiment.advice.strategies import Strategy

MOST = 64  #: settings of a search
LEAST = 10_000  #: events for each
SHOWN = 6  #: rows of each kind, unless more are best at some price
QUANTITIES = "workers", "servers", "batch"


class Offer(NamedTuple):
    """A device that can be had."""

    name: str
    rate: float  #: operations a second
    price: float  #: of an hour, in any currency; 0: not asked


class Setting(NamedTuple):
    """A strategy in one setting."""

    offer: Offer
    batch: int  #: of each worker
    servers: int  #: on hosts of their own
    found: Strategy

    @property
    def seconds(self) -> float:
        """Of a pass, or until the target of a race where that is known."""
        return self.found.to_target if isfinite(self.found.to_target) else self.found.seconds

    @property
    def price(self) -> float:
        """Of that time, for all workers and servers."""
        return self.offer.price * (self.found.workers + self.servers) * self.seconds / 3600

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"device": self.offer._asdict(), "servers": self.servers, "images": self.batch,
                "seconds_to_target": self.seconds, "price": self.price, **self.found.to_json()}


def offer(text: str) -> Offer:
    """Read ``NAME=FLOP/S@PRICE``, an hour's price; without a price, only time is compared."""
    name, apart, rest = text.rpartition("=")
    rate, _, price = rest.partition("@")
    try:
        found = Offer(name, flops(rate), float(price or 0))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}") from None
    if not (apart and name and 0 < found.rate < inf and 0 <= found.price < inf):
        raise argparse.ArgumentTypeError(f"{text!r}; expected NAME=FLOP/S@PRICE, such as T4=2.5TFLOPS@0.35")
    return found


def settings(args: argparse.Namespace, ask: Callable[[argparse.Namespace], Advice]) -> None:
    """Ask for advice in each setting, print and write the best of each kind."""
    offers, ranges = _asked(args)
    count = len(offers) * prod(map(len, ranges.values()))
    if count > MOST:
        raise Usage(f"{count} settings; expected at most {MOST}: fewer values of --search, or fewer devices")
    tried, events = dict[tuple[Any, ...], Setting](), max(args.budget // count, LEAST)
    for one, values in product(offers, list(product(*ranges.values()))):
        own = {name: int(value) for name, value in zip(ranges, values)}
        asked = argparse.Namespace(**{**vars(args), **own, "rate": one.rate, "budget": events})
        for s in ask(asked).strategies:
            servers = asked.servers if s.where.endswith("own") else 0
            if not s.rejected:
                tried.setdefault((one, s.name, s.workers, asked.batch, servers),
                                 Setting(one, asked.batch, servers, s))
    if not tried:
        raise Usage("no strategy fits in any setting; expected more --memory or another --max-staleness")
    best = chosen(list(tried.values()))
    deliver([(args.json, lambda: json_text({"format": 1, "settings": [s.to_json() for s in best]}))],
            lambda: _show(best, f"{counted(count, 'setting')} with {len(tried)} strategies in all"))


def _asked(args: argparse.Namespace) -> tuple[list[Offer], dict[str, tuple[float, ...]]]:
    """The devices and the ranges that are asked for; refused if times of gradients cannot follow them."""
    ranges = dict(map(parse_range, args.search))
    if wrong := next((name for name in ranges if name not in QUANTITIES), None):
        raise Usage(f"--search over {wrong}; expected some of {', '.join(QUANTITIES)}, as in workers=2,4")
    for name, values in ranges.items():
        check_values(name, values)
    if args.device and (args.rate or args.compute):
        raise Usage("--device with --rate or --compute; expected one of them: each times a gradient")
    if args.mtbf is not None:
        raise Usage("--mtbf with --search or --device; expected one setting, of whose nodes one fails")
    timed = args.device or args.rate or not (args.compute or args.machine)
    given = argparse.Namespace(**{**vars(args), "slow": None})  # it numbers workers not counted yet
    if "batch" in ranges and not (timed or on_devices(machine_of(given))):
        said = f"--compute {args.compute}" if args.compute else f"--machine {args.machine}"
        raise Usage(f"--search over batch with {said}, which has the time of one batch; expected --rate or "
                    "--device")
    return args.device or [Offer("", args.rate, 0.0)], ranges


def chosen(tried: Sequence[Setting]) -> list[Setting]:
    """Of each kind, or with a race of all, the settings that no other beats in both time and price; without
    prices the fastest."""
    raced, found = [s for s in tried if isfinite(s.found.to_target)], list[Setting]()
    kinds = dict.fromkeys(s.found.kind for s in tried)
    for group in [raced] if raced else [[s for s in tried if s.found.kind is kind] for kind in kinds]:
        ordered, least = sorted(group, key=lambda s: (s.seconds, s.price)), inf
        if not any(s.price for s in group):
            found += ordered[:SHOWN]
        for s in ordered:
            if 0 < s.price < least:
                found.append(s)
                least = s.price
    return found


def _show(best: Sequence[Setting], tried: str) -> None:
    """Print the settings, and how to read them."""
    from refsgd.display.tables import Column, fitted

    priced, raced = any(s.price for s in best), any(isfinite(s.found.to_target) for s in best)
    shown: list[Setting | str] = list(best) if raced else []
    for kind in () if raced else dict.fromkeys(s.found.kind for s in best):
        shown += [f"{kind.title[0].upper()}{kind.title[1:]}", *(s for s in best if s.found.kind is kind)]

    def column(head: str, write: Callable[[Setting], str], rank: int = 0) -> Column:
        return Column(head, ["" if isinstance(s, str) else write(s) for s in shown], rank)

    names = [s if isinstance(s, str) else ("+ " if s.found.candidate.pytorch else "  ") + s.found.name
             for s in shown]
    columns = [Column("strategy", names, 0, False), column("device", lambda s: s.offer.name),
               column("workers", lambda s: str(s.found.workers)),
               column("servers", lambda s: str(s.servers or ""), 1),
               column("batch", lambda s: s.found.batch),
               column("to target" if raced else "pass", lambda s: spoken(s.seconds)),
               column("price", lambda s: f"{s.price:.3g}"),
               column("images/s", lambda s: f"{s.found.images_per_second:,.0f}", 2),
               column("eff", lambda s: f"{s.found.efficiency:.0%}", 3)]
    columns = [c for c in columns if any(c.cells) and (priced or c.head != "price")]
    lay_out(lambda wide: fitted(columns, wide), ADVICE)
    kept = "those that no other beats in both time and price" if priced else f"the {SHOWN} fastest"
    print(*wrap(f"{tried}: {kept}{'' if raced else ', of each kind'}. + PyTorch has it. "
                + "price: of the time of all workers, and of servers on hosts of their own. " * priced
                + ("The passes are the race's, with its batches and workers." if raced else
                   "A pass with more images at once, or of another kind, may improve accuracy less: --race "
                   "ranks by the passes of a race."), width() or ADVICE), sep="\n")
