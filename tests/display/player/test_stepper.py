"""The stepper: the reader picks what happens next, goes back, and sees where each program stands."""

import inspect
import io
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

import refsgd
from refsgd import Stepper
from refsgd.algorithms import parts
from refsgd.algorithms.parts import Model, Push, names, worker
from refsgd.algorithms.server import ssp_gate
from refsgd.cli.step import KEYS, converse
from refsgd.effects import Compute, Node, Recv, Send
from refsgd.runtimes.explorer import Counterexample, explore
from refsgd.runtimes.simulator import Simulator
from refsgd.trace import Received
from tests.display.player.pages import column, data_of

pytestmark = pytest.mark.usefixtures("few_draws_throughout")


def state(s: Stepper):
    """Everything that a reader can see."""
    return s.schedule, s.actions(), repr(s), [(e.time, e.node, e.kind) for e in s.events], s.world.state()


def test_the_reader_decides_whose_gradient_comes_first():
    late = Stepper("asp", workers=2, steps=1)
    for words in ("worker1 computes: gradient", "worker1 sends Push to server0",
                  "Push#0 of worker1 arrives at server0"):
        late.choose(late.actions().index(words))
    late.run_until("update")
    assert late.events[-1].values["reads"] == (("worker1", 0),)
    assert late.actions() == ["server0 sends Model to worker1", "Push#0 of worker0 arrives at server0"]
    assert Stepper("asp", workers=2,
                   steps=1).run_until("update").events[-1].values["reads"] == (("worker0", 0),)


@pytest.mark.parametrize("name", ["ssp", "adpsgd", "allreduce", "hogwild"])
@pytest.mark.parametrize("grain", ["effect", "decision"])
def test_back_gives_the_identical_state(name, grain):
    s, seen = Stepper(name, workers=3, steps=2, grain=grain), []
    seen.append(state(s))
    while not s.over and len(seen) < 60:
        s.choose(len(seen) % len(s.actions()))
        seen.append(state(s))
    for before in reversed(seen[:-1][-6:]):
        assert state(s.back()) == before
    s.back(len(s.schedule) + 5)
    assert state(s) == seen[0] == state(Stepper(name, workers=3, steps=2, grain=grain))


def test_a_schedule_can_be_given_and_every_effect_is_one_action():
    s = Stepper("ssp", staleness=0).step(9)
    assert s.schedule == [0] * 9 and state(Stepper("ssp", staleness=0, schedule=s.schedule)) == state(s)
    for before in range(12):
        events = len(s.events)
        s.step()
        assert len(s.events) - events <= 2 and len(s.last) == len(s.events) - events, before


def test_decisions_are_those_that_the_explorer_counts():
    s = Stepper("bsp", workers=2, steps=1, grain="decision")

    def both_orders(run):
        first = next(e.src for e in run.trace.of(Received) if e.node == "server0")
        assert first == "worker0"

    with pytest.raises(Counterexample) as found:
        explore(s.deploy, both_orders)
    again = Stepper("bsp", workers=2, steps=1, grain="decision", schedule=found.value.schedule).run()
    assert next(e.src for e in again.events if e.node == "server0"
                and e.kind == "receive") == "worker1"


def test_run_until_takes_a_mark_a_kind_or_a_predicate():
    s = Stepper("ssp", staleness=0, workers=2)
    assert s.run_until("receive").events[-1].kind == "receive"
    assert s.run_until("block").events[-1].name == "block"
    assert s.run_until(lambda e: e.kind == "mark" and e.name == "clock"
                       and e.values["t"] == 1).events[-1].values["t"] == 1
    before = state(s)
    with pytest.raises(ValueError, match="no event 'updat' happens in this run; expected one of .*update"):
        s.run_until("updat")
    assert state(s) == before
    assert s.run_until("update") is s and s.run().over and s.step().over and "the run is over" in repr(s)
    assert set(s.values) == {"worker0", "worker1", "server0"}


