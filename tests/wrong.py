"""Wrong programs: a module of the library in which some text is replaced, for tests that must notice it."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from unittest.mock import patch

from refsgd.algorithms import parts, replica
from refsgd.algorithms.allreduce import allreduce, mean
from refsgd.algorithms.averaging import local_sgd, outer, syncer
from refsgd.algorithms.federated import any_time, clients, fedavg
from refsgd.algorithms.pipeline import gpipe, stages
from refsgd.algorithms.server import mirrors, rollout_gate, softsync, ssp_gate


def changed(module: ModuleType, right: str, wrong: str) -> ModuleType:
    """A copy of `module` in which the text `right` reads `wrong`; it must occur exactly once, and the
    module itself stays as it is."""
    source = inspect.getsource(module)
    if source.count(right) != 1:  # no error that tests of wrong programs expect
        raise LookupError(f"{module.__name__}: {source.count(right)} places read {right!r}; expected exactly 1")
    copy = ModuleType(module.__name__)
    exec(compile(source.replace(right, wrong), f"{module.__file__} (changed)", "exec"), vars(copy))
    return copy


def wrong_deployment(deploy, right, wrong):
    """A deployment function of the catalogue, from a copy of its module with that change, or of what it shares
    with others."""
    module = inspect.getmodule(deploy)
    if right in inspect.getsource(module):
        return getattr(changed(module, right, wrong), deploy.__name__)
    source = inspect.getsource(module)
    shared = next(m for m in (any_time, stages, gpipe, mean, allreduce, replica, local_sgd, softsync, ssp_gate, mirrors, clients, fedavg,
                              rollout_gate, outer, syncer, parts)
                  if m is parts or (m.__name__.rpartition(".")[2] in source and right in inspect.getsource(m)))
    if shared is mean and module is not allreduce:  # which stands between the two
        with patch.dict(sys.modules, {allreduce.__name__: _with(allreduce, mean, right, wrong)}):
            exec(compile(source, module.__file__, "exec"), vars(copy := ModuleType(module.__name__)))
        return getattr(copy, deploy.__name__)
    return getattr(_with(module, shared, right, wrong), deploy.__name__)


def _with(module, shared, right, wrong):
    """A copy of a module that imports `shared` with that change."""
    source = inspect.getsource(module)
    package, _, name = shared.__name__.rpartition(".")
    copy, wrongly = ModuleType(module.__name__), changed(shared, right, wrong)
    with patch.dict(sys.modules, {shared.__name__: wrongly}), patch.object(sys.modules[package], name, wrongly):
        exec(compile(source, module.__file__, "exec"), vars(copy))
    return copy
