"""What a newcomer gets wrong: each mistake is one line that says what was found, where, and what was
expected."""

import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

import refsgd
from refsgd.algorithms.parts import Model, Push, names, worker
from refsgd.cli import main
from refsgd.effects import Choose, Compute, Mark, Node, Poll, Recv, Send
from refsgd.experiment.arguments import Usage, check_problem
from refsgd.problems import quadratic
from refsgd.runtimes.errors import Deadlock, RunFailed
from refsgd.runtimes.explorer import Counterexample, explore
from refsgd.runtimes.faults import Fault, parse
from refsgd.runtimes.programs import ForgottenYield
from refsgd.runtimes.simulator import simulate
from refsgd.testing import check, explore_algorithm
from refsgd.trace import Crashed

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
X = np.zeros(4, np.float32)


class Note(NamedTuple):
    text: str


def server(workers, x, steps, sgd):
    v = sgd.start(x)
    for version in range(steps * len(workers)):
        w, push = yield Recv(Push)
        x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
        yield Mark("update", part=0, version=version, reads=((w, push.version),), x=x)
        yield Send(w, Model(x, version + 1))
    return x


def own(problem, workers, steps, sgd, *, period: int = 1):
    ws, _ = names(workers, 1)
    nodes = {w: Node(worker(i, ["server0"], problem, steps)) for i, w in enumerate(ws)}
    return nodes | {"server0": Node(server(ws, problem.x0, steps, sgd), role="server")}


def run(algorithm=own, problem=None, **more):
    return refsgd.run(algorithm, problem or quadratic(d=4, workers=2), **{"workers": 2, "steps": 2} | more)


def test_without_a_mistake_it_runs():
    assert run().measured["updates"] == 4 and run(period=2).options == {"period": 2}


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"workers": "2"}, "workers '2' of type str; expected a whole number, at least 1"),
    ({"workers": 2.5}, "workers 2.5 of type float; expected a whole number"),
    ({"workers": None}, "workers None of type NoneType; expected a whole number, at least 1"),
    ({"seed": None}, "seed None of type NoneType; expected a whole number, at least 0"),
    ({"servers": True}, "servers True of type bool; expected a whole number"),
    ({"faults": [3]}, "fault 3 of type int; expected kill|drop ROLE RANK at step STEP"),
    ({"faults": ["kill worker"]},
     "fault 'kill worker' not understood; expected kill|drop ROLE RANK at step STEP"),
    ({"faults": ["slow worker 1 at step 1 by 1.2.3"]},
     "fault 'slow worker 1 at step 1 by 1.2.3': 1.2.3 is not a number; expected kill|drop"),
    ({"faults": [Fault("explode", "worker1", 1)]},
     "Fault(kind='explode', node='worker1', step=1, amount=0.0, to=''); expected one of kill, "),
    ({"faults": [Fault("kill", 1, 1)]},
     "Fault(kind='kill', node=1, step=1, amount=0.0, to=''); expected one of kill, "),
    ({"faults": [Fault("kill", "worker1", "1")]}, "step='1', amount=0.0, to=''); expected one of kill, "),
    ({"steps": 2.5}, "steps 2.5 of type float; expected a whole number, at least 0"),
    ({"steps": None, "epochs": "1"}, "epochs '1'; expected a number > 0 (steps may be 0)"),
    ({"steps": None, "epochs": 0}, "epochs 0; expected a number > 0"),
    ({"lr": "0.1"}, "lr '0.1' of type str; expected a number"),
    ({"period": "2"}, "period '2' of type str; expected a whole number"),
    ({"period": 1.5}, "period 1.5 of type float; expected a whole number"),
    ({"period": True}, "period True of type bool; expected a whole number"),
    ({"algorithm": "bsp", "staleness": 3},
     "bsp has no option 'staleness'; expected some of aggregation, group; approximate, consgd, dynsgd, ssp have it"),
    ({"algorithm": "sspp"}, "algorithm 'sspp' is unknown; expected one of independent, sequential, "),
    ({"algorithm": "sspp"}, "; did you mean ssp?"),
    ({"algorithm": 3}, "algorithm 3 is unknown; expected one of"),
    ({"runtime": "processes", "workers": 10_000, "problem": quadratic(d=4, workers=10_000)},
     "processes on "),
    ({"perod": 2}, "own has no option 'perod'; expected some of period; did you mean period?"),
    ({"worker": 2}, "own has no option 'worker'; expected some of period; did you mean workers?"),
    ({"machine": "laptop"}, "machine 'laptop'; expected a refsgd.Machine"),
    ({"problem": abs}, "problem of type builtin_function_or_method; expected a refsgd.Problem"),
])
def test_wrong_arguments(arguments, expected):
    with pytest.raises(Usage) as error:
        run(**arguments)
    assert expected in str(error.value)