@pytest.mark.parametrize(("act", "expected"), [
    (lambda s: s.choose(7), "action 7; expected 0 to 2: worker0 computes: gradient"),
    (lambda s: s.choose(-1), "action -1; expected 0 to 2"),
    (lambda s: s.run().choose(0), "action 0; the run is over"),
    (lambda s: s.back(-1), "back -1; expected"),
    (lambda s: Stepper("ssp", grain="line"), "grain 'line'; expected effect or decision"),
    (lambda s: Stepper("sssp"), "algorithm 'sssp' is unknown"),
    (lambda s: Stepper("ssp", slack=1), "ssp has no option 'slack'"),
])
def test_wrong_use_is_one_line(act, expected):
    with pytest.raises(ValueError) as caught:
        act(Stepper("ssp", workers=3, steps=1))
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_where_says_line_wait_and_locals():
    s = Stepper("ssp", staleness=1, workers=2).run_until("update")
    server = s.where()[-1]
    assert server.node == "server0" and server.locals["shard"].version == 1 and server.locals["clock"] == {
        "worker0": 1, "worker1": 0}
    assert "ssp_gate.py:" in repr(s.where()) and "yield Send(w, Model(shard.x, shard.version))" in repr(s.where())
    assert "next:" in repr(s) and "worker0" in s.diagram()


def mine(problem, workers, steps, sgd):
    """Two nodes that wait for each other: wrong on purpose."""
    def program():
        g = yield Compute(problem.gradient, problem.x0, 0, 0)
        yield Recv(Died)
        return g

    return {"peer0": Node(program()), "peer1": Node(program())}


Died = refsgd.effects.Died


def test_a_function_of_the_readers_own_and_its_deadlock():
    s = Stepper(mine, workers=2, steps=1).run()
    assert s.over and s.deadlock.startswith(
        "deadlock: peer0 waits: no Died has arrived, and no program can continue; test_stepper.py:")
    assert s.deadlock in repr(s) and "deadlock" in s._repr_html_()
    assert "nothing: deadlock: peer0 waits" in s.player().html
    with pytest.raises(ValueError, match="action 0; deadlock: peer0"):
        s.choose(0)
    assert not s.back().over


def test_a_failing_program_leaves_the_stepper_before_the_failing_action():
    def broken(problem, workers, steps, sgd):
        def program():
            yield Compute(abs, 1)
            raise ArithmeticError("no")

        return {"peer0": Node(program())}

    s = Stepper(broken, workers=1, steps=1)
    before = state(s)
    with pytest.raises(ArithmeticError) as caught:
        s.step()
    assert state(s) == before and "schedule that fails is [0]" in caught.value.__notes__[-1]


def test_the_player_of_what_happened_opens_at_its_end_and_lists_what_may_happen():
    s = Stepper("ssp", staleness=1, workers=2).step(6)
    data = data_of(s.player().html)
    assert data["atEnd"] and data["unit"] == "steps" and len(data["events"]) == len(s.events)
    assert [said for _, said in data["actions"]] == s.actions()
    for p, place in enumerate(s.where()):
        frames = data["places"][column(data["programs"][p]["stands"], len(s.events))[1]]
        assert frames[-1][1] == place.line
    assert s._repr_html_().startswith("<iframe")
    assert data_of(Stepper("ssp").player().html)["events"] == []
    said = data_of(s.run().player().html)["blocks"][1][3]
    assert said.startswith("until step ") and re.search(r"; of the whole wait \d+ steps \w+ \(", said), "durations are no moments"


def test_messages_that_have_arrived_lie_in_an_inbox():
    s = Stepper("ssp", workers=2)
    s.step(2)
    flying = data_of(s.player().html)["messages"][0]
    s.choose(s.actions().index("Push#0 of worker0 arrives at server0"))
    arrived = data_of(s.player().html)["messages"][0]
    assert flying[5] is None and arrived[5] == 2.0 and arrived[6] == -1


