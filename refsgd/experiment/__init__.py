"""Experiments: problem, algorithm and machine put together, run, evaluated, compared."""
