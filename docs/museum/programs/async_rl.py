"""Asynchronous reinforcement learning: rollouts may be at most `ahead` versions old."""

from refsgd.algorithms.server.async_rl import Admit, Done, actor, dispatcher, update
from refsgd.effects import Compute, Mark, Node, Recv, Send


def trainer(workers, problem, total, size, sgd, ahead):
    x, v, version = problem.x0, sgd.start(problem.x0), 0
    finished = {}
    for heard in range(1, total + 1):
        _, done = yield Recv(Done)
        finished[done.number] = done
        while len(finished) >= size or (finished and heard == total):
            numbers = sorted(finished)[:size]  # those that were begun first
            samples = [finished.pop(i) for i in numbers]
            examples = [problem.images(i % workers, i // workers) for i in numbers]
            x, v = yield Compute(update, sgd, x, v, version, [s.sample for s in samples],
                                 examples, problem.rollouts, "none", kind="update")
            yield Mark("update", part=0, version=version, images=sum(examples), x=x,
                       reads=tuple((s.worker, s.version) for s in samples))
            version += 1
            yield Send("dispatcher", Admit(x, version, (ahead + version + 1) * size))
    return x


def async_rl(problem, workers, steps, sgd, *, ahead: int = 1, gradients: int | None = None):
    names = [f"worker{i}" for i in range(workers)]
    size, total = gradients or workers, workers * steps
    main = trainer(workers, problem, total, size, sgd, ahead)
    first = Admit(problem.x0, 0, (ahead + 1) * size)
    return {**{w: Node(actor(w, workers, problem), rank=i) for i, w in enumerate(names)},
            "server0": Node(main, role="server", rank=0),
            "dispatcher": Node(dispatcher(names, total, first), role="server", rank=0)}
