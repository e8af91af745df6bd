"""Federated algorithms: a server hands out its model, and clients take several steps before they answer.

Parameters
----------
steps : int
    Of each client; in rounds, of a client that takes part in every round.
period : int
    H, steps of a round or a job, at least 1.
sampled : int, optional
    m, the clients of a round, by default all.
concurrency : int, optional
    C, the clients that work at a time, by default all.
weight : {"constant", "polynomial", "hinge"}
    How the weight of a client's model, or of its move, falls with its staleness.
"""