def test_a_wait_is_explained_at_each_of_its_stages():
    s = Stepper("ssp", workers=2, staleness=0)

    def why(*, then: str | None = None):
        if then is not None:
            s.choose(s.actions().index(then))
        said, data = s.where()[0].why, data_of(s.player().html)
        reason = column(data["programs"][0]["reasons"], len(s.events))
        assert said == f"worker0 waits{reason[1]}"  # the player says the same
        assert data["blocks"] == [] or data["blocks"][-1][3].startswith("until")
        return said

    s.step(2)
    assert why() == "worker0 waits: its Push#0 is on the wire to server0"
    assert why(
        then="Push#0 of worker0 arrives at server0") == "worker0 waits: its Push#0 is in the inbox of server0, which takes it next"
    update = line_of("self.x, self.state = yield Compute", parts)
    assert why(
        then="server0 takes Push#0 of worker0") == f"worker0 waits: server0 has its Push#0 and computes the update; parts.py:{update}"
    s.run_until("block")
    gate = line_of("ready = [w for w in clock if w in waiting and clock[w] <= slowest + staleness]")
    assert why() == (
        "worker0 waits: server0 holds the answer to Push#0 back (clock {worker0: 1, worker1: 0}, slowest 0, "
                     f"staleness 0), while Push#0 of worker1 to server0 is on the wire; ssp_gate.py:{gate}")
    while "server0 sends Model to worker0" not in s.actions():
        s.step()
    why(then="server0 sends Model to worker0")
    assert why() == "worker0 waits: Model#0 of server0 is on the wire"
    assert why(then="Model#0 of server0 arrives at worker0") == "worker0 waits: Model#0 of server0 has arrived"
    s.choose(s.actions().index("worker0 takes Model#0 of server0"))
    assert s.where()[0].why == "worker0 is about to mark clock"


def line_of(text, module=ssp_gate):
    """The first line of a module that has this text."""
    return next(n for n, line in enumerate(inspect.getsource(module).splitlines(), 1) if text in line)


def own(gate):
    """SSP with slack 0 as a reader might write it, without a mark, in one of several ways; `gate` is the
    way."""
    def serve(ws, x, steps, sgd):
        v, counts, parked, version = sgd.start(x), dict.fromkeys(ws, 0), [], 0
        for _ in range(steps * len(ws)):
            who, push = yield Recv(Push)
            x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
            version, counts[who] = version + 1, counts[who] + 1
            parked.append(who)
            if gate == "if":
                for u in list(parked):
                    if counts[u] <= min(counts.values()):  # the if
                        parked.remove(u)
                        yield Send(u, Model(x, version))
        return x

    def skipping(ws, x, steps, sgd):
        v, counts, version = sgd.start(x), dict.fromkeys(ws, 0), 0
        while min(counts.values()) < steps:
            who, push = yield Recv(Push)
            x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
            version, counts[who] = version + 1, counts[who] + 1
            if counts[who] > min(counts.values()):  # the continue
                continue
            for u in ws:
                yield Send(u, Model(x, version))
        return x

    def gathering(ws, x, steps, sgd):
        v = sgd.start(x)
        for t in range(steps):
            counts = {}
            while len(counts) < len(ws):  # the loop
                who, push = yield Recv(Push)
                counts[who] = 1
            x, v = yield Compute(sgd.step, x, v, push.grad, t, kind="update")
            for u in ws:
                yield Send(u, Model(x, t + 1))
        return x

    def below(ws, x, steps, sgd):
        v, counts, version = sgd.start(x), dict.fromkeys(ws, 0), 0

        def next_push():
            return (yield Recv(Push))

        while min(counts.values()) < steps:
            who, push = yield from next_push()
            x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
            version, counts[who] = version + 1, counts[who] + 1
            free = [u for u in ws if max(counts.values()) <= min(counts.values())]  # the list
            for u in free:
                yield Send(u, Model(x, version))
        return x

    program = {"if": serve, "continue": skipping, "loop": gathering, "list": below}[gate]

    def deploy(problem, workers, steps, sgd):
        ws, _ = names(workers, 1)
        return {w: Node(worker(i, ["server0"], problem, steps))
                for i, w in enumerate(ws)} | {"server0": Node(program(ws, problem.x0, steps, sgd), role="server")}

    return deploy


