"""The step player's page in Python: every event is there, at the right line, and nothing from outside."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.server import bsp
from refsgd.cluster.machine import Machine
from refsgd.display.player.listing import colour, listing, title
from refsgd.display.player.states import follow
from refsgd.display.player.why import Why
from refsgd.effects import Compute, Node, Recv, Send
from refsgd.experiment.result import Result
from refsgd.experiment.run import run
from refsgd.problems import quadratic
from refsgd.trace import CAUSES, Received
from tests.display.player.pages import column, data_of, line_at, page, text_at

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
AT = {"compute": "yield Compute", "send": "yield Send", "receive": "yield Recv", "mark": "yield Mark",
      "choose": "yield Choose",
      "poll": "yield Poll", "load": "yield Load", "add": "yield Add"}


@pytest.mark.parametrize("name", ["bsp", "ssp", "adpsgd", "allreduce", "easgd", "hogwild", "backup-workers"])
def test_every_event_is_there_and_its_program_stood_at_its_effect(name):
    found = page(name, steps=2)
    assert len(found.data["events"]) == min(500, len(found.trace.events))
    for k, e in enumerate(found.trace.events[:500]):
        p = found.data["events"][k][0]
        program = found.data["programs"][p]
        assert (found.data["nodes"][program["node"]], program["index"]) == (e.node, e.program)
        assert found.data["times"][k] == pytest.approx(e.time, abs=1e-8)
        if e.kind in AT:
            line = text_at(found, p, k)  # a shard's receive is shown where it is called
            assert AT[e.kind] in line.replace("yield from shard.recv", "yield Recv"), (k, e.kind)


@pytest.mark.parametrize("name", [n for n in CATALOGUE if n != "sequential"])
def test_every_algorithm_has_a_page_whose_programs_stand_at_yields(name):
    found = page(name, steps=2)
    assert found.data["note"] == ""
    for p, program in enumerate(found.data["programs"]):
        for k, place, _ in program["stands"]:
            assert place < 0 or "yield" in text_at(found, p, k)


def test_the_server_of_ssp_waits_at_its_receive_and_holds_back_at_its_mark():
    found = page("ssp", staleness=0)
    server = len(found.data["programs"]) - 1
    assert line_at(found, server, 0)[0] == "refsgd/algorithms/server/ssp_gate.py"
    assert text_at(found, server, 0) == "w, message = yield from shard.recv(Push, Died)"
    blocked = next(k for k, e in enumerate(found.trace.events) if e.kind == "mark"
                   and e.name == "block")
    assert text_at(found, server, blocked) == 'yield Mark("block", worker=w)'
    assert column(found.data["programs"][server]["stands"], 0)[2] == "waits: Recv(Push or Died)"


def test_locals_follow_the_program_and_constants_stand_apart():
    found = page("ssp", staleness=1)
    server = found.data["programs"][-1]
    assert server["fixed"]["staleness"] == "1" and "clock" in server["locals"] and "workers" in server[
        "fixed"]
    last = max(k for k, e in enumerate(found.trace.events, 1) if e.kind == "mark"
               and e.name == "update")
    assert "version=11" in column(server["locals"]["shard"], last - 1)[1]
    assert column(server["locals"]["clock"], 0)[1] == "{worker0: 0, worker1: 0, worker2: 0}"
    assert "staleness" not in server["locals"]


def test_waiting_is_explained_by_cause_and_by_whom():
    found = page("ssp", staleness=0,
                 machine=Machine(compute="fixed(0.02)", latency=0.001, speeds=(1, 1, 0.25)))
    words = " | ".join(b[3] for b in found.data["blocks"] if b[0] == 0)
    assert "until 82 ms; of the whole wait 60 ms slack (the answer is held back to keep the bound), 2 ms transfer" in words
    reasons = [reason for reason in found.data["programs"][0]["reasons"] if reason[1]
               and reason[1].startswith(" for ")]
    assert {said.partition(" (")[0] for _, said, *_ in reasons} == {
        f" for Push#{t} of worker2: server0 holds the answer to Push#{t} back" for t in range(4)}
    for stop, p in found.data["stops"]:  # the line that decides is in the page
        _, said, file, line = column(found.data["programs"][p]["reasons"], stop)
        row = re.search(rf'id="f{file}l{line}">.*?<code>(.*?)</code>', found.html, re.S).group(1)
        assert "ready = [w for w in clock if w in waiting" in re.sub("<[^>]*>", "",
                                                                     row) and said.endswith(
                                                                         f"; ssp_gate.py:{line}")
    spent = sum(b - a for p, a, b, cause, _ in found.data["waiting"] if p < 3 and 0 <= cause < 7)
    busy = sum(b - a for p, a, b, work, *_ in found.data["computing"] if work == "gradient")
    assert spent + busy <= 3 * found.data["end"] * (1 + 1e-9)
    assert busy / (3 * found.trace.seconds) == pytest.approx(1 - found.trace.idle_ratio)


def test_pieces_of_a_gradient_and_codecs_have_their_words():
    found = page("bsp", steps=2, workers=2, layout="layers", overlap="both", compress="topk:0.5",
                 machine=Machine(compute="fixed(0.02)", latency=0.001, codec=1e-3))
    named = [(work, name) for p, _, _, work, _, name in found.data["computing"] if p == 0]
    passes = [name for work, name in named if work == "gradient"]
    backward = ["backward 2", "backward 1", "backward 0"]  # in the first step the parameters are there
    assert passes == ["forward", *backward, "forward", "forward 1", "forward 2", *backward]
    assert ("codec", "codec") in named
    says = {says for _, _, says in found.data["programs"][0]["stands"]}
    assert {"computes: forward", "computes: forward 1", "computes: backward 0", "computes: codec"} <= says
    done = run("bsp", quadratic(3, 2), workers=2, steps=1, layout="layers", overlap="backward")
    why = Why(done.trace, follow(done.trace, done.deploy, 0, len(done.trace.events)))
    said = [why.sentence("worker0", 0, k) for k in range(len(done.trace.events))]
    assert "worker0 computes the forward pass" in said and "worker0 computes the backward pass of layer or batch 1" in said
    codec = list(CAUSES).index("codec")
    assert any(p < 2 and cause == codec for p, _, _, cause, _ in found.data["waiting"])


def test_a_wait_is_explained_by_what_was_taken_before_the_answer_and_not_at_the_same_time():
    # Both gradients are there when the server has taken the first, and it takes the second as it sends the
    # first answer.
    found = page("asp", workers=2, machine=Machine(compute="fixed(0.02)", latency=0.001, update=0.002))
    words = [b[3] for b in found.data["blocks"] if b[0] == 0]
    assert words[0].startswith("until 24 ms; of the whole wait 2 ms ")
    assert not any(reason[1] and reason[1].startswith(" for ") for program in found.data["programs"][:2]
                   for reason in program["reasons"])


def test_next_wait_stops_where_a_worker_is_held_back_and_not_at_transfers():
    found = page("ssp", staleness=1, steps=6)
    waits = [e for e in found.trace.of(Received) if e.node != "server0" and e.time > e.since]
    slack = {(e.node, e.number) for e in found.trace.events if e.kind == "receive" and any(
        mark.values["worker"] == e.node and e.since <= mark.time <= e.time
        for mark in found.trace.marks("block"))}
    assert 0 < len(found.data["stops"]) < len(waits)
    for k, p in found.data["stops"]:
        e = next(e for e in found.trace.events[k:] if e.node == found.data["nodes"][p]
                 and e.kind == "receive")
        assert (e.node, e.number) in slack
    assert len(found.data["stops"]) == len(slack)  # each wait once
    assert data_of(page("asp", workers=2, machine=Machine(compute="fixed(0.02)", latency=0.001)).html)[
        "stops"] == []


def test_causes_have_the_colours_of_the_plots():
    from refsgd.display.plots.colors import CAUSE_COLORS

    css = (Path(refsgd.__path__[0]) / "display" / "player" / "player.css").read_text()
    for cause, color in CAUSE_COLORS.items():
        assert re.findall(rf"--{cause}: (#\w+);", css) == [color.lower()]


def test_messages_under_way_and_ages():
    found = page("asp")
    assert len(found.data["messages"]) == found.trace.messages
    assert sum(1 for _ in found.data["ages"]) == len(found.trace.staleness)
    assert sorted(tau for _, tau, _ in found.data["ages"]) == sorted(tau for _, tau in found.trace.staleness)
    push = next(m for m in found.data["messages"] if m[2] == "Push#0")
    assert push[3] < push[6] and push[4] < push[5] <= push[7] and push[8] == 12 and "version=0" in push[9]


def test_a_window_begins_in_the_state_that_the_whole_run_has_there():
    whole, part = page("ssp", staleness=1), page("ssp", staleness=1, events=(30, 60))
    assert len(part.data["events"]) == 30 and part.data["first"] == 30 and part.data["total"] == len(
        whole.trace.events)
    for p in range(4):
        for k in (0, 7, 29):
            assert line_at(part, p, k) == line_at(whole, p, 30 + k)
            for name, pairs in whole.data["programs"][p]["locals"].items():
                program = part.data["programs"][p]
                seen = column(program["locals"][name],
                              k) if name in program["locals"] else [0, program["fixed"].get(name)]
                assert (seen or [0, None])[1] == (column(pairs, 30 + k) or [0, None])[1]
    before = sum(1 for e in whole.trace.events[:30] if e.kind == "mark" and e.name == "update")
    assert sum(part.data["agesBefore"].values()) == before


def test_the_page_is_small_self_contained_and_tells_nothing_of_this_machine():
    found = page("ssp", workers=8, steps=40)
    assert len(found.data["events"]) == 500 and len(found.html.encode()) < 1_500_000
    urls = set(re.findall(r"https?://[^\s\"'<)]+", found.html))
    assert urls <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=\"(?!data:)", found.html)
    assert str(refsgd.__path__[0]) not in found.html


def test_runs_of_processes_have_lines_too():
    result = run("ssp", quadratic(3, 3), workers=3, steps=5, staleness=1, runtime="processes",
                 machine=Machine(compute="fixed(0.004)"))
    html = result.player().html
    data = data_of(html)
    assert data["note"] == "" and len(data["events"]) == len(result.trace.events)
    assert {"refsgd/algorithms/server/ssp_gate.py",
            "refsgd/algorithms/parts.py"} == set(data["files"])
    for p, program in enumerate(data["programs"]):
        assert len(program["stands"]) > 5 and program["stands"][-1][1] == -1, p


def test_a_replayed_run_shows_the_same_waits(tmp_path):
    path = tmp_path / "run.json"
    first = run("ssp", data="quadratic", steps=5, staleness=1, record=path)
    again = refsgd.replay(path)
    a, b = data_of(first.player().html), data_of(again.player().html)
    assert sorted(map(str, a["waiting"])) == sorted(map(str, b["waiting"]))
    assert again.measured["idle_by_cause"] == pytest.approx(first.measured["idle_by_cause"])
    assert sorted(m[:3] + m[4:6] for m in a["messages"]) == sorted(m[:3] + m[4:6] for m in b["messages"])


class Number(NamedTuple):
    """A message of the reader's own."""

    value: np.float32


