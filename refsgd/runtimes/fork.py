"""Whether this system can fork, as OS processes require, and the choice of a runtime if it cannot."""

from __future__ import annotations

import multiprocessing as mp
import os
import warnings

from refsgd.runtimes.simulator import RunFailed

NO_FORK = "OS processes need fork, which this system does not support"


def can_fork() -> bool:
    """Whether processes can be forked; not on Windows."""
    return "fork" in mp.get_all_start_methods()


def runtime_here(runtime: str | None) -> str:
    """The runtime to use; the simulator if the system cannot fork and no runtime was requested."""
    if runtime in ("simulator", "mpi") or can_fork():
        return runtime or "processes"
    if runtime is not None and os.environ.get("REFSGD_WITHOUT_FORK") != "simulator":
        raise RunFailed(f"{NO_FORK}: use WSL, or --runtime simulator")
    warnings.warn(f"{NO_FORK}: simulated instead", RuntimeWarning, stacklevel=3)
    return "simulator"
