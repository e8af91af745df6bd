"""Times of paced processes beside those that were simulated, on a machine that may be busy with other things."""


def slipped(trace):
    """Seconds by which nominal time was moved, over all nodes, since Computes ended late: what a busy machine adds."""
    return sum(late["slipped"] for late in trace.lateness.values())


def as_simulated(found, expected, slips=0.0, rel=0.05):
    """Whether seconds in nominal time are those of the simulator, within a share and what has slipped meanwhile."""
    return (1 - rel) * expected <= found <= (1 + rel) * expected + slips