def test_an_algorithm_of_the_readers_own_and_one_without_source():
    def mine(problem, workers, steps, sgd):
        def ask():
            for t in range(steps):
                yield Send("server0", Number(np.float32(t)))
                yield Recv(Number)
            return problem.x0

        def answer():
            for _ in range(steps):
                w, message = yield Recv(Number)
                value = yield Compute(float, message.value, kind="update")
                yield Send(w, Number(np.float32(value)))
            return problem.x0

        return {"worker0": Node(ask()), "server0": Node(answer(), role="server")}

    data = data_of(run(mine, quadratic(2, 1), workers=1, steps=2).player().html)
    assert data["files"] == ["test_page.py"] and len(data["programs"][0]["stands"]) == 5
    scope = {}
    exec("from refsgd.effects import *\ndef bare(problem, workers, steps, sgd):\n"
         "    def main():\n        yield Mark('clock', t=0)\n        return problem.x0\n    return {'peer0': "
         "Node(main())}", scope)
    html = run(scope["bare"], quadratic(2, 1), workers=1, steps=1).player().html
    assert "no source to read" in html and data_of(html)["files"] == ["<string>"]


def test_without_programs_or_trace():
    from refsgd.display.player import player_html

    found = page("bsp")
    html = player_html(found.trace)
    assert "no programs were given" in html and len(data_of(html)["events"]) == len(found.trace.events)
    result = run("bsp", data="quadratic", steps=3)
    with pytest.raises(ValueError, match="has no trace; expected"):
        Result.from_json(result.to_json()).player()
    for wrong in ((-1, 5), (5, 5), (100_000, 100_001)):
        with pytest.raises(ValueError, match="events"):
            result.player(events=wrong)
    with pytest.raises(ValueError, match="limit 0"):
        result.player(limit=0)


