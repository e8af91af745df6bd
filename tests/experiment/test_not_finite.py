"""NaN and infinity never disappear: one in one entry of one gradient ends in the parameters or in an error, and the run
says which gradient it was."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.codecs import DGC, TwoBit, largest
from refsgd.algorithms.compression import Codec
from refsgd.algorithms.exchange import Exchange
from refsgd.algorithms.powersgd import orthonormal
from refsgd.algorithms.server.mirrors import significant
from refsgd.experiment.result import Result
from refsgd.problems import quadratic
from refsgd.problems.layers import equal
from refsgd.testing import check_codec

CODECS = ["topk:0.2", "randk:0.2", "dgc:0.2", "dgc:0.2,clip=1", "dgc:0.2,masking=off,nesterov=on", "onebit", "twobit:1",
          "qsgd:4", "qsgd:300,bucket=3", "fp16", "powersgd:1"]
BAD = [np.nan, np.inf, -np.inf]
#: of the catalogue, with what filters, chooses or limits
FILTERS = [("approximate", {"threshold": 1e9}), ("approximate", {"share": 0.1}), ("approximate", {"local": "asp", "threshold": 1e9}),
           ("strads", {"policy": "prioritised"}), ("downpour", {"adagrad": True}), ("staleness-aware", {"rule": "odena"}),
           ("dc-asgd", {"adaptive": True}), ("sandblaster", {"portions": 3}), ("bsp", {"optimiser": "adam"}),
           ("bsp", {"optimiser": "lars"})]
ALL = {"backup-workers": {"backups": 0}, "k-sync": {"gradients": 2}}  # where no gradient is dropped
D, STEPS = 40, 12
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def problem(bad, only=1):
    """A quadratic; entry 7 of the gradient of worker `only` in step 2 is `bad`."""
    found = quadratic(d=D)

    def gradient(x, rank, t):
        g = found.gradient(x, rank, t)
        if (rank, t) == (only, 2):
            g[7] = bad
        return g

    return replace(found, gradient=gradient, layers=equal(D, gradient))


def shows(name, bad, only=1, workers=2, **options):
    """Whether a run ends in parameters that are not finite, or in an error."""
    try:
        return not np.isfinite(refsgd.run(name, problem(bad, only), workers=workers, steps=STEPS, lr=0.1, evaluations=0,
                                          **options).parameters).all()
    except (ValueError, ArithmeticError):
        return True


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("text", CODECS)
def test_no_codec_hides_it(text, bad):
    for feedback in (True, False) if "dgc" not in text else (True,):
        assert shows("bsp", bad, compress=text, feedback=feedback)
        assert shows("allreduce", bad, compress=text, feedback=feedback)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in sorted(CATALOGUE)), *FILTERS])
def test_no_algorithm_hides_it(name, options, bad):
    """It is of worker 0 where only that has a share of the data; no gradient is dropped as a late one."""
    alone = name in ("sequential", "gpipe", "pipedream", "sandblaster", "strads", "backup-workers")
    options = {"blocks": 1, **options} if name == "strads" else ALL.get(name, options)
    assert shows(name, bad, 0 if alone else 1, 1 if name == "sequential" else 2, **options)


# -- what chooses, limits and compares ------------------------------------------------------------------------------------


def test_nan_is_among_the_largest_and_significant():
    v = np.float32([1, np.nan, -3, np.inf])
    assert [largest(v, k).tolist() for k in (1, 2, 3)] == [[1], [1, 3], [1, 2, 3]]
    x, unsent = np.float32([1, 1, np.nan, 1, np.inf]), np.float32([np.nan, 0.5, 0, -np.inf, np.inf])
    for given, found in (({"limit": 9}, [0, 2, 3, 4]), ({"limit": 0}, [0, 1, 2, 3, 4]), ({"limit": 1, "share": 0.2}, [0])):
        assert significant(x, unsent, **given)[0].tolist() == found
    ties = significant(x, np.float32([1, -2, 2, 0, 2]), 1, share=0.4)[0]
    assert ties.tolist() == [1, 2], "of equal ones the lowest index"


def test_a_finite_gradient_whose_square_overflows_does_not_become_zero():
    g = np.float32([3e25, -4e25])
    assert DGC(1.0, clip=5.0).ready(g, 0 * g) == pytest.approx([3, -4])
    q = orthonormal(np.outer(g, np.float32([1, 1])).astype(np.float32))
    assert q[:, 0] == pytest.approx([0.6, -0.8]) and not q[:, 1].any()
    assert np.isnan(orthonormal(np.float32([[np.inf], [1]]))).any()


class Deaf(TwoBit):
    """WRONG: NaN is neither above nor below the threshold."""

    def encode(self, state, s, key):
        return super().encode(state, np.where(np.isnan(s), np.float32(0), s), key)


class Cut(Codec):
    """WRONG: what is infinite becomes the largest number."""

    def owed(self, g, rest):
        return np.nan_to_num(g + rest)


@pytest.mark.parametrize("wrong", [Deaf(0.5), Cut(TwoBit(0.5))])
def test_a_codec_that_hides_it_is_found(wrong):
    right, found = (next(f for f in check_codec(each) if f.name == "not finite") for each in (TwoBit(0.5), wrong))
    assert right.held and found.held is False and "a gradient of nan left finite parameters" in found.text


# -- the run says so -------------------------------------------------------------------------------------------------------


def lines(*arguments, **options):
    """The warnings of a run that name such a gradient, and its result."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = refsgd.run(*arguments, steps=6, **options)
    return [str(w.message) for w in seen if "not finite" in str(w.message)], result


