"""Pipelines: a net in stages on several nodes.

Parameters
----------
steps : int
    Batches.
stages : int, optional
    K, the nodes of a replica, a divisor of their number, by default all: then there is one replica.
cut : str
    Where the problem is cut, see `refsgd.problems.chain.Chain.cut`; ``balance:2GB`` or ``speed:4GB,2GB``:
    within the memory of all nodes or of each.
collective : str
    How the replicas of a stage sum their gradients: a key of `refsgd.collectives.ALLREDUCE`.
"""
