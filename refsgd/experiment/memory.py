"""Memory of every node of a run by formula: what its programs keep at their fullest moment.

Parameters, gradients and the state of the update rule follow from the algorithm, activations from the plan
by which the net computes; what processes have from the start and share is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from refsgd.algorithms.adaptive import LARS, Adam
from refsgd.algorithms.compression import Codec, codec
from refsgd.algorithms.exchange import of
from refsgd.cluster.units import counted
from refsgd.effects import ranks, roles
from refsgd.experiment.options.exchanges import largest_server

if TYPE_CHECKING:
    from refsgd.experiment.prepare import Experiment
    from refsgd.problems.chain import Stage
    from refsgd.theory import Figures, Prediction
    from refsgd.trace import Run

TOLD = "the largest sum at one moment; without the interpreter, its modules, the data and a history"
ENCODING = ", and without the copies that a codec makes while it encodes"


def of_nodes(e: Experiment) -> dict[str, Prediction]:
    """Bytes of each node."""
    kind, rank = roles(e.nodes), ranks(e.nodes)
    servers = [node for node in e.nodes if kind[node] == "server"]
    # without servers, `e.servers` means nothing, and may be a number of parts that no memory holds
    found = dict(zip(servers, _of_servers(e, len(servers)), strict=True)) if servers else {}
    stages = _of_stages(e) if e.facts.staged else []
    batches = e.batches
    by_batch = {} if stages else {batch: _of_worker(e, batch) for batch in set(batches)}
    for node in e.nodes:
        if kind[node] != "server":
            found[node] = stages[rank[node] // e.replicas] if stages else by_batch[batches[rank[node]]]
    return {node: replace(p, kind="approximation", terms={k: v for k, v in p.terms.items() if v},
                          assumptions=TOLD + ENCODING * (_codec(e) is not None))
            for node, p in found.items()}


def of_roles(e: Experiment) -> dict[str, Prediction]:
    """Bytes of the fullest node of each role, by metric: ``memory_worker``, ``_server``, ``_stage``."""
    kind = roles(e.nodes)
    found: dict[str, Prediction] = {}
    for node, p in of_nodes(e).items():
        name = "memory_" + ("stage" if kind[node] == "worker" and e.facts.staged else kind[node])
        if name not in found or p.value > found[name].value:
            found[name] = p
    return found


def of_processes(e: Experiment, run: Run, runtime: str) -> dict[str, float]:
    """Bytes of each process of a finished run: its nodes, and the parameters kept for the history."""
    host, found = e.network.host, dict[str, float]()
    for node, p in of_nodes(e).items():
        # messages in shared memory belong to no process
        apart = sum(p.terms.get(term, 0.0) for term in ("gradients", "buffers") if runtime == "processes")
        found[host[node]] = found.get(host[node], 0.0) + p.value - apart
    for mark in run.trace.marks("update") if runtime != "simulator" else ():
        found[host[mark.node]] += getattr(mark.values.get("x"), "nbytes", 0)
    return found


def in_words(used: Mapping[str, Any]) -> str:
    """What a process has used, with its growth since the start and what that should be, if known."""
    predicted = f"predicted {used['predicted'] / 1e6:.1f}" if used.get("predicted") is not None else ""
    memory = predicted and f"{predicted} MB"
    if "rss_max" in used:  # not in virtual time
        grown = f" (grown by {used['grown'] / 1e6:.1f}, {predicted})" if predicted else ""
        memory = f"{used['rss_max'] / 1e6:.0f} MB{grown}, {used['written'] / 1e6:.3g} MB written"
    said = [f"{used[f'bytes_{way}'] / 1e6:.3g} MB {way} in {counted(used[f'messages_{way}'], 'message')}"
            for way in ("sent", "received") if used.get(f"messages_{way}")]
    return ", ".join([f"{used['cpu']:.0%} of a core", *filter(None, [memory]), *said])


def with_sizes(e: Experiment, found: Figures) -> Figures:
    """The same metrics, if any, with the memory of each role, and how uneven the servers' parts are."""
    from refsgd.theory import Prediction

    if found:
        found.update(of_roles(e))
    if found and (share := largest_server(e.problem, e.servers)) is not None:
        found["largest_server"] = Prediction(
            share, "1", "exact", formula="bytes of the fullest server / mean of all servers",
            source="the layout of the parameters")
    return found


