"""Nothing may be left behind by a run, whatever happened to it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time

import psutil
import pytest


def possessions():
    """What this process owns: children, descriptors, mappings without a file, threads."""
    me = psutil.Process()
    with open("/proc/self/maps") as maps:
        shared = sum("/dev/zero" in line for line in maps)  # how Linux shows anonymous shared mappings
    return {"children": len(me.children(recursive=True)), "descriptors": len(os.listdir("/proc/self/fd")),
            "shared mappings": shared, "threads": threading.active_count(),
            # Segments of Open MPI are of other jobs: those of these tests lie elsewhere.
            "shared memory files": sum(not name.startswith("sm_segment.") for name in os.listdir("/dev/shm"))}


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Count before and after."""
    if "fork" not in multiprocessing.get_all_start_methods() or not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs fork and /proc")
    gc.collect()
    before = possessions()
    yield
    end = time.monotonic() + 20.0  # on a busy machine even the killed take their time
    while True:
        gc.collect()
        after = possessions()
        if all(after[k] <= before[k] for k in before) or time.monotonic() > end:
            break
        time.sleep(0.02)
    assert {k: (before[k], after[k]) for k in before if after[k] > before[k]} == {}


@pytest.fixture(params=["shm", "tcp"])
def transport(request):
    """Both ways to move bytes between processes of one machine."""
    return request.param


@pytest.fixture(params=["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def usual(request):
    """The same where the claim is the launcher's, which is one and the same over both."""
    return request.param