def test_a_notebook_shows_a_frame_and_save_writes_the_page(tmp_path):
    player = run("bsp", data="quadratic", steps=2).player(tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text() == player.html
    shown = player._repr_html_()
    assert shown.startswith("<iframe") and "srcdoc=" in shown and "<script" not in shown
    assert repr(player).startswith("Player(")


def test_the_data_cannot_close_its_script():
    from refsgd.display.player import player_html

    html = player_html(page("bsp").trace, name="</script><script>alert(1)</script>")
    assert html.count("<script") == 2 and data_of(html)["name"].startswith("</script>")


def test_colours_and_names_of_files():
    assert colour(["def f():\n", '    """a\n', '    b"""\n', "    x = (yield)  # c\n"]) == [
        '<i class="k">def</i> <i class="d">f</i>():', '    <i class="s">"""a</i>',
        '<i class="s">    b"""</i>',
        '    x = (<i class="y">yield</i>)  <i class="c"># c</i>']
    assert colour(["if x < 1 and (\n"])[
        0] == '<i class="k">if</i> x &lt; <i class="n">1</i> <i class="k">and</i> ('
    assert title("/somewhere/ipykernel_12/345.py") == "cell" and title(
        bsp.__file__) == "refsgd/algorithms/server/bsp.py"
    assert title("<stdin>") == "<stdin>" and title("/home/me/mine.py") == "mine.py"


MANY = '''"""A module
of three
lines."""


def short():
    """Two
    lines."""
    yield


def long(x):
    """

    Says something,
    and more.
    """
    def inside():
        r"""Of its own:
        one,
        two."""; x = """no

        docstring"""
        return x

    text = """not

    a docstring"""
    yield text
'''


def test_long_docstrings_are_folded_and_lines_keep_their_numbers(tmp_path):
    path = tmp_path / "many.py"
    path.write_text(MANY)
    html = listing(3, str(path), [6, 12])
    rows = re.findall(r'id="f3l(\d+)"><span class="number">(\d+)</span>.*?<code>(.*?)</code>', html)
    lines = MANY.splitlines()
    assert [int(a) for a, _, _ in rows] == [int(b) for _, b, _ in rows] == list(range(1, len(lines) + 1))
    for number, _, code in rows:
        assert re.sub("<[^>]*>", "", code).strip() == lines[int(number) - 1].strip()
    folds = re.findall(r'<details class="doc"><summary class="line" id="f3l(\d+)">.*?(\d+) more lines</span>',
                       html)
    assert folds == [("1", "2"), ("15", "2")]  # each from its first line with words
    assert html.count("<details") == html.count("</details>") == 3 and "lines 1 to 5" in html


def test_json_has_no_nan():
    json.dumps(page("bsp", machine=Machine(compute="fixed(0)")).data, allow_nan=False)


def test_a_death_is_shown_and_the_others_go_on():
    from refsgd.display.player import player_html
    from refsgd.experiment.prepare import prepare
    from refsgd.runtimes.faults import Fault
    from refsgd.runtimes.simulator import simulate

    experiment = prepare("gosgd", quadratic(3, 3), workers=3, steps=4,
                         machine=Machine(compute="fixed(0.01)", latency=0.001))
    run = simulate(experiment.deploy, experiment.machine, faults=[Fault("kill", "peer1", 2)])
    data = data_of(player_html(run.trace, experiment.deploy))
    assert data["note"] == "" and [e.kind for e in run.trace.events if e.node == "peer1"][-1] == "died"
    for program in data["programs"]:
        assert program["stands"][-1][1] == -1, program["name"]
    assert [kind for _, kind, _ in data["events"]].count("died") == 1
    assert [program["stands"][-1][2] for program in data["programs"]
            if program["index"] == 0] == ["returned", "died", "returned"]
