"""`refsgd advise`: rankings are those of the formulas, limits reject, evidence exists, commands run."""

import json
import re
import shlex
from pathlib import Path

import pytest

from refsgd import theory
from refsgd.advice import CANDIDATES, EVIDENCE, GROUPS, PAGES, TRIES, Candidate, advise
from refsgd.cli import main
from refsgd.cli.advise import broken
from refsgd.machine import Machine
from refsgd.running import run
from refsgd.studies import parts_of

ROOT = Path(__file__).parent.parent

FAST = (Candidate("bsp", {}), Candidate("bsp", {}, True), Candidate("asp", {}), Candidate("allreduce", {"collective": "ring"}), Candidate("gosgd", {"p": 0.1}))
CLUSTER = Machine(compute="fixed(0.2)", latency=1e-4, bandwidth=1.25e9)
SIZES = {"parameters": 25_557_032, "workers": 8}


@pytest.fixture(scope="module")
def everything():
    """All candidates on the cluster."""
    return advise(CLUSTER, **SIZES)


def test_the_ranking_is_the_formulas():
    found = advise(CLUSTER, **SIZES, candidates=FAST)
    assert [s.seconds for s in found.strategies] == sorted(s.seconds for s in found.strategies)
    for s in found.strategies:
        if s.name == "asp K=1":
            expected = theory.predict("asp", CLUSTER, workers=8, servers=1, nbytes=4 * 25_557_032, batch=32, steps=195, options={})
            assert s.images_per_second == expected["images_per_second"].value and s.idle == pytest.approx(expected["idle_ratio"].value, abs=0.01)
            break
    else:
        pytest.fail("asp is missing")


def test_the_best_of_a_group_changes_with_the_link():
    """Ring: 2 (n-1) latencies and 2 (n-1)/n transfers; one server: 2 latencies and n + 1 transfers. Each wins somewhere."""
    two = (Candidate("bsp", {}), Candidate("allreduce", {"collective": "ring"}))

    def best(machine):
        return advise(machine, **SIZES, candidates=two)

    assert best(CLUSTER).strategies[0].name == "allreduce ring"
    slow = best(CLUSTER.with_(latency=0.5))
    assert slow.strategies[0].name == "bsp K=1"
    assert any("latency" in text for text in slow.crossings)


def test_a_crossing_is_where_the_formulas_meet():
    """Fixed times: ring T + 14 (a + w/8), server T + 2 a + 9 w, so they meet at 12 a = 7.25 w; the text brackets it."""
    two = (Candidate("bsp", {}), Candidate("allreduce", {"collective": "ring"}))
    (text,) = [t for t in advise(CLUSTER, **SIZES, candidates=two).crossings if "latency" in t]
    low, high = (float(ms) / 1e3 for ms in re.findall(r"latency of ([\d.]+) ms", text))
    met = 7.25 * 4 * SIZES["parameters"] / CLUSTER.bandwidth / 12
    assert low / 1.1 < met < high * 1.1 and high < 1.5 * low and text.startswith("one model: allreduce ring up to") and text.endswith(" on")


def test_ties_are_no_crossings():
    """A ring and servers on all nodes send the same bytes: within 2 % of each other there is no best."""
    two = (Candidate("bsp", {}, True), Candidate("allreduce", {"collective": "ring"}))
    found = advise(CLUSTER, **SIZES, candidates=two)
    one, other = found.strategies
    assert one.seconds < other.seconds < 1.02 * one.seconds
    assert not [t for t in found.crossings if "bandwidth" in t or "GB/s" in t]


def test_gradients_that_are_dropped_are_no_progress():
    """With times that do not vary a backup worker gains nothing: 7 of 8 gradients count."""
    without, spare = (advise(Machine(compute="fixed(0.2)"), **SIZES, candidates=[c]).strategies[0]
                      for c in (Candidate("bsp", {}), Candidate("backup-workers", {"backups": 1})))
    assert spare.images_per_second == pytest.approx(7 / 8 * without.images_per_second) and spare.idle == pytest.approx(1 / 8)


def test_a_server_that_collects_gradients_is_counted():
    small = {c.algorithm: advise(CLUSTER, parameters=1000, workers=8, candidates=[c]).strategies[0].memory
             for c in (Candidate("bsp", {}), Candidate("backup-workers", {"backups": 1}), Candidate("asp", {}))}
    assert small["backup-workers"] == small["bsp"] > small["asp"]


