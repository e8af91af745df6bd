"""SSP: a worker may be at most `staleness` clocks ahead of the slowest one."""

from refsgd.algorithms.parts import Model, Push, worker
from refsgd.effects import Compute, Mark, Node, Recv, Send


def server(x, workers, steps, sgd, staleness):
    clock, waiting, v = dict.fromkeys(workers, 0), set(), sgd.start(x)
    for version in range(steps * len(workers)):
        w, push = yield Recv(Push)
        x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
        yield Mark("update", part=0, version=version, reads=((w, push.version),), x=x)
        clock[w] += 1
        waiting.add(w)
        if clock[w] <= min(clock.values()) + staleness:
            waiting.remove(w)
            yield Send(w, Model(x, version + 1))
    return x


def ssp(problem, workers, steps, sgd, *, staleness: int = 3):
    names = [f"worker{i}" for i in range(workers)]
    nodes = {w: Node(worker(i, ["server0"], problem, steps))
             for i, w in enumerate(names)}
    main = server(problem.x0, names, steps, sgd, staleness)
    return nodes | {"server0": Node(main, role="server")}