def test_algorithms_are_known_in_any_case_and_with_or_without_hyphens():
    for name in ("AD-PSGD", "ad_psgd", "AdPsgd"):
        assert run(name).algorithm == "adpsgd"
    assert refsgd.Stepper("SSP", workers=2, steps=1).name.startswith("ssp")


@pytest.mark.parametrize(("net", "expected"),
                         [("resnet-50", "did you mean resnet50?"), ("bert", "vgg16, or shapes:P")])
def test_a_net_that_there_is_not(net, expected):
    with pytest.raises(Usage) as error:
        refsgd.run("bsp", net=net)
    assert expected in str(error.value)


@pytest.mark.parametrize(("algorithm", "option", "value", "expected"), [
    ("hogwild", "atomic", "no", "atomic 'no' of type str; expected True or False"),
    ("downpour", "adagrad", "false", "adagrad 'false' of type str; expected True or False"),
    ("dgc", "masking", "no", "masking 'no' of type str; expected True or False"),
    ("dc-asgd", "adaptive", 3, "adaptive 3 of type int; expected True or False"),
    ("dc-asgd", "compensation", True, "compensation True of type bool; expected a number"),
    ("ssp", "staleness", 2.5, "staleness 2.5; expected a whole number of clocks >= 0, or inf"),
    ("consgd", "staleness", 0.5, "staleness 0.5; expected a whole number of clocks >= 0, or inf"),
    ("dynsgd", "staleness", 2.5, "staleness 2.5; expected a whole number of clocks >= 0, or inf"),
    ("ssp", "staleness", float("nan"), "staleness nan; expected a whole number of clocks >= 0, or inf"),
])
def test_options_of_the_wrong_kind(algorithm, option, value, expected):
    with pytest.raises(ValueError) as error:
        run(algorithm, **{option: value})
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_options_of_the_right_kind():
    assert run("hogwild", atomic=False).options["atomic"] is False
    for s in (2, 2.0, float("inf")):
        assert run("ssp", staleness=s).measured["updates"] == 4


def idle(workers, servers=0):
    def program():
        yield Recv(Push)

    return {f"{role}{i}": Node(program(), role=role)
            for role, count in (("worker", workers), ("server", servers)) for i in range(count)}


@pytest.mark.parametrize("fault", ["slow worker 1 at step 3 by 4", Fault("slow", "worker1", 3, 4.0)])
def test_a_lone_fault_needs_no_list(fault):
    assert parse(fault, idle(2), 20) == [Fault("slow", "worker1", 3, 4.0)]


