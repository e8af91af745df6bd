"""The grader: a submission runs its programs in a process of its own, and is judged from outside.

`judge` starts the process and gives the checks of `refsgd.testing` programs that run there; `executor` is
that process; `plain` is what crosses the border.  The engine, the clock, the draws, the reference and the
verdict stay on this side.
"""