def oldest(machine, steps):
    """Seconds that the slowest message of a run of GoSGD was on its way."""
    found = run("gosgd", p=0.1, net="phantom:1000000", data="none", workers=4, steps=steps, machine=machine)
    return max(t.received - t.sent for t in found.trace.transits)


def test_messages_that_pile_up_are_rejected():
    """p M/B = 0.4 s an iteration: of 0.5 s it is carried, of 0.25 s it is not, and messages grow older the longer a run is."""
    for compute, piles in (("fixed(0.5)", False), ("fixed(0.25)", True)):
        machine = Machine(compute=compute, bandwidth=1e6)
        (s,) = advise(machine, parameters=1_000_000, workers=4, candidates=[Candidate("gosgd", {"p": 0.1})]).strategies
        assert ("pile up" in s.rejected) == piles
        assert (oldest(machine, 1600) > 2.5 * oldest(machine, 400)) == piles


def test_waiting_is_counted_while_all_work():
    """Nobody waits in GoSGD, though of equal numbers of steps a slow worker's end last."""
    unequal = CLUSTER.with_(speeds=(1.0, 0.25))
    (s,) = advise(unequal, parameters=1000, workers=2, candidates=[Candidate("gosgd", {"p": 0.1})]).strategies
    assert s.idle == pytest.approx(0, abs=1e-12)
    run_of_equal_steps = run("gosgd", data="quadratic", workers=2, steps=8, machine=unequal)
    assert run_of_equal_steps.measured["idle_ratio"] == pytest.approx(0.375, abs=0.01)  # 1 - (1 + 1/4)/2


def test_one_of_each_kind_is_worth_a_try(everything):
    found = everything
    tried = [s.name.split()[0] for s in found.tries]
    assert {"local-sgd", "easgd", "gosgd", "asp", "dgc"} <= set(tried) and len(tried) == len(TRIES)
    fastest = {s.group: s.name for s in reversed(found.strategies) if not s.rejected}
    assert set(fastest.values()) <= {s.name for s in found.tries}
    limited = advise(CLUSTER, **SIZES, staleness_limit=0.5, candidates=FAST)
    assert [s.name for s in limited.tries if s.rejected or s.group == "stale gradients"] == [] and len(limited.tries) == 2


def test_pages_exist(everything):
    pages = {s.page for s in everything.strategies} | set(PAGES.values()) | {f"docs/studies/{e.study}" for some in EVIDENCE.values() for e in some}
    assert not [page for page in pages if not (ROOT / f"{page}.md").exists()]


def test_limits_reject_and_say_why():
    found = advise(CLUSTER, **SIZES, candidates=FAST, staleness_limit=2.0)
    out = {s.name: s.rejected for s in found.strategies if s.rejected}
    assert list(out) == ["asp K=1"] and "at most 2 wanted" in out["asp K=1"] and found.tries
    assert found.strategies[-1].name == "asp K=1"
    assert all(s.rejected for s in advise(CLUSTER, **SIZES, candidates=FAST, memory_limit=1e6).strategies)


def test_every_candidate_has_a_group_and_every_piece_of_evidence_a_part_of_a_study():
    for c in CANDIDATES:
        assert sum(c.algorithm in members for members in GROUPS.values()) == 1
    for evidence in EVIDENCE.values():
        for e in evidence:
            assert e.part in [f.__name__ for f in parts_of(e.study)[1]]


@pytest.mark.slow
def test_the_evidence_is_what_the_studies_say(quick):
    wanted = {e for found in EVIDENCE.values() for e in found}
    for name in {e.study for e in wanted}:
        verdicts = {c.says: c.verdict for c in quick(name).claims}
        for e in wanted:
            if e.study == name:
                assert verdicts[e.says] in ("holds", "holds in shape"), e


def test_every_figure_names_its_formula(everything):
    for s in everything.strategies:
        given = {name for name in ("staleness", "bytes") if getattr(s, name) is not None} | {"seconds", "images_per_second", "idle"}
        assert set(s.formulas) == given and all(s.formulas.values()), s.name