def _rule(e: Experiment) -> tuple[str, int]:
    """The optimiser, and the vectors that its update creates: the step, the new parameters and state."""
    if isinstance(e.sgd, Adam):
        return "adam", 4
    return ("momentum", 3) if e.sgd.momentum or isinstance(e.sgd, LARS) else ("sgd", 2)


def _of_worker(e: Experiment, batch: int) -> Prediction:
    from refsgd.theory.phenomena import memory  # it needs scipy

    d, chain = e.problem.x0.size, e.problem.chain
    held = chain.held(batch) if chain else 0.0
    holds = e.facts.holds
    optimiser, update = ("sgd", 0) if holds == "pushed" else _rule(e)
    if holds == "shards":
        largest = max(part.stop - part.start for part in e.problem.layers.parts) if e.problem.layers else d
        found = memory.zero(d, e.workers, int(e.own["stage"]), largest, optimiser=optimiser)
        return _with(found, {"activations": held, "working copies": update * 4 * d / e.workers})
    alone = holds == "alone" or (e.workers == 1 and holds == "summed")
    # A collective has the weighted gradient, partial sums, their sum and the mean beside the gradient.
    working = 3 + 1 / e.workers if holds == "summed" and not alone else update
    if (leads := min(e.facts.leads, e.workers)) > 1:  # the others' gradients, a weighted one and their sum
        working = leads - 1 + 2
    used = _codec(e)
    buffers = 0 if alone else 8 * d if holds == "partitions" else 4 * d
    found = memory.worker(d, held, 1, optimiser=optimiser, buffers=buffers,
                          working=max(working, update))
    return _with(found, {"codec residual": used.held(d) if used else 0})


def _codec(e: Experiment) -> Codec | None:
    """The codec that is part of the algorithm, or that of the exchange."""
    return codec(e.facts.codec(e.own)) if e.facts.codec else of(e.problem).codec


def _of_servers(e: Experiment, count: int) -> list[Prediction]:
    from refsgd.theory.phenomena import memory

    optimiser, update = _rule(e)
    sizes = [part.stop - part.start for part in of(e.problem).cut(e.problem, e.servers)]
    if len(sizes) != count:  # a part of each stage, or a whole copy in each data centre
        sizes = [e.problem.x0.size // (1 if e.facts.copies else max(count, 1))] * count
    return [memory.server(size, workers=-(-e.workers // e.facts.leads), optimiser=optimiser, collects=True,
                          working=update + e.facts.collects) for size in sizes]


def _of_stages(e: Experiment) -> list[Prediction]:
    """Of each node of a replica, at its first examples."""
    depth, chunks = e.workers // e.replicas, int(e.own.get("chunks", 1))
    stages = e.problem.split(depth * chunks, str(e.own.get("cut", "balance")))
    return [of_stage(e, k, stages[k::depth]) for k in range(depth)]


def of_stage(e: Experiment, k: int, own: Sequence[Stage]) -> Prediction:
    """Of node k of a replica, with these stages."""
    from refsgd.theory.phenomena import memory

    optimiser, update = _rule(e)
    options, depth, batch = e.own, e.workers // e.replicas, max(e.batches)
    steps, flight = max(e.steps, 1), depth - k
    size = sum(stage.x0.size for stage in own)
    crossing = 2 * max(block.nbytes for stage in own for block in stage.blocks)
    crossing *= e.problem.chain is not None
    if e.facts.holds == "stages":
        m = max(1, min(int(options.get("micro", 1)), batch))
        kept = min(m, flight) if options.get("passes") == "1f1b" and len(own) == 1 else m
        rows = [batch * (j + 1) // m - batch * j // m for j in range(kept)]
        held = sum(stage.held(each) for stage in own for each in rows)
        # While the last micro-batch goes back, there are the gradient of the step before, the sum so far,
        # the part before, and the blocks' gradients beside the vector into which they are joined.
        beside = (steps > 1) + min(m - 1, 2) + any(len(stage.blocks) > 1 for stage in own)
        one = memory.stage(size, held, optimiser=optimiser, working=max(update, beside))
        return _with(one, {"between layers": crossing * -(-batch // m)})
    versions = depth if options.get("vertical") else flight
    one = memory.stage(size, own[0].held(batch), min(flight, steps),
                       versions=min(versions, steps), optimiser=optimiser, working=update)
    return _with(one, {"between layers": crossing * batch})


def _with(found: Prediction, more: Mapping[str, float]) -> Prediction:
    """A prediction with more terms."""
    return replace(found, value=found.value + sum(more.values()), terms={**found.terms, **more})
