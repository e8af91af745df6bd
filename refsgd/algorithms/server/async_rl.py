"""Asynchronous reinforcement learning: actors draw samples with a policy up to some versions old.

Actors begin rollouts of later batches up to `ahead` versions early: SSP's bound, on samples instead of
clocks.  It bounds staleness only if samples are used in the order of their numbers.  Sample k has the key
(k mod n, k div n), in whichever actor: `ahead` = 0 and B = n have the bits of BSP.

Quick facts
-----------
synchronous: no, with `ahead` = 0 yes | centralised: yes | roles: n actors (workers), a dispatcher and a
trainer on one host (servers) | messages per worker and iteration: 1 up, 1 down, 1 to the trainer | bytes per
worker and iteration: M down (M = 4 d), a sample up and on to the trainer (without rollouts M); per update,
and per sample that `filter` drops, M to the dispatcher | staleness: at most `ahead` in order of admission or
with `filter`, else unbounded | clock gap: unbounded | momentum: at the trainer | aggregation: mean over the
examples of B samples, by their numbers | deterministic: with `ahead` = 0 yes, else given the order of arrival

What differs from the papers
----------------------------
Importance ratios stand for PPO; without rollouts a sample is a gradient at the version read.  AReaL can
interrupt a rollout to give it newer weights; here it is drawn to its end.

References
----------
Fu et al., "AReaL: a large-scale asynchronous reinforcement learning system for language reasoning",
arXiv:2505.24298, 2025; its max_head_offpolicyness is `ahead`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from refsgd.algorithms.facts import Facts, Options, declare, one_of
from refsgd.algorithms.parts import names
from refsgd.algorithms.server.rennala import batch
from refsgd.algorithms.server.rollout_gate import Admit, Done, actor, dispatcher
from refsgd.algorithms.sgd import SGD, mean_gradient
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, Send

Correct = Literal["none", "is", "truncated"]
Order = Literal["admission", "completion"]


def update(sgd: SGD, x: Array, v: Array, t: int, samples: Sequence[Any], examples: Sequence[int],
           rollouts: Any, correct: Correct) -> tuple[Array, Array]:
    """One step with several samples, in the order given."""
    if rollouts is not None:
        samples = [rollouts.surrogate(x, sample, correct) for sample in samples]
    return sgd.step(x, v, mean_gradient(samples, examples), t)


def trainer(workers: int, problem: Any, total: int, size: int, sgd: SGD, ahead: float, correct: Correct,
            order: Order, filter: bool) -> Program[Array]:
    """Step with the next `size` samples, or the first that come; returns the parameters, (d,)."""
    x: Array = problem.x0
    kept, v, version, used, dropped = dict[int, Done](), sgd.start(x), 0, 0, 0
    for heard in range(1, total + 1):
        _, done = yield Recv(Done, src="dispatcher")
        if filter and version - done.version > ahead:
            dropped += 1  # another may be begun
            yield Mark("drop", worker=done.worker, t=done.version, reason="stale")
            yield Send("dispatcher", Admit(x, version, (ahead + version + 1) * size + dropped))
        else:
            kept[done.number] = done
        while due := [i for i in sorted(kept) if order == "completion" or i < used + size]:
            if len(due) < size and heard < total:
                break
            taken, used = [kept.pop(i) for i in due], used + len(due)
            examples = [problem.images(i % workers, i // workers) for i in due]
            x, v = yield Compute(update, sgd, x, v, version, [done.sample for done in taken], examples,
                                 problem.rollouts, correct, kind="update")
            yield Mark("update", part=0, version=version, images=sum(examples), x=x,
                       reads=tuple((done.worker, done.version) for done in taken))
            version += 1
            yield Send("dispatcher", Admit(x, version, (ahead + version + 1) * size + dropped))
    return x


def needs(options: Options, workers: int) -> dict[str, str]:
    """In order of admission no sample is too old, and with none ahead an update has all that are begun."""
    found = {} if options["order"] == "completion" else {"filter": "order completion"}
    return found if options["ahead"] else dict.fromkeys(("order", "filter"), "ahead > 0")


@declare(Facts(
    because={"": "its actors send samples, which become gradients at the trainer"},
    needs=needs, dealt=True, mean_of=batch, collects=True, holds="pushed", recursion="waits",
    updates=lambda n, steps, options: None if options["filter"] else -(-n * steps // batch(n, options)),
    no_formula="how long actors and trainer wait for each other depends on the order of completion"))
def async_rl(problem: Any, workers: int, steps: int, sgd: SGD, *, ahead: float = 1,
             gradients: int | None = None, correct: Correct = "none", order: Order = "admission",
             filter: bool = False) -> Deployment:
    """Deploy asynchronous reinforcement learning.

    Parameters
    ----------
    ahead : int or inf
        Versions by which a sample may be begun early, >= 0; 0 is synchronous.
    gradients : int, optional
        B >= 1, the samples of an update, by default the number of workers.
    correct : {"none", "is", "truncated"}
        Weight of each choice in a sample: 1, its importance ratio, or the ratio up to 2.
    order : {"admission", "completion"}
        Whether samples are used in the order in which they were begun or in which they end.
    filter : bool
        Drop samples that are more than `ahead` versions old.
    """
    one_of("correct", correct, Correct)
    one_of("order", order, Order)
    if not ahead >= 0 or ahead % 1 > 0:  # inf % 1 is NaN
        raise ValueError(f"ahead {ahead}; expected a whole number >= 0, or inf")
    if correct != "none" and problem.rollouts is None:
        raise ValueError(f"correct {correct} with samples that are gradients; expected none, or data bandit")
    ws, (server,) = names(workers, 1)
    size, total = batch(workers, {"gradients": gradients}), workers * steps
    first = Admit(problem.x0, 0, (ahead + 1) * size)
    main = trainer(workers, problem, total, size, sgd, ahead, correct, order, filter)
    return {**{w: Node(actor(w, workers, problem)) for w in ws}, server: Node(main, role="server", rank=0),
            "dispatcher": Node(dispatcher(ws, total, first), role="server", rank=0)}
