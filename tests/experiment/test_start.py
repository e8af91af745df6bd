"""Runs that begin with saved parameters: where the other ended, in every runtime and in records."""

import numpy as np
import pytest

import refsgd
from refsgd.cli import main
from refsgd.runtimes.errors import ReplayError

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
ONE = {"net": "softmax", "workers": 2, "steps": 8, "lr": 0.1, "machine": refsgd.Machine()}


@pytest.fixture
def learnt(tmp_path):
    path = str(tmp_path / "learnt.npy")
    assert main(["run", "bsp", "--net", "softmax", "--workers", "2", "--steps", "8", "--lr", "0.1",
                 "--save", path, "--quiet"]) == 0
    return path


def test_a_run_begins_where_another_ended(learnt):
    """No step: the same bits and accuracy; a rate of 0: the same after steps, as processes, too."""
    first = refsgd.run("bsp", **ONE)
    assert np.array_equal(np.load(learnt), first.parameters)
    for more in ({"steps": 0}, {"lr": 0.0}, {"lr": 0.0, "runtime": "processes"}):
        again = refsgd.run("bsp", **ONE | more, start=learnt)
        assert again.parameters_sha256 == first.parameters_sha256 and again.accuracy == first.accuracy
    assert again.problem["start"] == learnt and "start" not in first.problem
    assert refsgd.run("allreduce", **ONE, start=learnt).loss < first.loss


def test_a_record_names_the_file_and_replays_from_it(learnt, tmp_path):
    record = tmp_path / "record"
    ran = refsgd.run("asp", **ONE, start=learnt, record=record)
    assert refsgd.replay(record).parameters_sha256 == ran.parameters_sha256
    np.save(learnt, np.zeros_like(ran.parameters))
    with pytest.raises(ReplayError, match="replayed parameters have SHA-256"):
        refsgd.replay(record)


@pytest.mark.parametrize(("content", "more", "found"), [
    (np.zeros(3, np.float32), {}, "has 3 numbers of float32; expected 650 numbers of net softmax"),
    (np.zeros(650, int), {}, "has 650 numbers of int64"),
    (np.full(650, np.nan, np.float32), {}, "are not finite"),
    (b"text", {}, "is no file of an array"),
    (None, {}, "No such file"),
    (np.zeros(650), {"data": "quadratic", "net": None}, "whose parameters are not of a net")])
def test_a_wrong_file_is_refused(content, more, found, tmp_path):
    path = tmp_path / "start.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(ValueError, match=found):
        refsgd.run("bsp", **ONE | more, start=str(path))


def test_sizes_alone_have_no_parameters_to_write(tmp_path, capsys):
    path = tmp_path / "none.npy"
    assert main(["run", "bsp", "--net", "shapes:9", "--data", "none", "--steps", "1", "--save", str(path)]) == 1
    assert "has no parameters" in capsys.readouterr().err and not path.exists()
