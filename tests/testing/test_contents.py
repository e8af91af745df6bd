"""`refsgd check` compares what a model contains with what marks and facts say, without another program to compare with."""

import numpy as np
import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import REPLICAS, Facts, declare
from refsgd.algorithms.federated import fedavg
from refsgd.algorithms.parts import Model, Push, names, worker
from refsgd.algorithms.server import asp, bsp
from refsgd.algorithms.sgd import SGD
from refsgd.cli import main
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.testing import check, contents, explore_algorithm
from refsgd.testing.findings import RATE, attempt

#: with one worker alone; and the one that takes entries out of a gradient
SPECIAL = ("sequential", "strads")


def found(function, **options):
    return {f.name: f for f in check(function, processes=False, max_runs=20, **options)}


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in SPECIAL])
def test_the_catalogue_says_what_its_models_contain(name):
    function = CATALOGUE[name]

    def deploy(*case):
        return function(*case, SGD(RATE))

    for check_, given in ((contents.reach, (deploy,)), (contents.versions, (deploy,)), (contents.formula, (name, {})),
                          (contents.updates, (function, function, function.__kwdefaults__ or {}))):
        assert attempt(check_.__name__, check_, *given).held is not False


def served(server):
    """BSP with another server."""
    def deploy(problem, workers, steps, sgd):
        ws, ss = names(workers, 1)
        return {w: Node(worker(i, ss, problem, steps)) for i, w in enumerate(ws)} | {
            "server0": Node(server(ws, problem.x0, steps, sgd), role="server")}

    return deploy


def rounds(late=False, lossy=0, number=np.float32, again=False):
    """WRONG: the server sends the model before the newest as the newest, leaves a gradient out that it marks in each round
    or in each other one, returns other numbers than it got, or marks the first gradients again when they count again."""
    def server(workers, x, steps, sgd):
        v, kept = sgd.start(x), {}
        for t in range(steps):
            pushes = {}
            while len(pushes) < len(workers):
                w, push = yield Recv(Push)
                pushes[w] = push
            for w in kept:
                yield Mark("drop", worker=w, t=t, reason="late")
            pushes = kept or pushes
            kept = pushes if again else {}
            used = [pushes[w] for w in workers][lossy and t % lossy == lossy - 1:]
            before, (x, v) = x, (yield Compute(bsp.update, sgd, x, v, used, t, "mean", kind="update"))
            x = x.astype(number)
            yield Mark("update", part=0, version=t, reads=tuple((w, pushes[w].version) for w in workers), x=x)
            for w in workers:
                yield Send(w, Model(before if late and t < steps - 1 else x, t + 1))
        return x

    return served(server)


@pytest.mark.parametrize(("off", "right"), [(0, True), (1, False)])
def test_gradients_that_are_dropped_together_are_counted(off, right):
    """A server that applies the first of each worker and drops the rest at the end, by one mark that says how many."""
    def server(workers, x, steps, sgd):
        v = sgd.start(x)
        for t in range(steps):
            pushes = {}
            for w in workers:
                _, pushes[w] = yield Recv(Push, src=w)
            if t == 0:
                x, v = yield Compute(bsp.update, sgd, x, v, list(pushes.values()), t, "mean", kind="update")
                yield Mark("update", part=0, version=t, reads=tuple((w, 0) for w in workers), x=x)
            for w in workers:
                yield Send(w, Model(x, 1))
        for w in workers if steps > 1 else ():
            yield Mark("drop", worker=w, t=steps, reason="not the first", gradients=steps - 1 - off)
        return x

    says = found(served(server))
    assert says["gradients"].held is right and says["gradients count"].held is (True if right else None)


def test_a_model_that_is_older_than_its_number_is_found():
    assert found(rounds())["versions read"].held
    says = found(rounds(late=True))["versions read"]
    assert says.held is False and "3 gradients are marked as computed at version 0; 6 were computed at that model" in says.text


@pytest.mark.parametrize(("lossy", "words"), [(2, "10 of 60 gradients never reach the model, such as gradient 1 of worker 0"),
                                              (1, "20 of 60 gradients never reach the model, such as all of worker 0's")])
def test_a_gradient_that_is_marked_and_not_applied_is_found(lossy, words):
    assert "together as 20 steps" in found(rounds())["gradients count"].text
    says = found(rounds(lossy=lossy))
    assert says["gradients"].held and says["gradients count"].held is False
    assert words in says["gradients count"].text


