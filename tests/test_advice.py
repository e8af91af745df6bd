"""`refsgd advise`: rankings are those of the formulas, limits reject, evidence exists, commands run."""

import json
import shlex

import pytest

from refsgd import theory
from refsgd.advice import CANDIDATES, EVIDENCE, GROUPS, Candidate, advise
from refsgd.cli import main
from refsgd.machine import Machine
from refsgd.studies import parts_of

FAST = (Candidate("bsp", {}), Candidate("bsp", {}, True), Candidate("asp", {}), Candidate("allreduce", {"collective": "ring"}), Candidate("gosgd", {"p": 0.1}))
CLUSTER = Machine(compute="fixed(0.2)", latency=1e-4, bandwidth=1.25e9)
SIZES = {"parameters": 25_557_032, "workers": 8}


def test_the_ranking_is_the_formulas():
    found = advise(CLUSTER, **SIZES, candidates=FAST)
    assert [s.seconds for s in found.strategies] == sorted(s.seconds for s in found.strategies)
    for s in found.strategies:
        if s.name == "asp K=1":
            expected = theory.predict("asp", CLUSTER, workers=8, servers=1, nbytes=4 * 25_557_032, batch=32, steps=195, options={})
            assert s.images_per_second == expected["images_per_second"].value and s.idle == expected["idle_ratio"].value
            break
    else:
        pytest.fail("asp is missing")


def test_the_best_of_a_group_changes_with_the_link():
    """Ring: 2 (n-1) latencies and 2 (n-1)/n transfers; one server: 2 latencies and n + 1 transfers. Each wins somewhere."""
    two = (Candidate("bsp", {}), Candidate("allreduce", {"collective": "ring"}))

    def best(machine):
        return advise(machine, **SIZES, candidates=two)

    assert best(CLUSTER).strategies[0].name == "allreduce collective=ring"
    slow = best(CLUSTER.with_(latency=0.5))
    assert slow.strategies[0].name == "bsp K=1"
    assert any("latency" in text for text in slow.crossings)


def test_limits_reject_and_say_why():
    found = advise(CLUSTER, **SIZES, candidates=FAST, staleness_limit=2.0)
    out = {s.name: s.rejected for s in found.strategies if s.rejected}
    assert list(out) == ["asp K=1"] and "at most 2 wanted" in out["asp K=1"]
    assert found.strategies[-1].name == "asp K=1"
    assert all(s.rejected for s in advise(CLUSTER, **SIZES, candidates=FAST, memory_limit=1e6).strategies)


def test_every_candidate_has_a_group_and_every_piece_of_evidence_a_part_of_a_study():
    for c in CANDIDATES:
        assert sum(c.algorithm in members for members in GROUPS.values()) == 1
    for evidence in EVIDENCE.values():
        for e in evidence:
            assert e.part in [f.__name__ for f in parts_of(e.study)[1]]


@pytest.mark.slow
def test_the_evidence_is_what_the_studies_say():
    from refsgd.studies import Lab, perform

    wanted = {e for found in EVIDENCE.values() for e in found}
    for name in {e.study for e in wanted}:
        parts = sorted({e.part for e in wanted if e.study == name})
        verdicts = {c.says: c.verdict for c in perform(name, Lab(quick=True), parts).claims}
        for e in wanted:
            if e.study == name:
                assert verdicts[e.says] in ("holds", "holds in shape"), e


def test_every_figure_names_its_formula():
    for s in advise(CLUSTER, **SIZES).strategies:
        given = {name for name in ("idle", "staleness", "bytes") if getattr(s, name) is not None} | {"seconds", "images_per_second"}
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


def test_the_commands_it_gives_run(capsys):
    found = advise(CLUSTER, parameters=1000, workers=3, candidates=FAST)
    for s in found.strategies:
        program, *arguments = shlex.split(s.command)
        assert program == "refsgd" and main([*arguments, "--steps", "2"]) == 0
    capsys.readouterr()


def test_the_command_line(capsys):
    assert main(["advise", "--net", "tiny", "--image", "8,8,1", "--rate", "1e9", "--workers", "3", "--bandwidth", "1e8", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == 1 and len(data["strategies"]) == len(CANDIDATES)
    assert data["machine"]["compute"]["family"] == "lognormal"