def test_a_fault_before_a_step_that_there_is_not_is_warned_of():
    with pytest.warns(UserWarning) as warned:
        found = run(faults=["kill worker 1 at step 2"])
    assert [str(w.message)
            for w in warned] == [
                "fault 'kill worker 1 at step 2' will not happen where each step is one gradient: "
                                                "worker1 has 2 steps; expected step 0 to 1"]
    assert warned[0].filename.endswith("test_mistakes.py") and not found.trace.of(Crashed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse(["kill worker 1 at step 1"], idle(2), 2)
        # its updates are counted, which may be more
        parse(["kill server 0 at step 3"], idle(1, 1), 2)


@pytest.mark.parametrize(("parts", "expected"), [
    ({"x0": [0.0] * 4}, "x0 is of type list; expected one vector of float32"),
    ({"x0": np.zeros((2, 2), np.float32)}, "shape (2, 2); expected one vector"),
    ({"x0": np.zeros(4, int)}, "array of int64 and shape (4,); expected one vector of float32"),
    ({"x0": np.full(4, np.inf, np.float32)}, "NaN or infinite"),
    ({"gradient": lambda x, rank: x},
     "gradient(x, rank): too many positional arguments; expected gradient(x, rank, t)"),
    ({"gradient": lambda x, rank, t: x[1:]},
     "array of float32 and shape (3,); expected an array as x0 is: float32 and shape (4,)"),
    ({"gradient": lambda x, rank, t: x.astype(float)},
     "array of float64 and shape (4,); expected an array as x0 is: float32"),
    ({"gradient": lambda x, rank, t: None}, "value of type NoneType; expected an array"),
    ({"loss": lambda x: x}, "loss(x0) returned an array of shape (4,); expected one number"),
])
def test_a_problem_whose_parts_do_not_fit(parts, expected):
    problem = refsgd.Problem(**{"x0": X, "gradient": lambda x, rank, t: x, "loss": lambda x: 0.0} | parts)
    with pytest.raises(Usage) as error:
        run(problem=problem)
    assert expected in str(error.value)


def test_a_gradient_that_fails_at_the_start_is_left_to_the_run_which_names_the_program():
    def fails(x, rank, t):
        raise ZeroDivisionError

    problem = refsgd.Problem(X, fails, lambda x: 0.0)
    check_problem(problem)
    with pytest.raises(ZeroDivisionError) as error:
        run(problem=problem)
    assert "in Compute(gradient) of worker" in error.value.__notes__[0]


@pytest.mark.parametrize(("returned", "expected"), [
    (lambda: None, "returned a value of type NoneType; expected a dictionary of nodes"),
    (lambda: [Node(worker(0, [], quadratic(), 1))],
     "returned a value of type list; expected a dictionary of nodes"),
    (lambda: {"worker0": worker(0, [], quadratic(), 1)},
     "gives worker0 a value of type generator; expected refsgd.effects.Node"),
    (lambda: {"worker0": Node(worker)}, "gives worker0 a program of type function; expected a generator"),
    (lambda: {"worker0": Node(worker(0, [], quadratic(), 1), worker(0, [], quadratic(), 1))},
     "gives worker0 handlers of type generator; expected a list"),
    (lambda: {"worker0": Node(X)}, "gives worker0 a program of type ndarray; expected a generator"),
    (dict, "returned an empty dictionary; expected at least one node"),
])
def test_a_deployment_that_is_none(returned, expected):
    def mine(problem, workers, steps, sgd):
        return returned()

    with pytest.raises(Usage) as error:
        run(mine)
    assert f"mine {expected}" in str(error.value)
    assert failed(mine) == [f"FAIL deployment: {error.value}"]


def failed(algorithm):
    """What the conformance kit finds wrong, a line each."""
    return [str(finding) for finding in check(algorithm, processes=False) if finding.held is False]


def without_return(problem, steps):
    x = problem.x0
    for t in range(steps):
        x = x - (yield Compute(problem.gradient, x, 0, t))


def polls_for_ever():
    while True:
        yield Poll(Note)


@pytest.mark.parametrize(("wrong", "expected"), [
    (lambda problem, workers: {},
     ": too many positional arguments; expected a deployment function f(problem, workers, steps, sgd, *, "
     "options)"),
    (lambda problem, workers, steps, sgd: undefined,  # noqa: F821
     "NameError: name 'undefined' is not defined"),
    (lambda problem, workers, steps, sgd: {"worker0": Node(without_return(problem, steps))},
     "no main program returned parameters; expected an array"),
    (lambda problem, workers, steps, sgd: {"worker0": Node(polls_for_ever())},
     " in polls_for_ever asks again and again at 0 s"),
])
def test_the_conformance_kit_stops_at_what_cannot_begin(wrong, expected):
    (line,) = failed(wrong)
    assert line.startswith("FAIL deployment: ") and expected in line


def test_parameters_that_only_some_schedules_return_are_found_and_do_not_end_the_kit():
    def program(problem, steps):
        x, lost = problem.x0, False
        for t in range(steps):
            x = x - (yield Compute(problem.gradient, x, 0, t))
            lost = (yield Choose((False, True))) or lost
        return None if lost and steps == 2 else x

    found = failed(lambda problem, workers, steps, sgd: {"worker0": Node(program(problem, steps))})
    assert any("all schedules: " in line and "no main program returned parameters" in line for line in found)


@pytest.mark.parametrize("wrong",
                         [lambda problem, workers: {}, lambda problem, workers, steps, sgd, *, quorum: {}])
def test_a_deployment_function_with_other_parameters(wrong):
    with pytest.raises(Usage,
                       match=r"argument.*; expected a deployment function f\(problem, workers, steps, sgd, "
                             r"\*, options\)"):
        run(wrong)


@pytest.mark.parametrize(("act", "expected"), [
    (lambda: Compute(X), "Compute() of a value of type ndarray; expected a function and its arguments"),
    (lambda: Send("worker0", [1]),
     " in wrong sends a message of type list; expected an instance of a NamedTuple class"),
    (lambda: Recv("Model"), "Recv() of 'Model'; expected classes of messages"),
    (lambda: Recv(Model(X, 0)), "expected classes of messages"),
    (lambda: np.zeros(100), "yielded a value of type ndarray; expected an effect"),
])
def test_a_wrong_effect_names_the_line_in_every_runtime(act, expected):
    def wrong():
        yield act()

    def deploy():
        return {"worker0": Node(wrong())}

    for runtime in (simulate, explore):
        with pytest.raises((TypeError, Counterexample)) as error:
            runtime(deploy)
        assert expected in str(error.value).splitlines()[0]


def test_a_forgotten_yield_is_refused_wherever_a_program_is_stepped():
    def forgets(problem, workers, steps, sgd):
        def program():
            yield Compute(problem.gradient, problem.x0, 0, 0)
            Mark("clock", t=0)
            yield Compute(problem.gradient, problem.x0, 0, 0)
            return problem.x0

        return {"worker0": Node(program())}

    for act in (lambda: simulate(forgets(quadratic(), 1, 1, None)),
                lambda: explore(lambda: forgets(quadratic(), 1, 1, None)),
                lambda: refsgd.Stepper(forgets, workers=1).run(),
                lambda: explore_algorithm(forgets, workers=1)):
        with pytest.raises(ForgottenYield,
                           match=rf"worker0: 2 effects were built before {__file__}:\d+ in program and one "
                                 r"was yielded"):
            act()


def failing(what):
    def program(problem):
        g = yield Compute(problem.gradient, problem.x0, 0, 0)
        if what == "changes":
            g += 1
            yield Send("worker0", Note("of"))
            yield Send("worker0", Push(g, 1, 0))
            g *= 2
        raise KeyError("lr")

    return lambda problem, workers, steps, sgd: {"worker0": Node(program(problem))}


@pytest.mark.parametrize(("what", "expected"), [
    ("raises", ["KeyError: 'lr'", "in program program of worker0", "test_mistakes.py:", " in program"]),
    ("changes",
     ["read-only", "test_mistakes.py:",
      "an array that has crossed a yield must not change any more: make a new one"])])
def test_what_a_program_raises_in_a_process_is_one_line_with_its_place(what, expected):
    with pytest.raises(RunFailed) as error:
        run(failing(what), runtime="processes", machine=refsgd.Machine.this())
    assert all(part in str(error.value) for part in expected) and "\n" not in str(error.value)


def test_a_deadlock_says_what_lies_in_the_mailbox_unread():
    def talker():
        yield Send("worker1", Note("hello"))

    def listener():
        yield Recv(Model, src="worker0")

    def deploy():
        return {"worker0": Node(talker()), "worker1": Node(listener())}

    for runtime in (simulate, explore):
        with pytest.raises((Deadlock, Counterexample)) as error:
            runtime(deploy)
        assert str(error.value).splitlines()[0].endswith(
            "waits for Recv(Model from worker0), not for Note from worker0, which it has")


def test_a_deadlock_with_empty_mailboxes_says_no_more():
    def listener():
        yield Recv(Note)

    with pytest.raises(Deadlock, match=r"waits for Recv\(Note\)$"):
        simulate({"worker0": Node(listener())})


class Joined(NamedTuple):
    grad: np.ndarray
    reads: tuple


def rack(mine, steps):
    for _ in range(steps):
        held = {}
        while len(held) < len(mine):
            w, push = yield Recv(Push)
            held[w] = push
        yield Send("server0",
                   Joined(sum(held[w].grad for w in mine) / np.float32(len(mine)),
                          tuple((w, held[w].version) for w in mine)))
        _, answer = yield Recv(Model)
        for w in mine:
            yield Send(w, answer)


def root(racks, x, steps, sgd):
    v = sgd.start(x)
    for version in range(steps * len(racks)):
        r, push = yield Recv(Joined)
        x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
        yield Mark("update", part=0, version=version, reads=push.reads, x=x)
        yield Send(r, Model(x, version + 1))
    return x


def three_roles(middle):
    def hierarchical(problem, workers, steps, sgd):
        ws, _ = names(workers, 1)
        racks = {f"{middle}{r}": ws[r::2] for r in range(min(2, workers))}
        # not in the order of ranks
        nodes = {w: Node(worker(ws.index(w), [r], problem, steps), rank=ws.index(w)) for r, group in racks.items()
                 for w in group}
        return nodes | {r: Node(rack(group, steps), role="server")
                        for r, group in racks.items()} | {
                            "server0": Node(root(list(racks), problem.x0, steps, sgd), role="server")}

    return hierarchical


@pytest.mark.parametrize("middle", ["server-rack", "rack"])
def test_a_third_role_is_checked_and_explored(middle):
    from refsgd.testing import explore_algorithm

    found = check(three_roles(middle), processes=False)
    assert all(f.held is not False for f in found), "\n".join(map(str, found))
    assert "2 workers, 2 steps" in explore_algorithm(three_roles(middle))


@pytest.mark.parametrize("middle", ["server-rack", "rack"])
def test_images_are_counted_by_the_numbers_of_the_workers_whatever_their_order(middle):
    seen = []
    problem = replace(quadratic(d=4, workers=3), images=lambda rank, t: seen.append(rank) or 1 + 10 * rank)
    result = refsgd.run(three_roles(middle), problem, workers=3, steps=2)
    assert set(seen) == {0, 1, 2} and result.history[-1][2] == 2 * (1 + 11 + 21)
    assert result.servers == 3


def test_images_per_second_are_of_the_images_that_there_are():
    machine = refsgd.Machine(compute="fixed(0.1)")
    with_all = refsgd.run("bsp", data="digits", net="softmax", workers=4, batch=5000, steps=3,
                          machine=machine)
    # 1437 images, a quarter each
    assert with_all.problem["batch"] == 360 and with_all.history[-1][2] == 3 * 1437
    assert with_all.measured["images_per_second"] == pytest.approx(1437 / 0.1)
    own_batch = replace(quadratic(d=4, workers=4), describe={"batch": 8})
    found = refsgd.run("bsp", own_batch, workers=4, steps=3, machine=machine)
    assert found.measured["images_per_second"] == pytest.approx(4 * 8 / 0.1) == found.predicted[
        "images_per_second"]["value"]


def test_a_small_part_of_an_epoch_is_a_step():
    assert refsgd.run("bsp", data="digits", net="softmax", epochs=0.001).steps == 1


def test_where_nothing_takes_time_a_barrier_still_keeps_workers_together():
    found = refsgd.run("bsp", quadratic(workers=4), workers=4, steps=5,
                       machine=refsgd.Machine(compute="fixed(0)")).measured
    assert (found["clock_gap_max"], found["lead_max"]) == (0, 1)


def test_run_takes_a_lone_fault():
    """As the line that it is, not letter by letter."""
    run = refsgd.run("asp", data="quadratic", workers=2, steps=6,
                     machine=refsgd.Machine(compute="fixed(0.02)"), faults="kill worker 1 at step 2",
                     on_death="continue")
    assert [e.node for e in run.trace.of(Crashed)] == ["worker1"]


def test_marks_that_say_too_little_are_named():
    """Programs without marks are told so (no "ok"), and an update must say what its gradients read."""

    def marking(**values):
        def deploy(problem, workers, steps, sgd):
            def train(rank, x, v):
                for t in range(steps):
                    g = yield Compute(problem.gradient, x, rank, t)
                    x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
                    if values:
                        yield Mark("update", x=x, **values)
                return x

            return {f"w{i}": Node(train(i, problem.x0, sgd.start(problem.x0))) for i in range(workers)}

        return next(f for f in check(deploy, processes=False, max_runs=5) if f.name == "gradients")

    assert marking().held is None and "mark no updates" in marking().text
    assert marking(part=0).held is False and 'Mark("update") without reads, version' in marking(part=0).text


def test_check_takes_options_of_a_function_from_a_file(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text("from refsgd.algorithms.server.bsp import bsp\n"
                    "def strict(problem, workers, steps, sgd, *, quorum=2):\n"
                    "    if quorum != 3:\n"
                    "        raise ValueError(f'quorum {quorum!r}; expected 3')\n"
                    "    return bsp(problem, workers, steps, sgd)\n")
    assert main(["check", f"{mine}:strict", "--quorum", "3", "--no-processes"]) == 0
    assert "ok   all schedules" in capsys.readouterr().out
    assert main(["check", "--no-processes", f"{mine}:strict"]) == 1
    assert "quorum 2; expected 3" in capsys.readouterr().out
    assert main(["check", f"{mine}:strict", "--quorun", "3"]) == 2
    assert "has no option --quorun; did you mean --quorum?" in capsys.readouterr().err