def test_a_gradient_that_is_marked_again_when_it_counts_again_is_found():
    says = found(rounds(again=True))
    for name, words in (("gradients", "6 were applied to each part and 5 marked as dropped"),
                        ("versions read", "60 gradients are marked as computed at version 0; 3 were computed at that model")):
        assert says[name].held is False and words in says[name].text
        assert "; one that counts in several updates is marked at the first only" in says[name].text


def test_parameters_that_change_their_type_are_found():
    says = found(rounds(number=np.float64))["sizes"]
    assert says.held is False and "the parameters of server0 become float64; expected float32, as problem.x0" in says.text


def rounds_of(period, last=True):
    """FedAvg, whose last round, if it is shorter, is left out."""
    def deploy(problem, workers, steps, sgd):
        return fedavg.fedavg(problem, workers, steps if last else steps - steps % period, sgd, period=period)

    return deploy


def test_a_last_round_that_is_missing_is_said():
    assert found(rounds_of(8))["gradients count"].held
    says = found(rounds_of(8, last=False))
    assert says["sizes"].held is False and "computed no gradient in 1 step" in says["sizes"].text
    assert says["unequal batches"].text == "not checked: no gradient of a single step has moved a parameter"
    assert says["gradients count"].held is None and "48 of 60 gradients are computed" in says["gradients count"].text


@pytest.mark.parametrize(("facts", "name", "words"), [
    (Facts(timeless=True), "all schedules", "its facts say that it is timeless"),
    (Facts(formula="bsp"), "formulas", "updates is 60 in a run, and by the formulas that its facts name 20"),
    (Facts(), "updates", "the update rule counts 60 in 20 steps of 3 workers, and the facts 20, where schedules end"),
    (REPLICAS, "deployment", "")])
def test_facts_that_a_run_refutes_are_found(facts, name, words):
    @declare(facts)
    def liar(problem, workers, steps, sgd):
        return asp.asp(problem, workers, steps, sgd)

    says = found(liar)[name]
    assert says.held is bool(not words) and words in says.text


def test_schedules_with_the_same_draws_agree():
    """FedAvg depends on whom it draws, and on nothing else."""
    assert "different results: 4, of 4 different draws" in explore_algorithm("fedavg", period=1, sampled=1)
    assert "of 2 different draws" in found("fedavg", sampled=1)["all schedules"].text


GENERAL = """
from refsgd.algorithms.federated.fedavg import fedavg


def mine(problem, workers, steps, sgd, *, period=8, share=1.0):
    return fedavg(problem, workers, steps, sgd, period=period, sampled=max(1, round(share * workers)))
"""


@pytest.mark.parametrize(("share", "code"), [("1", 0), ("0.4", 1)])
def test_a_more_general_function_is_compared_where_it_is_the_algorithm(tmp_path, share, code, capsys):
    (file := tmp_path / "mine.py").write_text(GENERAL)
    assert main(["check", f"{file}:mine", "--as", "fedavg", "--period", "2", "--share", share]) == code
    assert main(["check", f"{file}:mine", "--as", "fedavg", "--perid", "2"]) == 2
    assert "did you mean --period?" in capsys.readouterr().err


def test_the_algorithm_of_a_comparison_may_have_options_that_the_function_has_not(tmp_path, capsys):
    (file := tmp_path / "mine.py").write_text(GENERAL.replace("federated.fedavg", "averaging.diloco").replace(
        "fedavg", "diloco").replace("sampled=max(1, round(share * workers))", "form='heavy-ball', outer_momentum=share"))
    like = "diloco form=heavy-ball outer_momentum="
    for momentum, code in ((0.5, 0), (0.9, 1)):
        assert main(["check", f"{file}:mine", "--as", f"{like}{momentum}", "--share", "0.5", "--period", "2"]) == code
    capsys.readouterr()
    for wrong, says in (("diloco frm=heavy-ball", "diloco has no option 'frm'"), ("diloco period", "expected option=value")):
        assert main(["check", f"{file}:mine", "--as", wrong]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(("name", "options"), [("gpipe", {"stages": 2}), ("downpour", {"stages": 2}), ("adpsgd", {"graph": "ring"}), ("diloco", {"form": "heavy-ball"}),
                                               ("bsp", {"compress": "randk:0.1"})])
def test_correct_options_of_the_catalogue_pass(name, options):
    """Numbers of workers that are refused, outer momentum that overshoots, entries that wait in a residual."""
    assert [str(f) for f in found(name, **options).values() if f.held is False] == []
