"""What Hypothesis draws: machines whose messages and durations give every kind of schedule."""

from hypothesis import strategies as st

from refsgd.cluster.machine import Machine

LAWS = ["fixed(1)", "exponential(1)", "uniform(0.1,1.9)", "lognormal(1,1.5)", "pareto(1,1.5)",
        "straggler(1,0.2,20)"]

machines = st.builds(
    Machine,
    compute=st.sampled_from(LAWS),
    latency=st.sampled_from([0.0, 0.1, 3.0]),
    bandwidth=st.sampled_from([float("inf"), 1000.0, 20.0]),
    update=st.sampled_from([None, "fixed(0.3)", "exponential(0.5)"]),
    speeds=st.lists(st.sampled_from([0.1, 1.0, 7.0]), max_size=5).map(tuple),
    colocated=st.booleans(),
)
seeds = st.integers(0, 2**16)
