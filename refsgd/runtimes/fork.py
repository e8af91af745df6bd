"""Whether this system can fork, as OS processes require, and the choice of a runtime if it cannot."""

from __future__ import annotations

import builtins
import multiprocessing as mp
import os
import sys
import warnings

from refsgd.runtimes.simulator import RunFailed

NO_FORK = "OS processes need fork, which this system does not support"


def can_fork() -> bool:
    """Whether processes can be forked; not on Windows, nor in a browser, although its Python lists `fork`."""
    return "fork" in mp.get_all_start_methods() and sys.platform != "emscripten"


def runtime_here(runtime: str | None) -> str:
    """The runtime to use; without fork the simulator if no runtime was requested, or in a notebook."""
    if runtime in ("simulator", "mpi") or can_fork():
        return runtime or "processes"
    notebook = hasattr(builtins, "__IPYTHON__")  # Run All continues
    if runtime is not None and not notebook and os.environ.get("REFSGD_WITHOUT_FORK") != "simulator":
        raise RunFailed(f"{NO_FORK}: use WSL, or --runtime simulator")
    warnings.warn(f"{NO_FORK}: simulated instead", RuntimeWarning, stacklevel=3)
    return "simulator"
