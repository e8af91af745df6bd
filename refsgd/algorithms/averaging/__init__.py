"""Algorithms that average replicas periodically.

Parameters
----------
period : int
    H, steps of a round, at least 1.
fragments : int
    P, at least 1.
outer_lr : float
    > 0.
outer_momentum : float
    In [0, 1), by default Nesterov's.
form : {"nesterov", "heavy-ball"}
    The form of the outer momentum.
"""