@pytest.mark.parametrize(("runtime", "name", "node"), [
    ("simulator", "bsp", "worker1"), ("simulator", "allreduce", "peer1"), ("processes", "bsp", "worker1"), ("tcp", "bsp", "worker1")])
@pytest.mark.parametrize("overlap", ["none", "backward"])
def test_one_warning_names_worker_and_step_in_every_runtime(runtime, name, node, overlap):
    machine = refsgd.Machine() if runtime == "simulator" else refsgd.Machine(compute="fixed(0.003)")
    said, result = lines(name, problem(np.nan), workers=3, machine=machine, runtime=runtime, overlap=overlap)
    assert len(said) == 1 and said[0].startswith(f"the gradient of {node} in step 2: numbers that are not finite; expected")
    assert f"not finite the gradient of {node} in step 2\n" in result.summary()
    assert Result.from_json(result.to_json()).summary().count("not finite") == 1
    assert json.loads(result.to_json())["loss"] is None


def test_a_record_repeats_it(tmp_path):
    with pytest.warns(RuntimeWarning, match="not finite"):
        first = refsgd.run("bsp", data="quadratic", lr=1e9, steps=9, workers=2, record=tmp_path / "r")
    with pytest.warns(RuntimeWarning, match="not finite"):
        assert refsgd.replay(tmp_path / "r").measured["not_finite"] == first.measured["not_finite"]


def test_a_gradient_that_did_not_arrive_and_an_update_that_overflowed_are_told_apart():
    """The largest of float32 is finite, and so is its gradient; the parameters after it are not."""
    deaf = Exchange(codec=Codec(Deaf(0.5)))
    said, result = lines(lambda *given: CATALOGUE["bsp"](replace(given[0], exchange=deaf), *given[1:]), problem(np.nan), workers=2)
    assert np.isfinite(result.parameters).all() and "the final parameters have only those" in said[0] and len(said) == 1
    said, result = lines("bsp", problem(np.finfo(np.float32).max), workers=2, lr=3.0)
    assert result.measured["not_finite"] == "the gradient of worker0 in step 3" and len(said) == 1
    assert "not_finite" not in lines("bsp", problem(1.0), workers=2, lr=0.1)[1].measured


def test_finite_gradients_whose_squares_overflow_are_finite():
    said, result = lines("bsp", problem(np.float32(1e30)), workers=2, lr=0.1)
    assert not said and np.isfinite(result.parameters).all()


def test_a_pipeline_says_it_of_the_final_parameters():
    said, _ = lines("gpipe", problem(np.nan, 0), workers=2)
    assert len(said) == 1 and said[0].startswith("the final parameters: numbers that are not finite")