@pytest.mark.parametrize("gate", ["if", "continue", "loop", "list"])
def test_the_line_that_holds_back_is_found_in_a_program_of_the_readers_own(gate):
    s = Stepper(own(gate), workers=2, steps=2)
    s.run_until(lambda e: e.node == "server0" and e.kind == ("receive" if gate == "loop" else "compute"))
    why = s.where()[0].why
    assert why.startswith(
        "worker0 waits: server0 has its Push#0 and does not answer yet (") and "worker0: 1" in why
    assert why.endswith(f"; test_stepper.py:{line_of(f'# the {gate}', sys.modules[__name__])}")


def test_a_program_without_source_is_explained_without_its_line():
    names_there = {"Compute": Compute, "Send": Send, "Recv": Recv, "Push": Push, "Model": Model}
    exec(
        "def serve(x):\n    for _ in range(2):\n        w, push = yield Recv(Push)\n    yield Send(w, "
        "Model(x, 1))\n", names_there)

    def deploy(problem, workers, steps, sgd):
        ws, _ = names(workers, 1)
        return {w: Node(worker(i, ["server0"], problem, steps))
                for i, w in enumerate(ws)} | {"server0": Node(names_there["serve"](problem.x0), role="server")}

    s = Stepper(deploy, workers=2, steps=1).run_until("receive")
    assert s.where()[
        0].why == "worker0 waits: server0 has its Push#0 and does not answer yet, while Push#0 of worker1 to server0 is on the wire; <string>:3"
    assert "<string>:3" in repr(s.where()) and s.source(
        "server0") == "server0 in serve, whose source cannot be read"


def test_peers_in_a_circle_wait_for_each_other():
    class Ask(NamedTuple):
        x: int

    class Answer(NamedTuple):
        x: int

    def circle(problem, workers, steps, sgd):
        def program(i):
            yield Send(f"peer{(i + 1) % workers}", Ask(i))
            yield Recv(Answer, src=f"peer{(i + 1) % workers}")
            who, _ = yield Recv(Ask)
            yield Send(who, Answer(i))

        return {f"peer{i}": Node(program(i)) for i in range(workers)}

    s = Stepper(circle, workers=3).run()
    assert s.where()[
        0].why == "peer0 waits: its Ask#0 is in the inbox of peer1, which waits for peer2, which waits for peer0: a cycle"


@pytest.mark.parametrize(("name", "options", "expected"), [
    ("ssp", {"staleness": 0, "refresh": "lazy"},
     r"server0 holds the answer to Read#1 back \(clock .*, parked \{worker0: 1\}, slowest 0, before 0\), "
     r"while .*; ssp.py:\d+"),
    ("ssp", {"staleness": 0, "refresh": "eager"},
     r"it holds itself back \(oldest 0, c 1, staleness 0\); ssp.py:\d+"),
    ("bsp", {}, r"server0 has its Push#0 and does not answer yet \(pushes \{worker0.*; bsp.py:\d+"),
    ("allreduce", {}, r"peer2 has not sent Part yet: it computes a gradient; allreduce.py:\d+"),
])
def test_the_catalogue_says_why(name, options, expected):
    s = Stepper(name, workers=3, **options)
    seen = set()
    for _ in range(60):
        seen.add(s.where()[0].why)
        s.step()
    assert any(re.fullmatch(f"(worker|peer)0 waits: {expected}", said) for said in seen), seen


