"""Hypothesis profiles: `dev` while writing, `ci` (HYPOTHESIS_PROFILE=ci) with more examples; parallel workers."""

import functools
import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser):
    parser.addoption("--rewrite", action="store_true",
                     help="write the outputs of the pages' dialogues again instead of comparing")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One more worker than cores, of which four are used, as many tests sleep; none where files are named, so that
    `-s` and breakpoints work there."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if any(".py" in argument for argument in config.args) else min(cores, 4) + 1


class Turns:
    """Locks between the workers of a session: tests share the machine, a test marked `alone` has it to itself.

    A worker that waits for the machine holds `queue`, so that a test which needs it alone is not overtaken
    for long.
    """

    def __init__(self):
        import fcntl

        self.flock, self.shared, self.alone, self.free = fcntl.flock, fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN
        folder = Path(__file__).parent
        self.queue, self.machine = (os.open(folder / name, os.O_RDONLY) for name in ("conftest.py", "__init__.py"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.flock(self.queue, self.alone)
        self.flock(self.machine, self.alone if item.get_closest_marker("alone") else self.shared)
        self.flock(self.queue, self.free)
        try:
            return (yield)
        finally:
            self.flock(self.machine, self.free)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        """One worker rewrites the assertions of a module and imports it first; the others read its bytecode."""
        if not isinstance(collector, pytest.Module):
            return (yield)
        file = os.open(collector.path, os.O_RDONLY)
        try:
            self.flock(file, self.alone)
            return (yield)
        finally:
            os.close(file)


class Warm:
    """Compiles the kernels of the smallest net while the workers collect, so that each finds them in the disk cache."""

    def pytest_sessionstart(self):
        code = "from refsgd.problems.nn import nets; nets.build('tiny').compile()"
        self.compiling = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[1])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self):
        self.compiling.wait()


def pytest_configure(config):
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of interpreters need not compile the same again
    sys.dont_write_bytecode = False
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Turns())
    elif config.getoption("numprocesses", None) and not config.getoption("collectonly"):
        config.pluginmanager.register(Warm())


def pytest_collection_modifyitems(items):
    """The trial of a new algorithm runs a part of the suite itself: it begins first, or all would wait for it at the end."""
    items.sort(key=lambda item: item.path.name != "test_trial.py")


def pytest_collection_finish(session):
    """Thousands of modules and collected tests need no garbage collection again: tests that collect do so
    in 5 ms, not in 300."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def performed(tmp_path_factory):
    """A study at its quick sizes and the trials of each of its parts, by its name: performed once for all tests
    that look at it, by one worker of pytest, which keeps it for the others."""
    import fcntl

    from benchmarks.studies import Lab, Study, parts_of, perform

    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "studies"
    folder.mkdir(exist_ok=True)

    class Recording(Lab):
        """A lab that remembers its trials."""

        def runs(self, trials):
            self.trials = [*getattr(self, "trials", ()), *trials]
            return super().runs(trials)

    @functools.cache
    def study(name):
        kept = folder / f"{name}.pickle"
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                labs = {f.__name__: Recording(quick=True, cache=folder) for f in parts_of(name)[1]}
                parts = [part for key, lab in labs.items() for part in perform(name, lab, [key]).parts]
                kept.write_bytes(pickle.dumps((Study(name, parts_of(name)[0], True, 0, parts),
                                               {key: getattr(lab, "trials", []) for key, lab in labs.items()})))
        return pickle.loads(kept.read_bytes())

    return study


@pytest.fixture(scope="session")
def quick(performed):
    """A study at its quick sizes, by its name."""
    return lambda name: performed(name)[0]


@pytest.fixture
def few_draws():
    """Predictions are means of few drawn runs during this test, which asks nothing of their precision."""
    from tests import draws

    with draws.few_draws():
        yield


@pytest.fixture(scope="module")
def few_draws_throughout():
    """As `few_draws`, for all tests and fixtures of a module."""
    from tests import draws

    with draws.few_draws():
        yield
