"""The thesis at its quick sizes: who scales, by batch and nodes, what is sent; its names as presets."""

import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.architectures import ARCHITECTURES
from refsgd.cli import main
from refsgd.machine import Machine
from refsgd.running import run
from refsgd.studies.graur2019 import forward_only
from refsgd.theory import published


def test_a_forward_pass_costs_what_the_formula_says():
    """C/n + (n-1)/n M/B a batch, beside one of the workers: to the last digit from the second step."""
    n, w = 4, published.RESNET50 / 125e6
    machine = Machine(compute="fixed(2)", bandwidth=125e6, collocated=True)
    found = run(forward_only, net=f"phantom:{published.RESNET50 // 4}", data="none", workers=n, steps=10, machine=machine)
    assert found.measured["seconds"] == pytest.approx(10 * (2 + (n - 1) * w))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_preset_runs(name, capsys):
    assert ARCHITECTURES[name].algorithm in CATALOGUE
    assert main(["run", "--preset", name, "--data", "quadratic", "--workers", "3", "--steps", "2"]) == 0
    assert capsys.readouterr().out.startswith(ARCHITECTURES[name].algorithm)


def test_a_preset_is_its_flags(capsys):
    given = ["--data", "quadratic", "--workers", "3", "--steps", "4"]
    assert main(["run", "--preset=caffe2", *given]) == 0
    one = capsys.readouterr().out
    assert main(["run", "allreduce", "--collective", "halving-doubling", *given]) == 0
    assert capsys.readouterr().out == one
    assert main(["run", "--preset", "nothing"]) == 2 and "distributed-replicated" in capsys.readouterr().err


@pytest.fixture(scope="module")
def study(quick):
    return quick("graur2019")


@pytest.mark.slow
def test_every_verdict(study):
    found = {claim.says: claim.verdict for claim in study.claims}
    wrong = {says for says, verdict in found.items() if verdict == "does not hold"}
    # TensorFlow's single session, Caffe2's own exchange and congestion on Ethernet are no properties of links that serve at full rate;
    # a server that adds gradients in worker order keeps one for each worker
    assert wrong == {"Distributed Allreduce never scales, with one ring", "Distributed Allreduce is much worse than Parameter Server on InfiniBand too",
                     "Caffe2 takes 19 times as long on two nodes as on one", "the network makes no difference to Caffe2",
                     "and 40 nodes are slower than 32 with training", "the best number of nodes on Ethernet is 16 (forward) or 32 (training)",
                     "memory does not depend on the number of nodes"}


@pytest.mark.slow
def test_misses_have_reasons():
    assert all(f.reason for f in published.figures() if abs(f.error) > 0.25)
