"""The behaviour of the catalogue is the recorded one; `record` writes it again in a commit that says why."""

import json

import pytest

from tests.golden.record import FILE, cases, differences, explored, predicted, real, simulated

CASES = [pytest.param(name, algorithm, options, id=name) for name, algorithm, options in cases()]


@pytest.fixture(scope="module")
def golden():
    return json.loads(FILE.read_text())


def test_every_case_of_a_recorded_algorithm_is_recorded_and_no_other(golden):
    """An algorithm that is still being written needs no record; `python -m tests.golden.record --write` makes it."""
    recorded = {name.split()[0] for name in golden}
    assert set(golden) == {name for name, algorithm, _ in cases() if algorithm in recorded}


def test_a_changed_number_is_a_difference():
    old = {"a": {"value": 1.0, "kind": "exact"}, "b": 2}
    assert differences(old, {"a": {"value": 1.0 + 1e-12, "kind": "exact"}, "b": 2}) == []
    assert differences(old, {"a": {"value": 1.00001, "kind": "bound"}}) == [
        "a / value: 1.0 -> 1.00001", "a / kind: exact -> bound", "b: 2 -> None"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "algorithm", "options"), CASES)
def test_simulator_explorer_and_predictions_are_as_recorded(golden, name, algorithm, options):
    if name not in golden:
        pytest.skip("this algorithm is not recorded yet")
    new = {"simulated": simulated(algorithm, options), "predicted": predicted(algorithm, options),
           "explored": explored(algorithm, options)}
    assert differences(golden[name], new) == []


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["processes", "tcp"])
@pytest.mark.parametrize(("name", "algorithm", "options"), CASES)
def test_processes_agree_with_the_simulator_where_no_schedule_changes_the_result(
    name, algorithm, options, runtime):
    assert real(algorithm, options, runtime) == real(algorithm, options, "simulator")
