"""Every test of this folder runs in every world."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from refsgd.runtimes.processes import run
from refsgd.runtimes.simulator import simulate

World = Callable[..., Any]


@pytest.fixture(params=["simulator", "shm", "tcp"])
def world(request: pytest.FixtureRequest) -> World:
    """``world(factory, machine, seed)`` runs a deployment and gives its Run."""
    if request.param == "simulator":
        return simulate
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("processes need fork")
    return partial(run, transport=request.param, deadline=20.0)
