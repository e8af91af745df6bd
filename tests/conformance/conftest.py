"""Every test of this folder runs in every world.

With REFSGD_WORLD=mpi under mpiexec with six ranks, or REFSGD_WORLD=torch under torchrun, every rank runs all tests in
step and the world is MPI or torch.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from refsgd.runtimes.processes.local import run
from refsgd.runtimes.simulator import simulate

World = Callable[..., Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs of some milliseconds measure little but their own start."""
    for item in items:
        if "tests/conformance" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore:real computing overran"))


RANKED = os.environ.get("REFSGD_WORLD")
WORLDS = [RANKED] if RANKED else ["simulator", "shm", "tcp"]


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    """``world(factory, machine, seed)`` runs a deployment and gives its Run."""
    if request.param == "simulator":
        return simulate
    if request.param == RANKED:
        from refsgd.runtimes.processes import mpi

        return partial(mpi.run, everywhere=True, runtime=RANKED)
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("processes need fork")
    return partial(run, transport=request.param, deadline=20.0)
