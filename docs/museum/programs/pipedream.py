"""PipeDream: stages of a net; each alternates one forward and one backward pass."""

from refsgd.algorithms.pipeline.stages import deploy


def train(me, batches):
    k, depth, ahead, flight = me.k, len(me.names), 0, {}
    for b in range(batches):
        while ahead < min(b + depth - k, batches):  # until depth - k batches are in flight
            rows, = me.stages[0].micro_batches(me.rank, ahead)
            kept = yield from me.forward(me.x, rows, ahead, first=True)
            flight[ahead] = rows, kept
            ahead += 1
        rows, kept = flight.pop(b)
        g = yield from me.backward(me.x, rows, kept, b, last=True)
        yield from me.update(g, b, read=b)
    return me.held


def pipeline(problem, workers, steps, sgd, *, stages: int | None = None):
    return deploy(problem, workers, sgd, stages, "balance", "ring",
                  lambda me: train(me, steps))