def test_where_fits_into_100_columns_and_hides_nothing_that_matters():
    s = Stepper("ssp", workers=6, staleness=0).run_until("block")
    lines = repr(s.where()).splitlines()
    assert max(map(len, lines)) <= 100
    server = "\n".join(lines[next(n for n, line in enumerate(lines) if line.startswith("server0")):])
    for name in ("clock", "slowest", "waiting", "staleness", "ready"):
        assert f"{name} " in server
    assert "worker5: 0}" in server and any(line.startswith("    parts.py:") for line in lines)


def test_an_open_wait_is_split_by_cause_as_it_is_when_it_has_ended():
    def pieces(s):
        data = data_of(s.player().html)
        return [(a, min(b, 18), data["causes"][cause]) for p, a, b, cause, _ in data["waiting"] if p == 0
                and a < 18]

    s = Stepper("ssp", workers=3, staleness=0).run_until("block")
    while s.events[-1].time < 18:
        s.choose(next((i for i, said in enumerate(s.actions()) if not said.startswith("worker0")), 0))
    assert not any(e.kind == "receive" and e.node == "worker0" for e in s.events)
    before = pieces(s)
    assert len({cause for *_, cause in before}) > 1 and sum(b - a for a, b, cause in before
                                                            if cause == "slack") > 5
    after = pieces(s.run())
    spent = [{c: sum(b - a for a, b, cause in found if cause == c) for c in ("slack", "update")}
             for found in (before, after)]
    assert spent[0] == spent[1] and sum(b - a for a, b, _ in before) == sum(b - a for a, b, _ in after)


def test_where_of_simulator_and_world_are_the_same():
    s = Stepper("bsp", workers=2)
    sim = Simulator(s.deploy)
    for step, both in ((sim.__next__, slice(0, 1)), (sim.run, slice(None))):  # one program has begun, all have ended
        step()
        assert [(w.node, w.function, w.filename)
                for w in sim.where()[both]] == [(w.node, w.function, w.filename) for w in s.where()[both]]
        s.run()


def test_importing_the_library_does_not_load_the_stepper():
    code = (
        "import sys, refsgd; assert 'refsgd.display.player.stepper' not in sys.modules; assert 'Stepper' in "
        "refsgd.__all__; refsgd.Stepper('bsp'); "
            "print(sorted({'numba', 'matplotlib', 'rich'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=True).stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'Steppper'"):
        _ = refsgd.Steppper


# -- the terminal -----------------------------------------------------------------------------------------------


def talk(*lines: str, **options) -> list[str]:
    """What the terminal says to these lines."""
    out = io.StringIO()
    converse(Stepper("ssp", workers=2, steps=1, staleness=1, **options), [line + "\n" for line in lines], out)
    return out.getvalue().splitlines()


def test_a_conversation():
    said = talk("1", "", "b", "u", "w", "d", "nonsense", "42", "h", "l", "l worker0", "l worker7", "r", "q",
                "1")
    assert "* worker1 has computed a gradient" in said and "* worker0 has computed a gradient" in said
    assert "* server0 applies update 0 of worker0, staleness 0" in said
    assert any("yield Send(w, Model(shard.x, shard.version))" in line for line in said)
    assert "worker0           | worker1           | server0" in "\n".join(said)
    assert "command 'nonsense'; expected a number, Enter, b, u, r, w, d, l, h or q" in said
    assert said.count(KEYS.splitlines()[0]) == 2  # at the start, and for h
    for word in ("?", "help"):
        assert talk(word).count(KEYS.splitlines()[0]) == 2
    arrows = [line for line in said if line.startswith("-> ")]
    assert len(arrows) == 2 and arrows[0].endswith(
        "yield Send(w, Model(shard.x, shard.version))") and "yield Recv(Model, src=s)" in arrows[1]
    assert any(re.fullmatch(r"worker1 waits: .*", line) for line in said)
    assert not any("Shard(part=0" in line for line in said)  # variables only on request
    asked = talk("1", "", "u", "w server0", "w server9")
    assert any("shard Shard(part=0" in line for line in asked) and not any(line.startswith("worker1 ") for line in asked[9:])
    assert "node 'server9'; expected one of worker0, worker1, server0" in asked
    assert "node 'worker7'; expected one of worker0, worker1, server0" in said
    assert any(line.startswith("action 42; expected 0 to") for line in said)
    assert said[-1].startswith("the run is over")
    for wrong in ("--1", "²", "0 1", "b x", "r 2"):  # the session goes on
        assert sum(line.startswith(f"command '{wrong}'; expected ") for line in talk(wrong, "0")) == 1
    assert talk("1", "1", "undo", "Why", "back 2")[-2:] == talk()[-2:]
    with pytest.raises(ValueError, match=r"action 'worker0' of type str; expected the number of an action"):
        Stepper("ssp").choose("worker0")


