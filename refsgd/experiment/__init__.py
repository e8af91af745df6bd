"""Experiments: combine problem, algorithm and machine; run, evaluate, compare."""
