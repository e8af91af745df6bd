"""Forking: whether this system can, the runtimes that need no fork, and the exit codes of children; and what
threads change together."""

from __future__ import annotations

import builtins
import ctypes
import functools
import multiprocessing as mp
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from refsgd.runtimes.errors import RunFailed

#: runtimes whose processes, a rank for each host, are started and ended by a launcher: its name and command
LAUNCHERS = {"mpi": ("MPI", "mpiexec -n {}"),
             "torch": ("torchrun", "torchrun --nproc-per-node {} -m refsgd ...")}
NO_FORK = "OS processes need fork, which this system does not support"


def can_fork() -> bool:
    """Whether processes can be forked; not on Windows, nor in a browser, although its Python lists `fork`."""
    return "fork" in mp.get_all_start_methods() and sys.platform != "emscripten"


def runtime_here(runtime: str | None) -> str:
    """The runtime to use; without fork the simulator if no runtime was requested, or in a notebook."""
    if runtime == "simulator" or runtime in LAUNCHERS or can_fork():
        return runtime or "processes"
    notebook = hasattr(builtins, "__IPYTHON__")  # Run All continues
    if runtime is not None and not notebook and os.environ.get("REFSGD_WITHOUT_FORK") != "simulator":
        raise RunFailed(f"{NO_FORK}: use WSL, or --runtime simulator")
    warnings.warn(f"{NO_FORK}: simulated instead", RuntimeWarning, stacklevel=3)
    return "simulator"


Change = Callable[[], AbstractContextManager[None]]

_changing = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child has no thread that would release it
    os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release,
                        after_in_child=_changing.release)


def together(change: Change) -> Change:
    """A change of the whole process that the first of several threads makes and the last one takes back."""
    users, made = 0, ExitStack()

    @contextmanager
    @functools.wraps(change)
    def shared() -> Iterator[None]:
        nonlocal users
        with _changing:
            if not users:
                made.enter_context(change())
            users += 1
        try:
            yield
        finally:
            with _changing:
                users -= 1
                if not users:
                    made.close()

    return shared


@together
@contextmanager
def own_children() -> Iterator[None]:
    """Keep the exit codes of children that end during the block from a host program that ignores SIGCHLD, or
    whose handler takes those of all children.

    Python may set signals in its main thread alone and cannot put back the handlers of C libraries, so this
    asks the C library.  A host whose thread waits for any child still gets their exit codes.
    """
    if not hasattr(signal, "SIGCHLD"):
        yield
        return
    library, before = ctypes.CDLL(None), ctypes.create_string_buffer(1024)  # a struct sigaction is smaller
    library.sigaction(signal.SIGCHLD, None, before)
    library.signal(signal.SIGCHLD, None)  # the default
    try:
        yield
    finally:
        library.sigaction(signal.SIGCHLD, before, None)
        signal.raise_signal(signal.SIGCHLD)  # other children of the host may have ended meanwhile