def test_a_terminal_of_80_columns_is_kept_to(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = talk("u block", "w", "w server0", "w server9", "nonsense")
    assert max(map(len, said)) <= 80


def test_on_a_terminal_cursor_up_brings_back_the_last_line():
    pytest.importorskip("readline", reason="a Python without readline")
    pty = pytest.importorskip("pty", reason="no pseudo-terminals here")
    import os
    import select

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "refsgd", "step", "ssp", "--workers", "2", "--steps", "1"]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs,
                             env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    said = b""

    def until(words):
        nonlocal said
        while words not in said:
            assert select.select([ours], [], [], 20)[0], said  # instead of waiting for ever
            said += os.read(ours, 4096)
        said = said.partition(words)[2]

    until(b"> ")
    os.write(ours, b"0\n")
    until(b"* worker0 has computed a gradient")
    until(b"> ")
    os.write(ours, b"\x1b[A\n")  # cursor up: 0 again
    until(b"* worker0 sends Push#0 to server0")
    until(b"> ")
    os.write(ours, b"q\n")
    assert child.wait(20) == 0
    os.close(ours)


def test_the_command_reads_a_pipe_and_writes_the_player(tmp_path, capsys, monkeypatch):
    from refsgd.cli import main

    command = ["step", "ssp", "--staleness", "1", "--workers", "2", "--steps", "1"]
    done = subprocess.run([sys.executable, "-m", "refsgd", *command, "--player", str(tmp_path / "p.html")],
                          input="\n1\nr\n", capture_output=True, text=True, check=True)
    assert "ssp staleness=1: 2 workers, 1 step\n" in done.stdout and "the run is over" in done.stdout and done.stderr == ""
    assert len(data_of((tmp_path / "p.html").read_text())["events"]) == 19
    for wrong, line in [(["--schedule", "x"], "schedule 'x'; expected numbers"),
                        (["--player", "nowhere/p.html"], "no folder nowhere")]:
        assert main([*command, *wrong]) == 2
        said = capsys.readouterr().err
        assert line in said and said.count("\n") == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main([*command, "--decisions", "--schedule", "[1, 0]"]) == 0
    said = capsys.readouterr().out
    assert "the run is over" in said and said.count("* worker") == 3


def test_run_and_replay_write_players(tmp_path, capsys):
    from refsgd.cli import main

    common = ["--data", "quadratic", "--steps", "5", "--quiet"]
    assert main(["run", "ssp", *common, "--record", str(tmp_path / "r.json"), "--player",
                 str(tmp_path / "a.html")]) == 0
    assert main(["replay", str(tmp_path / "r.json"), "--player", str(tmp_path / "b.html")]) == 0
    a, b = (data_of((tmp_path / name).read_text()) for name in ("a.html", "b.html"))
    assert a["files"] == b["files"] and len(a["events"]) == len(b["events"]) and a["name"].startswith(
        "ssp: 4 workers, simulator")
