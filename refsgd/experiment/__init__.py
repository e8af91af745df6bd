"""Experiments: combine problem, algorithm and machine; run, evaluate, compare.

A run goes through `prepare` (an `Experiment` from checked arguments), `run` (records, checkpoints),
`execution.perform` (a runtime, again after a death) and `evaluation` (a `Result`).
"""