def test_wrong_use():
    with pytest.raises(ValueError, match="workers 0"):
        advise(CLUSTER, parameters=1, workers=0)
    with pytest.raises(ValueError, match="no law of compute times"):
        advise(Machine(), parameters=1, workers=2)
    assert main(["advise"]) == 2
    assert main(["advise", "--parameters", "1000"]) == 2
    assert main(["advise", "--parameters", "1000", "--rate", "1e9"]) == 2
    assert main(["advise", "--net", "nothing", "--rate", "1e9"]) == 2


@pytest.mark.parametrize(("flags", "said"), [
    ("--memory -1", "memory of -1 bytes; expected a number > 0"), ("--memory 0", "memory of 0 bytes"), ("--memory nan", "memory of nan bytes"),
    ("--max-staleness -1", "mean staleness of at most -1 updates; expected a number >= 0"), ("--max-staleness nan", "mean staleness of at most nan"),
    ("--rate 1e9", "--rate 1e+09 and --compute fixed(0.2); expected one of the two"),
    ("--net tiny --image 8,8,1", "--net tiny and --parameters 1000; expected one of the two")])
def test_limits_that_are_none_and_what_is_said_twice_are_refused(flags, said, capsys):
    assert main(["advise", "--parameters", "1000", "--compute", "fixed(0.2)", *flags.split()]) == 2
    assert said in capsys.readouterr().err


def test_flops_beside_a_net_are_refused(capsys):
    assert main(["advise", "--net", "tiny", "--image", "8,8,1", "--flops", "5", "--rate", "1e9"]) == 2
    assert "--net tiny and --flops 5; expected one of the two" in capsys.readouterr().err


def test_limits_that_exclude_nothing_are_taken():
    assert not [s for s in advise(CLUSTER, **SIZES, candidates=FAST, memory_limit=float("inf")).strategies if s.rejected]
    assert [s.rejected for s in advise(CLUSTER, **SIZES, candidates=FAST[:1], staleness_limit=0).strategies] == [""]


def test_the_commands_it_gives_run(capsys):
    found = advise(CLUSTER, parameters=1000, workers=3, candidates=FAST)
    for s in found.strategies:
        program, *arguments = shlex.split(s.command)
        assert program == "refsgd" and main([*arguments, "--steps", "2"]) == 0
    capsys.readouterr()


def test_a_command_describes_the_machine(capsys, tmp_path):
    """Folded on lines that a shell joins; run, it is the machine that was asked about."""
    asked = Machine(compute="lognormal(0.2,0.1)", latency=1e-4, bandwidth=1.25e9, update=0.01, speeds=(1, 1, 0.25))
    (s,) = advise(asked, parameters=1000, workers=3, candidates=[Candidate("asp", {})]).strategies
    folded = "\n".join(broken(s.command, 60))
    assert len(folded.splitlines()) > 2 and max(map(len, folded.splitlines())) <= 70
    assert shlex.split(folded.replace("\\\n", "")) == shlex.split(s.command)
    assert main([*shlex.split(s.command)[1:], "--steps", "2", "--json", "-"]) == 0
    assert Machine.from_json(json.loads(capsys.readouterr().out)["machine"]) == asked


@pytest.mark.parametrize("cluster", [
    "--parameters 138357544 --compute 0.3 --workers 32 --latency 2e-6 --bandwidth 7e9 --memory 12e9",
    "--parameters 11689512 --compute 0.35 --workers 4 --speeds 1,1,1,0.25 --latency 1e-4 --bandwidth 125e6"])
def test_it_fits_into_100_columns(cluster, capsys):
    assert main(["advise", *cluster.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    header = next(line for line in lines if line.startswith(" strategy"))
    assert not [word for word in ("pass, s", "idle", "stale", "sent", "memory", "model", "waits for", "see") if word not in header]
    assert "…" not in "".join(lines)
    assert any("easgd" in line for line in lines[lines.index(next(t for t in lines if t.startswith("Try them"))):])


def test_the_command_line(capsys):
    assert main(["advise", "--net", "tiny", "--image", "8,8,1", "--rate", "1e9", "--workers", "3", "--bandwidth", "1e8", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == 1 and len(data["strategies"]) == len(CANDIDATES)
    assert data["machine"]["compute"]["family"] == "lognormal"
