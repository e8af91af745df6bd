"""A picture of a machine: hosts in their groups, nodes on their hosts, and the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine
from refsgd.display.machines import levels, members
from refsgd.display.plots.colors import BLUE, GREEN, PURPLE, VERMILION
from refsgd.effects import Deployment, ranks

#: widths of the picture (at most), its labels, a node and a gap; height of the key [inches]
WIDTH, LEFT, CELL, GAP, KEY = 8.0, 1.7, 0.4, 0.12, 0.4
HOSTS, NODES, GROUPS = 10, 12, 5  #: largest numbers of hosts, nodes per host and groups that are drawn
NODE = {"worker": BLUE, "server": VERMILION}
LEVEL = {"inside a host": GREEN, "between hosts": "#444444", "between groups": PURPLE}


def machine_figure(machine: Machine, deployment: Deployment) -> Figure:
    """Hosts, groups, links and their speeds; if there are many hosts or groups, the first ones and the last.
    All positions are in inches."""
    network = Network(machine, deployment)
    grouped = members(network)
    groups = _ends(list(grouped), GROUPS)
    shown = [_ends(list(grouped[g]), max(2, HOSTS // len(groups))) if g is not ... else [] for g in groups]
    most = min(NODES, max(len(nodes) for hosts in grouped.values() for nodes in hosts.values()))
    drawn = sum(map(len, shown)) + len(shown)
    columns = max(1, min(most, int((WIDTH - LEFT) / drawn / (CELL + GAP))))
    rows = ceil(most / columns)
    roof = rows * CELL + 0.45  # height of a host
    bar = KEY + roof + 0.45
    figure = Figure()
    ax = figure.add_axes((0, 0, 1, 1))
    x = LEFT
    for group, hosts in zip(groups, shown):
        first = x
        if group is ...:
            ax.text(x + 0.12, bar, "...", ha="center", fontsize=11)
            x += 0.24 + GAP
        for host in hosts:
            if host is ...:
                ax.text(x + 0.12, KEY + roof / 2, "...", ha="center", fontsize=11)
                x += 0.24 + GAP
                continue
            wide = columns * CELL
            _host(ax, x, wide, roof, f"{'host ' * (columns > 1)}{network.hosts.index(host)}", machine)
            _nodes(ax, x, columns, rows, grouped[group][host], deployment)
            ax.plot([x + wide / 2] * 2, [KEY + roof, bar], color=LEVEL["between hosts"], lw=1.5, zorder=0)
            x += wide + GAP
        if hosts:
            _switch(ax, first, x - GAP, bar, group)
        x += GAP
    if machine.groups:
        ax.plot([LEFT, x - 2 * GAP], [bar + 0.6] * 2, color=LEVEL["between groups"], lw=4)
    _labels(ax, machine, {"inside a host": KEY + roof / 2 - 0.1, "between hosts": bar - 0.2,
                          "between groups": bar + 0.45})
    width, height = max(x, 5.0), bar + (1.0 if machine.groups else 0.35)
    figure.set_size_inches(width, height)
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.set_axis_off()
    return figure


def _ends(items: Sequence[Any], most: int) -> list[Any]:
    """The items; if there are more than `most`, the first ones, `...` and the last."""
    return list(items) if len(items) <= most else [*items[: max(1, most - 2)], ..., items[-1]]


def _host(ax: Axes, x: float, wide: float, roof: float, name: str, machine: Machine) -> None:
    """Draw a host: a box with its name, and a bar if it has an inside link."""
    ax.add_patch(FancyBboxPatch((x, KEY), wide, roof, boxstyle="round,pad=0,rounding_size=0.06", fc="#f2f2f2",
                                ec="#444444"))
    ax.text(x + wide / 2, KEY + roof - 0.15, name, ha="center", va="center", fontsize=8)
    if machine.inside is not None:
        ax.plot([x + 0.06, x + wide - 0.06], [KEY + roof - 0.33] * 2, color=LEVEL["inside a host"], lw=3)


def _nodes(ax: Axes, x: float, columns: int, rows: int, nodes: Sequence[str], deployment: Deployment) -> None:
    """Draw the nodes of a host with role and rank; if there are many, the first ones."""
    rank = ranks(deployment)
    shown = list(nodes) if len(nodes) <= NODES else list(nodes[: NODES - 1])
    for k, node in enumerate(shown):
        at = x + (k % columns + 0.5) * CELL, KEY + (rows - k // columns - 0.5) * CELL
        _node(ax, *at, deployment[node].role, str(rank[node]))
    if len(shown) < len(nodes):
        k = len(shown)
        ax.text(x + (k % columns + 0.5) * CELL, KEY + (rows - k // columns - 0.5) * CELL,
                f"+{len(nodes) - k}", ha="center", va="center", fontsize=7)


def _node(ax: Axes, x: float, y: float, role: str, rank: str = "") -> None:
    """Draw a node as the first letter of its role, and its rank, on the role's colour."""
    ax.text(x, y, f"{role[0]}{rank}", ha="center", va="center", fontsize=7, color="white",
            bbox={"boxstyle": "round,pad=0.25", "fc": NODE[role], "ec": "none"})


def _switch(ax: Axes, left: float, right: float, y: float, group: int | None) -> None:
    """Draw the link between the hosts of a group, and the group's uplink."""
    ax.plot([left, right], [y, y], color=LEVEL["between hosts"], lw=4)
    if group is not None:
        middle = (left + right) / 2
        ax.plot([middle] * 2, [y, y + 0.6], color=LEVEL["between groups"], lw=1.5, zorder=0)
        ax.text(middle + 0.06, y + 0.2, f"group {group}" if right - left > 0.9 else str(group), fontsize=8)


def _labels(ax: Axes, machine: Machine, at: dict[str, float]) -> None:
    """Write each level's latency and bandwidth at the left, and the key of the nodes' colours below."""
    for level, link, _ in levels(machine):
        figures = f"{link}".replace(", half", ",\nhalf") if link else "free"
        ax.text(0.08, at[level], f"{level}\n{figures}", fontsize=9, va="center", color=LEVEL[level])
    for x, role in ((LEFT, "worker"), (LEFT + 1.2, "server")):
        _node(ax, x + 0.1, 0.18, role)
        ax.text(x + 0.28, 0.18, role, va="center", fontsize=8)
