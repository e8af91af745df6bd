"""Graur's chapter 5: the server on a node of its own with an extra worker, on 5, 9, 13 and 17 nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks import published
from benchmarks.studies.graur_figures import SERVER, Key
from benchmarks.studies.graur_runs import rate, rates, steps, watched
from benchmarks.studies.graur_series import STRATEGIES
from benchmarks.studies.lab import Lab, Seen
from benchmarks.studies.study import Grid, Line, Panel, Part, judged

EXTRA, OWN, BATCH, LINKS = "parameter-server-extra-worker", "parameter-server", 128, tuple(published.LINKS)


def _key(strategy: str, link: str, nodes: int) -> Key:
    """An experiment by the nodes of the others, which have one fewer."""
    return Key(strategy, "F+B", link, nodes + (strategy == EXTRA), BATCH)


def extra(lab: Lab) -> Part:
    """Annex C: the third way to place a server, beside the two others."""
    nodes = (4, 16) if lab.quick else (4, 8, 12, 16)
    keys = [_key(s, link, n) for s in (EXTRA, OWN, SERVER) for link in LINKS for n in nodes]
    seen = watched(lab, keys)
    sent = {key: float(seen[key].looked["all"]["out"]) / steps(key) / 1e6 for key in keys}
    busy = {key: float(seen[key].looked["all"]["cpu"]) for key in keys}
    full = {link: {n: _full(seen, _key(EXTRA, link, n)) for n in nodes} for link in LINKS}
    lines = [line for key in keys for line in (
        Line(f"{key}: outgoing of all nodes, a batch", simulated=sent[key], unit="MB"),
        Line(f"{key}: computing of a worker", simulated=100 * busy[key], unit="% of the time"),
        Line(f"{key}: images", simulated=rate(key, seen[key]), unit="images/s"))]
    few, many = (_key(EXTRA, "Ethernet", n) for n in (nodes[0], nodes[-1]))
    share = {n: [busy[_key(EXTRA, link, n)] for link in LINKS] for n in nodes}
    images = {s: rate(key, seen[key]) for s in (EXTRA, SERVER, OWN) for key in [_key(s, "Ethernet", nodes[-1])]}
    claims = [
        judged("with an extra worker a server's traffic has plateaus on Ethernet, too", "figures 5.1d, C.1",
               all(full["Ethernet"][n] > 10 * max(1, full["InfiniBand"][n]) for n in nodes),
               "; ".join(f"{n + 1} nodes: {full['Ethernet'][n]} seconds above 95 % of the link on Ethernet, "
                         f"{full['InfiniBand'][n]} on InfiniBand" for n in nodes), shape=True),
        judged("its traffic grows linearly in the number of workers", "5.4.1, figure C.1d",
               abs(sent[many] / sent[few] / (nodes[-1] / nodes[0]) - 1) < 0.05,
               f"{sent[few]:.0f} MB a batch of {nodes[0]} workers, {sent[many]:.0f} of {nodes[-1]}: 2 n M"),
        judged("InfiniBand raises the processor use of a server with an extra worker", "figure 5.12d",
               all(b > a for a, b in share.values()) and share[nodes[-1]][1] - share[nodes[-1]][0] > 0.1,
               "; ".join(f"{n + 1} nodes {a:.0%} and {b:.0%}" for n, (a, b) in share.items())
               + " of the time computing, on Ethernet and on InfiniBand", shape=True)]
    panels = [Panel(title, "nodes", y, {
        f"{name}, {link}": [(key.nodes, found[key]) for n in nodes for key in [_key(s, link, n)]]
        for s, name in ((EXTRA, "extra worker"), (OWN, "own node"), (SERVER, "collocated")) for link in LINKS})
        for title, y, found in (("images", "images/s", {key: rate(key, seen[key]) for key in keys}),
                                ("processors", "share of time computing", busy))]
    forward = {s: [_key(s, link, n)._replace(pass_="F", batch=32 if s == "caffe2" else BATCH) for link in LINKS
                   for n in nodes] for s in (EXTRA, *STRATEGIES)}
    images_forward = rates(lab, [key for keys in forward.values() for key in keys])
    grid = Grid(f"Forward passes only, images/s, batch {BATCH}, of Caffe2 32 (an extra worker: one node more)",
                [f"{link}, {n} nodes" for link in LINKS for n in nodes],
                {s: [images_forward[key] for key in keys] for s, keys in forward.items()})
    return Part("extra", "A server with an extra worker (RQ3)", "figures 5.1d, 5.12d, annex C", lines, claims, panels,
                grids=[grid], note=(
        f"Batches of {BATCH} of ResNet-50 in virtual time. A server on a node of its own leaves a worker less than a "
        f"server beside a worker; the extra worker makes up for it. Images per second on Ethernet: "
        + ", ".join(f"{value:.1f} ({s}, {nodes[-1] + (s == EXTRA)} nodes)" for s, value in images.items())
        + ". The extra worker is one more transfer for the server, and one more node."))


def _full(seen: Mapping[Key, Seen], key: Key) -> int:
    """Seconds of a run in which the server's traffic is above 95 % of its link."""
    found = seen[key].looked["busiest"]
    rates = np.diff(found["out"]) / np.maximum(np.diff(found["time"]), 1e-9)
    return int(np.sum(rates > 0.95 * published.LINKS[key.link]))
