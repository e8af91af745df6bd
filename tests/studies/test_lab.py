"""Studies: results are kept by their inputs, verdicts follow figures, pages show what was found."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks import studies
from benchmarks.quiet import processor
from benchmarks.studies import NAMES, Lab, parts_of, perform
from benchmarks.studies import lab as room
from benchmarks.studies.__main__ import main
from benchmarks.studies.lab import Trial
from benchmarks.studies.report import markdown, picture, tables
from benchmarks.studies.study import (
    Grid,
    Line,
    Panel,
    Part,
    Study,
    cells,
    decided,
    interval,
    judged,
    shown,
    tally,
    untestable,
)
from refsgd.cluster.machine import Machine

SMALL = {"data": "quadratic", "steps": 4, "machine": Machine(compute="exponential(0.02)"), "seed": 3}


def updates(result):
    return {"updates": len(result.trace.marks("update"))}


def test_a_trial_is_run_once_and_kept_by_its_inputs(tmp_path, monkeypatch):
    trial = Trial("asp", {**SMALL, "workers": 3}, look=updates)
    first = Lab(True, cache=tmp_path).runs([trial])[0]
    assert first.looked == {"updates": 12}
    monkeypatch.setattr(Trial, "perform", lambda self: pytest.fail("ran again"))
    again = Lab(True, cache=tmp_path).runs([trial])[0]
    assert again.looked == first.looked and again.measured == first.measured
    assert again.the_result.parameters_sha256 == first.the_result.parameters_sha256


@pytest.mark.parametrize("change",
                         [{"workers": 4}, {"seed": 4}, {"machine": Machine(compute="exponential(0.03)")},
                          {"steps": 5}])
def test_other_inputs_are_another_result(change):
    assert Trial("asp", SMALL).key != Trial("asp", {**SMALL, **change}).key


def test_other_code_is_another_result(monkeypatch):
    key = Trial("asp", SMALL).key
    monkeypatch.setattr(room, "fingerprint", lambda: "another library")
    assert Trial("asp", SMALL).key != key


def test_an_interrupted_study_goes_on_where_it_was(tmp_path, monkeypatch):
    trials = [Trial("asp", {**SMALL, "seed": seed}) for seed in range(3)]
    perform, ran = Trial.perform, []

    def stops(self):
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(self.arguments["seed"])
        return perform(self)

    monkeypatch.setattr(Trial, "perform", stops)
    with pytest.raises(KeyboardInterrupt):
        Lab(True, cache=tmp_path, workers=1).runs(trials)
    assert ran == [0, 1] and len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(Trial, "perform", lambda self: ran.append(self.arguments["seed"]) or perform(self))
    assert len(Lab(True, cache=tmp_path, workers=1).runs(trials)) == 3
    assert ran == [0, 1, 2]


def test_in_parallel_and_alone_give_the_same_bits():
    trials = [Trial("bsp", {**SMALL, "seed": seed}) for seed in range(3)]
    one, two = Lab(True, workers=1).runs(trials), Lab(True, workers=2).runs(trials)
    assert [s.the_result.parameters_sha256 for s in one] == [s.the_result.parameters_sha256 for s in two]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_diverged_trial_is_a_finding():
    seen = Lab(True).runs([Trial("bsp", {"data": "digits", "lr": 1e9, "steps": 6})])[0]
    assert seen.failed and seen.accuracy == 0.1
    with pytest.raises(RuntimeError, match="a trial failed"):
        _ = seen.measured


def test_verdicts():
    assert judged("a", "T", True, "").verdict == "holds"
    assert judged("a", "T", True, "", shape=True).verdict == "holds in shape"
    assert judged("a", "T", False, "", shape=True).verdict == "does not hold"
    assert tally([judged("a", "T", True, ""), untestable("b", "T", "why")]) == {"holds": 1, "not testable": 1}
    assert [shown(v) for v in (None, "a", 12345.6, 0.123456)] == ["", "a", "12,346", "0.123"]


def test_intervals_are_students():
    """Five seeds: t = 2.776 with four degrees of freedom, from a table, where a normal law has 1.96."""
    mean, half = interval([0.1, 0.2, 0.3, 0.4, 0.5])
    assert mean == pytest.approx(0.3) and half == pytest.approx(2.776 * 0.025**0.5 / 5**0.5, rel=1e-3)
    line = Line("accuracy", simulated=0.3, half=half)
    assert cells(Part("t", "", "", [line, Line("exact", simulated=2.0, half=1e-13)])) == (
        ["", "simulated"], [["accuracy", "0.3 ± 0.2"], ["exact", "2"]])


def test_seeds_that_do_not_decide_are_no_verdict():
    says = ("a falls", "Fig. 1")
    assert decided(*says, [0.1, 0.12, 0.11], "").verdict == "holds in shape"
    assert decided(*says, [-0.1, -0.12, -0.11], "").verdict == "does not hold"
    unsure = decided(*says, [0.3, -0.1, 0.1], "0.1 on average")
    assert unsure.verdict == "not testable" and unsure.because == "0.1 on average: 3 seeds do not decide"
    assert decided(*says, [0.1], "").verdict == "holds in shape"


@pytest.mark.slow
def test_a_seed_repeats_simulated_figures_bit_for_bit(capsys):
    """The command, twice without a cache: the same text; with another seed another one."""

    def figures(seed):
        assert main(["jia2020", "--quick", "--parts", "table2", "--seed", seed, "--no-cache", "--json",
                     "-"]) == 0
        return json.loads(capsys.readouterr().out)["parts"]

    first = figures("1")
    assert figures("1") == first and figures("2") != first


def test_tables_pages_and_pictures(tmp_path):
    part = Part("t", "A table", "Table I", [Line("time", 3.0, None, 2.5, unit="s")],
                [judged("a|b", "Table I", False, "2.5")],
                [Panel("p", "n", "s", {"ours": [(1, 2), (2, 3)], "(paper)": [(1, 1)]}, log="x"),
                 Panel("q", "n", "s", {"a": [(1, 2)]}, "bars", names=["one"])],
                grids=[Grid("by size", ["small", "large"], {"time": [2.5, "–"]})])
    study = Study("x", "X", True, 0, [part])
    assert cells(part) == (["", "paper", "simulated"], [["time [s]", "3", "2.5"]])
    text = markdown(study, "images/")
    assert "| time [s] | 3 | 2.5 |" in text and "a\\|b" in text and "**does not hold**" in text
    assert "**by size**" in text and "| time | 2.5 | – |" in text
    assert "![A table: s by n (p); s by n (q). Curves: ours, (paper), a.](images/x-t.png)" in text
    assert len(tables(study)) == 3 and len(picture(part).axes) == 2
    assert json.loads(study.to_json())["parts"][0]["claims"][0]["verdict"] == "does not hold"


def test_every_document_has_parts_and_is_named_wrongly_in_one_line(capsys):
    for name in NAMES:
        title, parts = parts_of(name)
        assert title.endswith(".") and len(parts) >= 3 and all(f.__doc__ for f in parts)
    for wrong in (["nothing"], [NAMES[0], "--parts", "nothing"]):
        code, said = main(wrong), capsys.readouterr()
        assert code == 2 and "nothing" in said.err and said.err.count("\n") == 1 and not said.out


@pytest.mark.slow
def test_the_command_writes_everything(tmp_path, capsys):
    assert main(["jia2020", "--quick", "--parts", "figure4", "--output", str(tmp_path / "out"),
                 "--no-cache"]) == 0
    assert "idle period" in capsys.readouterr().out
    assert sorted(p.name for p in Path(tmp_path / "out").iterdir()) == ["jia2020-figure4.png", "jia2020.json",
                                                                        "jia2020.md"]
    assert main(["jia2020", "--quick", "--parts", "summary", "--output", str(tmp_path / "out")]) == 0
    both = Study.from_json((tmp_path / "out" / "jia2020.json").read_text())
    assert [part.key for part in both.parts] == ["figure4", "summary"] and both.parts[0].processor == processor()
    assert "idle period" in (tmp_path / "out" / "jia2020.md").read_text()
    assert main(["jia2020", "--quick", "--seed", "1", "--parts", "summary", "--output", str(tmp_path / "out")]) == 2
    assert "with seed 0" in capsys.readouterr().err


@pytest.mark.parametrize(("cores", "quick", "timed", "refused"), [
    (1.0, False, 2.0, True), (0.1, False, 2.0, False), (1.0, True, 2.0, False), (1.0, False, None, False)])
def test_processes_are_not_judged_beside_other_work(monkeypatch, cores, quick, timed, refused):
    class Others:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.cores = cores

    def figure1(lab):
        return Part("figure1", "", "", [Line("seconds", 1.0, processes=timed)])

    monkeypatch.setattr(studies, "Foreign", Others)
    monkeypatch.setattr(studies, "parts_of", lambda name, parts: ("", [figure1]))
    with pytest.raises(RuntimeError, match=r"part figure1: .* 1.0 processors busy") if refused else nullcontext():
        assert perform("jia2020", Lab(quick)).parts
