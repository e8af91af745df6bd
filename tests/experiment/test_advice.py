"""`refsgd advise`: kinds are ranked by the formulas, limits reject, evidence exists, commands run and
report what is shown."""

import inspect
import json
import re
import shlex
from functools import partial
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest

from benchmarks.advice import asked
from benchmarks.studies import parts_of
from refsgd import theory
from refsgd.cli import main, parsed
from refsgd.cli.advise import broken
from refsgd.cli.options import machine_of
from refsgd.cluster.links import Link
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import PRESETS
from refsgd.experiment.advice import strategies
from refsgd.experiment.advice.advise import BUDGET, GAIN, advise, filling
from refsgd.experiment.advice.candidates import (
    CANDIDATES,
    COMPRESSED,
    DDP,
    KINDS,
    LARGER,
    ONE,
    P3,
    REPLICAS,
    RING,
    STALE,
    Candidate,
    divided,
)
from refsgd.experiment.advice.strategies import _flags
from refsgd.experiment.arguments import Usage
from refsgd.experiment.prepare import prepare
from refsgd.experiment.run import run
from refsgd.problems.nn import nets
from refsgd.problems.nn.layers import Relu
from refsgd.runtimes.simulator import Simulator

ROOT = Path(__file__).parents[2]
EVIDENCE = {e for c in CANDIDATES for e in c.evidence}
pytestmark = pytest.mark.usefixtures("few_draws_throughout")

FAST = (Candidate("bsp"), Candidate("bsp", beside=True), Candidate("asp", {}, STALE),
        Candidate("allreduce", RING, pytorch="DDP"), Candidate("gosgd", {"p": 0.1}, REPLICAS))
CLUSTER = Machine(compute="fixed(0.2)", latency=1e-4, bandwidth=1.25e9)
SIZES = {"parameters": 25_557_032, "workers": 8}


@pytest.fixture(scope="module")
def everything():
    """All candidates on the cluster."""
    return advise(CLUSTER, **SIZES)


@pytest.fixture(scope="module")
def remembered():
    return {}


@pytest.fixture
def quick_command(monkeypatch, remembered):
    """The command line considers few strategies, and the same question is computed once."""
    def answer(*machine, **sizes):
        if (key := repr((machine, sizes))) not in remembered:
            remembered[key] = advise(*machine, **sizes,
                                     candidates=[*FAST, Candidate("allreduce", RING, LARGER, accumulate=4, label="4"),
                                                 Candidate("dgc", {"ratio": 0.01}, COMPRESSED),
                                                 Candidate("easgd", {"period": 4}, REPLICAS, beside=True)])
        return remembered[key]

    monkeypatch.setattr("refsgd.experiment.advice.advise.advise", answer)


@pytest.fixture
def ring_only(monkeypatch):
    """The command line considers a ring only."""
    monkeypatch.setattr("refsgd.experiment.advice.advise.advise", partial(advise, candidates=[
        FAST[3], FAST[3]._replace(options=DDP, label="ring overlap")]))


def test_a_kind_is_ranked_by_the_formulas():
    found = advise(CLUSTER, **SIZES, candidates=FAST)
    for kind in KINDS:
        seconds = [s.seconds for s in found.strategies if s.kind is kind]
        assert seconds == sorted(seconds)
    (asp,) = [s for s in found.strategies if s.name == "asp K=1"]
    expected = theory.predict("asp", CLUSTER, workers=8, servers=1, nbytes=4 * 25_557_032, batch=32,
                              steps=100, options={})
    assert asp.figure("idle_ratio") == expected["idle_ratio"].value
    assert asp.seconds == pytest.approx(expected["seconds"].value / 100 * 196)  # 195 whole steps, a short one
    assert asp.images_per_second == pytest.approx(50_000 / asp.seconds)
    assert asp.efficiency == pytest.approx(0.2 / expected["seconds"].value * 100)


def test_strategies_are_grouped_by_kind_against_synchronous_allreduce(everything):
    """Passes are comparable only within one kind: what is fastest of all, gossip, must not lead."""
    kinds = [s.kind for s in everything.strategies if not s.rejected]
    assert list(dict.fromkeys(kinds)) == list(KINDS) and kinds == sorted(kinds, key=KINDS.index)
    assert everything.baseline.name.startswith("allreduce")
    assert min(everything.strategies, key=lambda s: s.seconds).kind is REPLICAS


def test_without_a_fitting_allreduce_another_is_the_baseline():
    found = advise(CLUSTER, **SIZES, candidates=[c for c in FAST if not c.pytorch])
    assert found.baseline.name == "bsp K=n" and "bsp K=n" in found.recommendation
    assert advise(CLUSTER, **SIZES, candidates=FAST, memory_limit=1e6).recommendation == ""


def test_the_best_of_a_kind_changes_with_the_link():
    """Ring: 2 (n-1) latencies and 2 (n-1)/n transfers; one server: 2 latencies and n + 1 transfers. Each
    wins somewhere."""
    two = (Candidate("bsp"), Candidate("allreduce", RING))
    best = [advise(CLUSTER.with_(latency=late), **SIZES, candidates=two).strategies[0].name for late in (0, 0.5)]
    assert best == ["allreduce ring", "bsp K=1"]


def test_gradients_that_are_dropped_are_no_progress():
    """With times that do not vary a backup worker gains nothing: 7 of 8 gradients count."""
    without, spare = (advise(Machine(compute="fixed(0.2)"), **SIZES, candidates=[c]).strategies[0]
                      for c in (Candidate("bsp", {}), Candidate("backup-workers", {"backups": 1}, dropped=1)))
    assert spare.efficiency == pytest.approx(7 / 8 * without.efficiency) and spare.seconds == pytest.approx(8 / 7 * without.seconds)


OPTIMISERS = (({}, 0), ({"momentum": 0.9}, 1), ({"optimiser": "adam"}, 2))


@pytest.mark.parametrize(("rule", "state"), OPTIMISERS)
def test_memory_is_what_a_framework_keeps(rule, state):
    """Parameters, gradient, state and activations, without the vectors that this library's functions create;
    for servers theirs, and for a codec what it has left out."""
    some = [Candidate("allreduce", RING), Candidate("bsp"), Candidate("bsp", beside=True),
            Candidate("allreduce", {**RING, "compress": "topk:0.01"}, COMPRESSED)]
    found = advise(CLUSTER, parameters=1000, workers=8, batch=4, activations=500.0, candidates=some, **rule)
    held = {s.name: dict(s.memory) for s in found.strategies}
    own = {"parameters": 4000, "gradient": 4000, "activations": 2000}
    kept = {"optimiser state": 4000 * state} if state else {}
    assert held["allreduce ring"] == own | kept and held["allreduce ring topk:0.01"] == own | kept | {
        "codec residual": 4000}
    served = {f"server's {term}": size for term, size in {"parameters": 4000, "gradient": 4000, **kept}.items()}
    assert held["bsp K=1"] == max([own, served], key=lambda terms: sum(terms.values()))
    assert held["bsp K=n"] == own | {term: size / 8 for term, size in served.items()}


def test_activations_are_those_that_a_framework_saves():
    """Outputs of convolutions and of relus, which overwrite those of a batch normalisation; by hand for one
    block: 8x8x16 after conv1, its relu, ..."""
    net = nets.build("vgg16", (32, 32, 3))
    rows = net.leaves
    assert net.saved == sum(row.activation_bytes for row, after in pairwise(rows) if not isinstance(
        after.layer, Relu)) + rows[-1].activation_bytes < net.held(1)


def oldest(machine, steps):
    """Seconds that the slowest message of a run of GoSGD was on its way."""
    found = run("gosgd", p=0.1, net="shapes:1000000", data="none", workers=4, steps=steps, machine=machine)
    return max(t.received - t.sent for t in found.trace.transits)


def test_messages_that_pile_up_are_rejected():
    """p M/B = 0.4 s an iteration: of 0.5 s it is carried, of 0.25 s it is not, and messages grow older
    the longer a run is."""
    for compute, piles in (("fixed(0.5)", False), ("fixed(0.25)", True)):
        machine = Machine(compute=compute, bandwidth=1e6)
        (s,) = advise(machine, parameters=1_000_000, workers=4,
                      candidates=[Candidate("gosgd", {"p": 0.1}, REPLICAS)]).strategies
        assert ("pile up" in s.rejected) == piles
        assert (oldest(machine, 1600) > 2.5 * oldest(machine, 400)) == piles


def measured_idleness(command, capsys):
    """What the run that a printed command starts reports."""
    assert main([*shlex.split(command)[1:], "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)["measured"]["idle_ratio"]


@pytest.mark.parametrize("candidates", [
    [Candidate("allreduce", {"collective": "ring"}), Candidate("bsp", {}), Candidate("asp", {}, STALE),
     Candidate("gosgd", {"p": 0.1}, REPLICAS)],
    pytest.param(CANDIDATES, marks=pytest.mark.slow)])
def test_the_command_reports_the_idleness_that_is_shown(candidates, capsys):
    """One worker at half speed; strategies as they are, without that worker and with work by speed, to 4
    percentage points."""
    machine = Machine(compute="lognormal(0.2,0.1)", latency=1e-4, bandwidth=1.25e9, speeds=(1, 1, 1, 0.5))
    found = advise(machine, parameters=25_557_032, workers=4, images=4 * 32 * 20, candidates=candidates)
    assert {s.candidate.algorithm for s in found.strategies} == {c.algorithm
                                                       for c in candidates} and sum(
                                                           s.variant != "" for s in found.strategies) >= 6
    for s in found.strategies:
        if s.candidate.accumulate > 1:  # its command runs the exchanging step alone, and says so
            continue
        assert s.figure("idle_ratio") == pytest.approx(measured_idleness(s.command, capsys), abs=0.04), s.name


def test_a_worker_that_ends_early_is_idle(capsys):
    """GoSGD waits for nobody, but of equal numbers of steps a slow worker's end last: 1 - (1 + 1/4)/2
    with one of two at a quarter."""
    found = advise(CLUSTER.with_(speeds=(1.0, 0.25)), parameters=1000, workers=2,
                   candidates=[Candidate("gosgd", {"p": 0.1}, REPLICAS)])
    idle = {s.variant: s.figure("idle_ratio") for s in found.strategies}
    assert idle[""] == pytest.approx(0.375)
    assert idle["work by speed"] == pytest.approx((1 - 51 * 0.25 / 13) / 2, abs=1e-5)  # 64 images as 51 and 13
    (plain,) = [s for s in found.strategies if not s.variant]
    assert measured_idleness(plain.command, capsys) == pytest.approx(0.375, abs=0.01)


def test_a_slow_node_is_dropped_or_given_less_work():
    """Three workers at full speed and one at half, 0.2 s, no network: 0.4 s for 128 images; 0.2 s for 96;
    0.2 x 37/32 s for 128, as 37, 37, 36 and 18."""
    found = advise(Machine(compute="fixed(0.2)", speeds=(1, 1, 1, 0.5)), parameters=1000, workers=4,
                   images=128 * 3, activations=1e6,
                   candidates=[Candidate("allreduce", {"collective": "ring"})])
    by = {s.variant: s for s in found.strategies}
    assert {name: s.seconds for name, s in by.items()} == pytest.approx(
        {"": 3 * 0.4, "without worker3": 4 * 0.2, "work by speed": 3 * 0.2 * 37 / 32}, rel=1e-5)
    assert by["work by speed"].needs > by[""].needs  # the fast workers' batches are larger
    assert by["work by speed"].name in found.recommendation
    assert "--batch 37,37,36,18 --steps 3" in by["work by speed"].command
    assert "--workers 3" in by["without worker3"].command and "--speeds" not in by["without worker3"].command
    assert {s.name for s in found.tries} == {s.name for s in found.strategies}


def test_what_is_recommended_is_among_the_tries():
    """With 10 ms of latency a ring of 16 loses to servers on all nodes, whose work by speed is recommended if
    PyTorch's counterpart of the ring does not count."""
    found = advise(Machine(compute="fixed(0.16)", latency=0.01, bandwidth=1.25e9,
                           speeds=(1,) * 14 + (0.5, 0.4)), parameters=25_557_032, workers=16,
                   candidates=[c._replace(pytorch="") for c in FAST])
    best = re.match(r"Start with (.*?): ", found.recommendation)[1]
    assert best == "bsp K=n, work by speed" and best in [s.name
                                                         for s in found.tries] and found.baseline in found.tries


def test_a_faster_variant_that_is_not_recommended_is_named_with_the_reason():
    """15 workers and one at half speed, 0.2 s, no network: 67 steps take 13.4 s without it; batches by speed, 15
    of 33 and one of 17 images, take 63 steps or 13.39 s, less than 5 % faster; 25.2 s with equal batches."""
    found = advise(Machine(compute="fixed(0.2)", speeds=(1,) * 15 + (0.5,)), parameters=1000, workers=16,
                   images=32_000, activations=1e6,
                   candidates=[Candidate("allreduce", {"collective": "ring"})])
    assert found.recommendation.startswith(
        "Start with allreduce ring on 15 nodes, leaving out the slow worker15: 13.4 s a pass instead of 25.2 s. "
        "Batches in proportion to speed, 15x33,17, take 13.39 s; in PyTorch they need a custom sampler. "
        "No strategy of another kind")
    two = advise(Machine(compute="fixed(0.2)", speeds=(1,) * 60 + (0.5, 0.5)), parameters=1000, workers=62,
                 candidates=FAST[3:4])
    assert "on 60 nodes, leaving out the 2 slowest: " in two.recommendation


def test_a_command_reports_the_metrics_that_are_printed(capsys):
    """100 steps of the 391 of a pass, or all 10 of a short one."""
    for images, steps in ((50_000, 100), (1280, 10)):
        found = advise(CLUSTER.with_(speeds=(1,) * 3 + (0.8,)), parameters=1000, workers=4, images=images,
                       candidates=FAST[3:4])
        (s,) = [s for s in found.strategies if not s.variant]
        assert f"--steps {steps} " in s.command
        assert main([*shlex.split(s.command)[1:], "--json", "-"]) == 0
        measured = json.loads(capsys.readouterr().out)["measured"]
        assert s.figure("seconds") == pytest.approx(measured["seconds"], rel=1e-3)
        assert s.figure("idle_ratio") == pytest.approx(measured["idle_ratio"], abs=0.006)


def test_several_slow_nodes_are_dropped_together_and_none_where_all_are_alike(everything):
    found = advise(CLUSTER.with_(speeds=(1, 0.5, 0.5, 0.8)), parameters=1000, workers=4, candidates=FAST[3:4])
    assert {s.variant for s in found.strategies} == {"", "without the 2 slowest", "work by speed"}
    assert not any(s.variant for s in everything.strategies)
    assert not any(s.variant for s in advise(CLUSTER.with_(speeds=(2, 2)), parameters=1000, workers=2,
                                             candidates=FAST[3:4]).strategies)


def test_a_variant_of_a_described_machine_is_run_as_it_is_predicted(tmp_path, capsys):
    (tmp_path / "m.json").write_text(json.dumps(Machine(compute="fixed(0.2)", speeds=(1, 1, 0.5)).to_json()))
    machine = Machine(compute="fixed(0.2)", speeds=(1, 1, 0.5))
    for s in advise(machine, parameters=1000, workers=3, candidates=FAST[3:4],
                    name=str(tmp_path / "m.json")).strategies:
        assert measured_idleness(s.command, capsys) == pytest.approx(s.figure("idle_ratio"), abs=1e-9)


NET = "shapes:resnet18:8@16x16x3"
SMALL = {"parameters": nets.build("resnet18:8", (16, 16, 3), 10).parameters, "workers": 2, "images": 64, "net": NET}
BUCKETS = Candidate("allreduce", {**RING, "overlap": "backward", "bucket": 100_000}, pytorch="DDP", label="ring overlap")
SLOW = Machine(compute="fixed(3)", bandwidth=2 * SMALL["parameters"])  # 2 s of a ring's exchange


def test_exchange_overlaps_with_the_backward_pass():
    """What the backward pass of 2 s hides is saved, and the first bucket's exchange is not."""
    found = advise(SLOW, **SMALL, candidates=[FAST[3], BUCKETS])
    overlapped, serial = found.strategies
    assert (serial.seconds, serial.figure("idle_ratio")) == (pytest.approx(5), pytest.approx(0.4))
    assert 3 < overlapped.seconds < 3.5 and overlapped.figure("idle_ratio") == pytest.approx(1 - 3 / overlapped.seconds)
    assert overlapped.binding == "transfer" and "--overlap backward --bucket 100000" in overlapped.command
    assert found.baseline.name == "allreduce ring overlap"


@pytest.mark.parametrize("candidate", [BUCKETS, Candidate("allreduce", {**RING, "compress": "fp16"}), Candidate("bsp", P3, beside=True)])
def test_the_command_of_an_exchange_runs_as_it_is_predicted(candidate, capsys):
    found = advise(SLOW, **SMALL, candidates=[candidate])
    (s,) = found.strategies
    assert measured_idleness(s.command, capsys) == pytest.approx(s.figure("idle_ratio"), abs=1e-5)


def test_what_does_not_overlap():
    """Without a net nothing says what may; and latencies of many buckets may cost more than overlap saves."""
    late = SLOW.with_(latency=3)
    assert [s.name for s in advise(late, **SMALL, candidates=[FAST[3], BUCKETS]).strategies] == [
        "allreduce ring", "allreduce ring overlap"]
    for given in ({**SMALL, "net": ""}, {**SMALL, "overlap": False}):
        found = advise(late, **given, candidates=[FAST[3], BUCKETS])
        assert [s.name for s in found.strategies] == ["allreduce ring"] and "add computing" in found.unknown[-1]


def test_compression_is_a_kind_of_its_own():
    """Fewer bytes of each gradient cost something that no time shows: it is no baseline of one model."""
    half = Candidate("allreduce", {**RING, "compress": "fp16"}, COMPRESSED, label="ring fp16")
    found = advise(CLUSTER, **SIZES, candidates=[FAST[3], half])
    assert {s.name: s.kind for s in found.strategies} == {
        "allreduce ring": ONE, "allreduce ring fp16": COMPRESSED}
    assert found.baseline.name == "allreduce ring"


def test_resnet_on_ten_gigabit_with_overlap():
    """16 workers: at least a fifth of a ring's exchange stays exposed, and a quarter of the time is saved."""
    mean = 3 * 32 * sum(r.flops for r in nets.build("resnet50", (224, 224, 3), 1000).leaves) / 5e12
    found = advise(Machine(compute=f"fixed({mean})", latency=5e-5, bandwidth=1.25e9), parameters=25_557_032,
                   workers=16, images=512, candidates=[FAST[3], FAST[3]._replace(options=DDP, label="ring overlap")], net="shapes:resnet50@224x224x3")
    (s,) = [s for s in found.strategies if s.name == "allreduce ring overlap"]
    moved = 2 * 15 * (5e-5 + 4 * 25_557_032 / 16 / 1.25e9)
    assert mean + moved / 5 < s.seconds < 0.75 * (mean + moved)


def test_the_recommendation_is_two_sentences(everything):
    """It starts with one model, says what the fastest of another kind would take, and is honest about
    accuracy."""
    first, second = everything.recommendation.split(". ", 1)
    other = next(s for s in everything.strategies if second.startswith(s.name))
    least = min(s.seconds for s in everything.strategies)
    assert first.startswith(f"Start with {everything.baseline.name}: ") and first.endswith(
        "up-to-date parameters")
    assert other.kind is not ONE and other.seconds <= GAIN * least
    assert "may improve accuracy less" in second and second.count(". ") == 0
    start = next(s for s in everything.strategies if first.startswith(f"Start with {s.name}: "))
    assert f"it pays if it needs fewer than {start.seconds / other.seconds:.2f} times the passes." in second
    alone = advise(Machine(compute="fixed(0.2)"), parameters=1000, workers=4, candidates=FAST)
    assert alone.recommendation.endswith("so a loss of accuracy would buy nothing.")


def test_a_backup_is_not_recommended_where_it_would_drop_the_same_worker():
    many = [FAST[3], Candidate("backup-workers", {"backups": 1}, dropped=1)]
    found = advise(Machine(compute="fixed(0.2)", latency=0.01, speeds=(1,) * 7 + (0.2,)), parameters=1000,
                   workers=8, candidates=many)
    assert {s.candidate.algorithm: s.seconds for s in found.strategies
            if not s.variant}["backup-workers"] < 0.5 * found.baseline.seconds
    assert "backup-workers" not in found.recommendation


def test_one_of_each_kind_is_worth_a_try(everything):
    found = everything
    assert [s.kind for s in found.tries] == list(KINDS)
    for kind in KINDS:
        fastest = min(s.seconds for s in found.strategies if s.kind is kind and not s.rejected)
        assert any(s.seconds <= 1.02 * fastest for s in found.tries if s.kind is kind)
    limited = advise(CLUSTER, **SIZES, staleness_limit=0.5, candidates=FAST)
    assert [s.kind for s in limited.tries] == [ONE, REPLICAS]


def test_pages_exist(everything):
    pages = {f"docs/algorithms/{s.candidate.algorithm}" for s in everything.strategies} | {
        f"docs/studies/{e.study}" for c in CANDIDATES for e in c.evidence} | {"docs/howto/advise"}
    assert not [page for page in pages if not (ROOT / f"{page}.md").exists()]


def test_limits_reject_and_say_why():
    found = advise(CLUSTER, **SIZES, candidates=FAST, staleness_limit=2.0)
    out = {s.name: s.rejected for s in found.strategies if s.rejected}
    assert list(out) == ["asp K=1"] and "at most 2 allowed" in out["asp K=1"] and found.tries
    assert found.strategies[-1].name == "asp K=1"
    assert all(s.rejected for s in advise(CLUSTER, **SIZES, candidates=FAST, memory_limit=1e6).strategies)


@pytest.mark.parametrize("speeds", [(1.0,), (1.0, 0.25)])
def test_a_backup_that_would_leave_no_gradient_is_rejected(speeds):
    found = advise(CLUSTER.with_(speeds=speeds), parameters=1000, workers=len(speeds),
                   candidates=[Candidate("backup-workers", {"backups": 1}, dropped=1), FAST[0]])
    assert sum("1 of 1 gradient dropped" in s.rejected for s in found.strategies) == 1


def test_a_pipeline_on_many_nodes_need_not_divide_four():
    pipeline = Candidate("gpipe", {"stages": 3, "micro": 3}, nodes=3)
    (s,) = advise(CLUSTER, parameters=6_590_976, workers=66, batch=1, net="shapes:transformer:8,256,8,64,1000",
                  candidates=[pipeline]).strategies
    assert not s.rejected and s.seconds < float("inf")


def test_a_model_that_fits_no_node_is_divided_and_trains_on_two(capsys):
    net = nets.build("tiny", (8, 8, 1))
    asked = {"parameters": net.parameters, "workers": 2, "batch": 256, "net": "shapes:tiny@8x8x1", "candidates": FAST,
             "activations": sum(row.activation_bytes for row in net.leaves)}
    machine = Machine(compute="fixed(0.02)", bandwidth=1e8)
    assert not {"zero", "gpipe"} & {s.candidate.algorithm for s in advise(machine, **asked, memory_limit=1e9).strategies}
    found = advise(machine, **asked, memory_limit=2e6)
    best = found.baseline
    assert best.candidate.algorithm == "gpipe" and best.needs <= 2e6 and "the model is divided" in found.recommendation
    assert all("MB of memory, 2.00 MB available" in s.rejected for s in found.strategies if s.needs > 2e6)
    _, *command = shlex.split(best.command.replace("--net shapes:tiny@8x8x1 --data none", "--data digits --lr 0.3"))
    assert main([*command, "--steps", "12", "--json", "-"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["accuracy"]["test"] > 0.5, trained["accuracy"]
    assert main([*shlex.split(best.command)[1:], "--steps", "12", "--json", "-"]) == 0  # equal batches, equal times
    assert json.loads(capsys.readouterr().out)["measured"]["seconds"] == pytest.approx(trained["measured"]["seconds"], rel=0.05)


def test_every_piece_of_evidence_is_a_part_of_a_study():
    for e in EVIDENCE:
        assert e.part in [f.__name__ for f in parts_of(e.study)[1]]


@pytest.mark.slow
def test_the_evidence_is_what_the_studies_say(quick):
    wanted = EVIDENCE
    for name in {e.study for e in wanted}:
        verdicts = {c.says: c.verdict for c in quick(name).claims}
        for e in wanted:
            if e.study == name:
                assert verdicts[e.says] in ("holds", "holds in shape"), e


def test_every_figure_names_its_formula(everything):
    for s in everything.strategies:
        assert {"seconds", "seconds_per_iteration", "idle_ratio"} <= set(s.metrics), s.name
        assert all(p.formula or name.startswith("memory") for name, p in s.metrics.items()), s.name


NAMED = ("dgx-8", "ipdps21-6x4-10g", "laptop")


@pytest.mark.parametrize("preset", [p if p in NAMED else pytest.param(p, marks=pytest.mark.slow) for p in PRESETS])
def test_every_preset_filled_has_an_answer(preset, capsys, monkeypatch):
    """Within two and a half times its events, of which two are for the first strategy (`benchmarks.advice` has the
    seconds); each strategy is compared, or the advice says why not."""
    budget, happened, step = 50_000 if preset in NAMED else BUDGET, [0], Simulator.__next__

    def counted(simulator):
        happened[0] += 1
        return step(simulator)

    monkeypatch.setattr(Simulator, "__next__", counted)
    assert main([*asked(preset), "--budget", str(budget)]) == 0
    assert happened[0] < 2.5 * budget
    found = json.loads(capsys.readouterr().out)
    assert found["recommendation"].startswith("Start with allreduce ")
    said = " ".join([*(s["name"] for s in found["strategies"]), *found["unknown"]])
    assert not [c.name for c in CANDIDATES if c.name not in said]
    assert {s["workers"] for s in found["strategies"]} == {filling(PRESETS[preset].machine)[0]}


LINKS = {"compute": "fixed(0.2)", "latency": 1e-4, "bandwidth": 1e6}
RACKS = {**LINKS, "groups": "2x2", "uplink": "1ms,1MB/s"}
OWN, BESIDE = "on a host of its own", "on host0, with workers"


@pytest.mark.parametrize(("machine", "few"), [
    (LINKS, OWN), ({**LINKS, "hosts": "2x2"}, OWN), ({**LINKS, "hosts": "2x2", "colocated": True}, BESIDE),
    ({**LINKS, "hosts": "1x4", "inside": "1us,1GB/s", "colocated": True}, BESIDE),
    ({**LINKS, "hosts": "cyclic:4"}, BESIDE), ({**LINKS, "hosts": "cyclic:2", "cores": 1}, BESIDE),
    ({**RACKS, "hosts": "cyclic:4"}, BESIDE), ({**RACKS, "hosts": "4x1"}, BESIDE),
    (RACKS, "on worker0, with workers"),
    ({**LINKS, "hosts": "worker0,worker1; worker2,worker3"}, BESIDE),
    ({**LINKS, "hosts": "worker0,worker1; worker2,worker3; server0"}, OWN),
    ({**LINKS, "hosts": "worker0,worker1,worker2,worker3; server0; server1"}, "on hosts of their own")])
def test_servers_are_placed_and_the_advice_says_where(machine, few, capsys):
    """The command's run takes the time that is shown, wherever the servers are."""
    found = advise(Machine(**machine), parameters=10_000, workers=4, images=4 * 32 * 3,
                   candidates=[Candidate("bsp"), Candidate("bsp", beside=True), Candidate("asp", {}, STALE)])
    where = {s.name: s.where for s in found.strategies}
    count = 2 if "own" in few and "hosts" in few else 1
    assert where == {f"bsp K={count}": few, "bsp K=n": "on each worker's host", f"asp K={count}": few}
    for s in found.strategies:
        assert main([*shlex.split(s.command)[1:], "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["measured"]["seconds"] == pytest.approx(s.figure("seconds"))


@pytest.mark.parametrize(("machine", "expected"), [
    ({"hosts": "2x8"}, (16, 1)), ({"hosts": "cyclic:4"}, (4, 1)), ({"groups": "2x8", "uplink": "1ms,1Gbps"}, (16, 1)),
    ({"hosts": "worker0,worker1,server0; server1"}, (2, 2)), ({"speeds": "15x1,0.5"}, (16, 1)),
    ({"compute": "3x 20ms; 40ms"}, (4, 1)), ({}, (8, 1))])
def test_workers_fill_the_machine(machine, expected):
    assert filling(Machine(**machine)) == expected


def test_a_pass_ends_with_the_workers_that_a_server_serves_last():
    """Two workers have the server on their host, and six share its link, 6 s an iteration: a short run has the
    pace of the six, not the mean of all."""
    machine = Machine(compute="lognormal(0.1,0.1)", bandwidth=4e6, hosts="4x2", colocated=True)
    (s,) = advise(machine, parameters=1_000_000, images=8 * 32 * 50, budget=3000,
                  candidates=[Candidate("asp", {}, STALE)]).strategies
    assert s.metrics["seconds"].kind == "simulated" and s.seconds == pytest.approx(50 * 6, rel=0.2)
    assert s.figure("seconds_per_iteration") < 0.5


def test_what_the_budget_leaves_out_is_named():
    """A ring of 8 has 112 messages an iteration; a third of 200 events is enough for servers only."""
    machine = Machine(compute="fixed(0.2)", bandwidth=1e9, hosts="cyclic:8")
    found = advise(machine, parameters=1000, budget=200, candidates=[Candidate("bsp"), FAST[3]])
    assert [s.name for s in found.strategies] == ["bsp K=1"]
    assert found.unknown[-1].startswith("what allreduce ring would take: a simulated iteration has too many events")
    assert "200" in found.unknown[-1]
    with pytest.raises(Usage, match="no strategy can be simulated with 10 events; expected more: --budget"):
        advise(machine, parameters=1000, budget=10, candidates=FAST[3:4])


def test_messages_of_pieces_are_counted_not_simulated(monkeypatch):
    """20,157 pieces of a megabyte, sent and received twice by each of eight workers, are 645,000 events."""
    monkeypatch.setattr(strategies, "Simulator", None)
    pieces = [c for c in CANDIDATES if c.piece]
    found = advise(Machine(compute="fixed(0.2)", bandwidth=1e9), net="shapes:transformer:24,4096,32,64,50257", parameters=5_039_239_168,
                   budget=150_000, candidates=[FAST[3], *pieces])
    assert len(pieces) == 2 and [s.name for s in found.strategies] == ["allreduce ring"]
    assert found.unknown[-1].startswith("what bsp P3 K=n, asp P3 K=n would take: a simulated iteration has too many events")


def test_times_are_in_hours_not_in_powers_of_ten(capsys, ring_only):
    """1.3 billion parameters on 10 Gbps."""
    assert main(["advise", "--parameters", "1.3e9", "--compute", "1s", "--workers", "16", "--bandwidth", "10Gbps",
                 "--images", "10000000"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"Start with allreduce ring: \d{2}\.\d+ h a pass", out) and not re.search(r"e\+\d+ (s|ms|min|h)\b", out)


def test_wrong_use():
    with pytest.raises(ValueError, match="workers 0"):
        advise(CLUSTER, parameters=1, workers=0)
    with pytest.raises(ValueError, match=r"fixed\(1\); fixed\(0\) of mean 0, to which advice compares all other time"):
        advise(CLUSTER.with_(compute="1; 0"), parameters=1, workers=2)
    with pytest.raises(ValueError, match="no distribution of compute times"):
        advise(Machine(), parameters=1, workers=2)
    assert main(["advise"]) == 2
    assert main(["advise", "--parameters", "1000"]) == 2
    assert main(["advise", "--parameters", "1000", "--rate", "1e9"]) == 2
    assert main(["advise", "--net", "nothing", "--rate", "1e9"]) == 2


@pytest.mark.parametrize(("flags", "said"), [
    ("--memory -1", "memory of -1 bytes; expected a number > 0"), ("--memory 0", "memory of 0 bytes"),
    ("--memory nan", "memory of nan bytes"),
    ("--max-staleness -1", "mean staleness of at most -1 updates; expected a number >= 0"),
    ("--max-staleness nan", "mean staleness of at most nan"),
    ("--rate 1e9", "--rate 1e+09 and --compute fixed(0.2); expected one of the two"),
    ("--net tiny --image 8,8,1", "--net tiny and --parameters 1000; expected one of the two")])
def test_limits_that_are_none_and_what_is_said_twice_are_refused(flags, said, capsys):
    assert main(["advise", "--parameters", "1000", "--compute", "fixed(0.2)", *flags.split()]) == 2
    assert said in capsys.readouterr().err


def test_flops_beside_a_net_are_refused(capsys):
    assert main(["advise", "--net", "tiny", "--image", "8,8,1", "--flops", "5", "--rate", "1e9"]) == 2
    assert "--net tiny and --flops 5; expected one of the two" in capsys.readouterr().err


def test_limits_that_exclude_nothing_are_taken():
    assert not [s for s in advise(CLUSTER, **SIZES, candidates=FAST, memory_limit=float("inf")).strategies
                if s.rejected]
    assert [s.rejected
            for s in advise(CLUSTER, **SIZES, candidates=FAST[:1], staleness_limit=0).strategies] == [""]


def test_the_commands_it_gives_run(capsys):
    found = advise(CLUSTER, parameters=1000, workers=3, candidates=FAST)
    for s in found.strategies:
        program, *arguments = shlex.split(s.command)
        assert program == "refsgd" and main([*arguments, "--steps", "2"]) == 0
    capsys.readouterr()


FULL = Machine(f"2x empirical({','.join(map(str, range(1, 10)))}); fixed(0.123456789); 1", latency=1e-5, bandwidth=1e9, duplex="half", update=0.00123456789, hosts="cyclic:4", groups="2x2",
               inside="10us,32GB/s,half", uplink=Link(0.0123456789, 1.25e8), speeds=(1, 1, 2, 1 / 3), server_speeds=(1, 0.5),
               loads="worker1: 1@0, 3@30; server0: 2@1")
PLAIN = Machine("device(1.23456789TFLOPS,0,1GB/s,lognormal(1,0.123456789))", latency=1e-5, bandwidth=1e9)


@pytest.mark.parametrize(("base", "machine"), [*permutations((FULL, PLAIN, PLAIN.with_(colocated=True)), 2)])
def test_flags_turn_one_machine_into_another(base, machine, monkeypatch):
    """Whatever one of them has and the other has not."""
    experiment = prepare("bsp", net="shapes:tiny", data="none", workers=4, servers=2, steps=2, machine=machine)
    monkeypatch.setattr("refsgd.cli.options.load_timed", lambda _: (base, None))
    line = ["run", "bsp", *shlex.split(_flags(experiment, "base", base))]
    assert machine_of(parsed(line)) == machine


def test_a_command_describes_the_machine(capsys, tmp_path):
    """Folded on lines that a shell joins; run, it is the machine that was asked about."""
    asked = Machine(compute="lognormal(0.2,0.1)", latency=1e-4, bandwidth=1.25e9, update=0.01,
                    speeds=(1, 1, 0.25))
    (s,) = [s for s in advise(asked, parameters=1000, workers=3, candidates=[Candidate("asp", {}, STALE)]).strategies
            if not s.variant]
    folded = "\n".join(broken(s.command, 60))
    assert len(folded.splitlines()) > 2 and max(map(len, folded.splitlines())) <= 70
    assert shlex.split(folded.replace("\\\n", "")) == shlex.split(s.command)
    assert main([*shlex.split(s.command)[1:], "--steps", "2", "--json", "-"]) == 0
    assert Machine.from_json(json.loads(capsys.readouterr().out)["machine"]) == asked


@pytest.mark.parametrize("columns", [80, 100, 120])
@pytest.mark.parametrize("cluster", [
    "--parameters 138357544 --compute 0.3 --workers 32 --latency 2e-6 --bandwidth 7e9 --memory 12e9",
    "--parameters 11689512 --compute 0.35 --workers 4 --speeds 1,1,1,0.25 --latency 1e-4 --bandwidth 125e6"])
def test_it_fits_into_the_terminal(cluster, columns, capsys, monkeypatch, quick_command):
    """No line is longer than the terminal is wide, no name and no unit is cut; columns go instead, and it
    says which."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["advise", *cluster.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns and "…" not in "".join(lines)
    at = next(k for k, line in enumerate(lines) if line.strip().startswith("strategy "))
    header = lines[at]
    shown = [name for name in ("pass", "factor", "iteration", "images/s", "eff", "idle", "stale", "sent", "memory",
                                "waits for", "see")
             if name in header]
    assert {"pass", "factor", "eff"} <= set(shown)
    assert ("left out at this width" in " ".join(" ".join(lines).split())) == (len(shown) < 11)
    table = lines[at + 1:next(k for k, line in enumerate(lines) if line.startswith("How to read it"))]
    rows = [line for line in table if re.search(r" x[\d.]+ ", line)]
    assert len(rows) >= 6 and all(line.split()[0] for line in rows)
    for line in rows:
        assert "sent" not in header or re.search(r"\d [kMG]B", line), line
    assert any("gosgd" in line or "easgd" in line
               for line in lines[lines.index(next(t for t in lines if t.startswith("Try them"))):])


def test_the_table_has_a_section_for_each_kind(capsys, quick_command):
    assert main(["advise", "--parameters", "11689512", "--compute", "0.35", "--workers", "4", "--bandwidth",
                 "125e6", "--speeds", "1,1,1,0.25"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    titles = [kind.title[0].upper() + kind.title[1:] for kind in KINDS]
    assert [line for line in lines if line in titles] == titles
    ring = next(k for k, line in enumerate(lines) if line.startswith("+ allreduce ring "))
    assert {line.split("  ")[0] for line in lines[ring + 1:ring + 3]} == {"without worker3", "work by speed"}


@pytest.mark.parametrize(("flags", "said"), [
    (["--net", "resnet18", "--image", "32,32,3", "--rate", "1e10"], "allreduce ring overlap"),
    (["--net", "tiny", "--image", "8,8,1", "--rate", "1e8", "--no-overlap"],
     "Overlap is not applied (--no-overlap)"),
    (["--parameters", "9930", "--compute", "0.1"], "Overlap is not applied (only --net gives layers)")])
def test_it_says_whether_overlap_is_applied_and_why_not(flags, said, capsys, ring_only):
    assert main(["advise", *flags, "--workers", "2", "--bandwidth", "1e7"]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_model_too_large_for_some_is_divided_as_pytorch_can(capsys):
    """1.3 billion parameters, Adam, 16 bytes a parameter, 24 GB: 21 GB and activations fit only where something is
    divided or a server has the optimiser, which PyTorch has not."""
    size = 24 * (12 * 2048**2 + 13 * 2048) + 2048 * (50257 + 2048 + 2)
    assert main(["advise", "--net", "shapes:transformer:24,2048,16,2048,50257", "--workers", "4", "--batch", "2", "--rate",
                 "1e14", "--bandwidth", "25Gbps", "--memory", "24GB", "--optimiser", "adam", "--precision",
                 "mixed", "--budget", "20000", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    by = {s["name"]: s for s in found["strategies"]}
    assert "GB available" in by["allreduce ring"]["rejected"] and not by["zero stage=3"]["rejected"]
    assert by[found["baseline"]]["pytorch"] and found["recommendation"].startswith(f"Start with {found['baseline']}")
    # operations of a token, 6 of each parameter and attention; the largest of four times with a spread of a tenth
    computing = (6 * size + 12 * 24 * 2048 * 2048) * 2 * 2048 / 1e14 * (1 + 1.03 * 0.1)
    for stage in (2, 3):  # each layer is reduced once and gathered once or twice, 4 bytes a number at 25 Gbps
        sent = stage * 3 / 4 * 4 * size / (25e9 / 8)
        step = by[f"zero stage={stage}"]["metrics"]["seconds_per_iteration"]["value"]
        assert step == pytest.approx(computing + sent, rel=0.03)


def test_times_need_not_vary(capsys, ring_only):
    assert main(["advise", "--net", "tiny", "--image", "8,8,1", "--rate", "1e8", "--spread", "0", "--workers", "2",
                 "--bandwidth", "1e7"]) == 0
    assert "device(0.1GFLOPS,0) s" in " ".join(capsys.readouterr().out.split())


def test_pytorch_is_named_where_it_has_the_strategy(everything, capsys, quick_command):
    by = {s.name: s.candidate.pytorch for s in everything.strategies}
    assert "DistributedDataParallel" in by["allreduce ring"] and by["gosgd p=0.1"] == "" and by["bsp K=1"] == ""
    assert "fp16_compress_hook" in by["allreduce ring fp16"] and "period=8" in by["local-sgd period=8"]
    assert main(["advise", "--parameters", "1000", "--compute", "0.1", "--workers", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("in PyTorch:") == out.count("    refsgd run ") >= 4 and "nothing built in" in out


def test_what_pytorch_lacks_is_named_but_not_recommended():
    """With 10 ms of latency a ring of 16 loses to servers on all nodes."""
    late = CLUSTER.with_(latency=0.01)
    said = advise(late, parameters=25_557_032, workers=16, candidates=FAST).recommendation
    assert said.startswith("Start with allreduce ring: ") and re.search(
        r"\. bsp K=n takes [\d.]+ s, but PyTorch has nothing like it built in\.", said)
    own = advise(late, parameters=25_557_032, workers=16, candidates=[c._replace(pytorch="") for c in FAST])
    assert own.recommendation.startswith("Start with bsp K=n: ") and ", servers on each worker's host." in own.recommendation


@pytest.mark.slow  # importing torch takes seconds
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own modules
def test_pytorch_has_what_is_named():
    pytest.importorskip("torch", reason="names are checked against an installed PyTorch")
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data.distributed import DistributedSampler

    text = " ".join(c.pytorch for c in (*CANDIDATES, *divided(2, 32)))
    named = [DistributedDataParallel, PostLocalSGDOptimizer, PeriodicModelAverager,
             powerSGD_hook.PowerSGDState, powerSGD_hook.powerSGD_hook,
             post_localSGD_hook.post_localSGD_hook, DistributedDataParallel.register_comm_hook]
    assert not [each.__name__ for each in named if each.__name__ not in text] and DistributedSampler
    assert "bucket_cap_mb" in inspect.signature(
        DistributedDataParallel).parameters and "period" in inspect.signature(
            PeriodicModelAverager).parameters


def test_predict_and_advise_say_for_which_images_they_count(capsys, ring_only):
    """The same net for the same images has the same bytes; ResNet-50 has more parameters for 224 pixels
    and 1000 classes."""
    assert main(["predict", "allreduce", "--net", "tiny", "--workers", "4"]) == 0
    assert "tiny for 8x8x1 images (digits): 9,930 parameters, 39,720 bytes" in capsys.readouterr().out
    assert main(["predict", "allreduce", "--net", "tiny", "--workers", "4", "--json", "-"]) == 0
    bytes_sent = json.loads(capsys.readouterr().out)["bytes_per_iteration"]["value"]
    flags = ["advise", "--net", "tiny", "--image", "8,8,1", "--rate", "1e9", "--workers", "4"]
    assert main([*flags, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {s["metrics"]["bytes_per_iteration"]["value"] for s in found["strategies"]
            if s["name"] == "allreduce ring"} == {bytes_sent}
    assert main(flags) == 0
    assert "tiny for 8x8x1 images, 10 classes: 9,930 parameters, 39,720 bytes" in capsys.readouterr().out


def test_the_command_line(everything, capsys, monkeypatch):
    """Its options describe the machine and the model that are asked about; every candidate is considered."""
    asked = []
    monkeypatch.setattr("refsgd.experiment.advice.advise.advise",
                        lambda machine, **sizes: asked.append((machine, sizes)) or everything)
    assert main(["advise", "--net", "tiny", "--image", "8,8,1", "--rate", "1e9", "--workers", "3",
                 "--bandwidth", "1e8", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == 2 and len(data["strategies"]) == len(everything.strategies)
    (machine, sizes), = asked
    assert (machine.compute.rate, machine.compute.noise.family, machine.bandwidth) == (1e9, "lognormal", 1e8)
    assert (sizes["parameters"], sizes["workers"]) == (9930, 3) and "candidates" not in sizes


@pytest.mark.parametrize("machine, split", [
    (Machine(compute="device(1TFLOPS,2ms)", speeds=(20, 1)), "61,3"),
    (Machine(compute="device(4TFLOPS); device(1TFLOPS)"), "51,13"), (Machine(compute="20ms; 400ms"), "61,3")])
def test_devices_and_times_of_each_worker_have_a_split_whose_command_runs_it(machine, split, capsys):
    """Batches follow rates, or times; the time of a gradient that of its own batch, overheads included."""
    found = advise(machine, parameters=1000, workers=2, work=3e9, candidates=FAST[3:4])
    by = {s.variant: s for s in found.strategies}
    assert set(by) == {"", "without worker1", "work by speed"} and by["work by speed"].batch == split
    assert f"--batch {split} " in by["work by speed"].command and by["work by speed"].seconds < by[""].seconds
    for s in found.strategies:
        assert measured_idleness(s.command, capsys) == pytest.approx(s.figure("idle_ratio"), abs=1e-5)
    if machine.speeds:  # 61 images on a device 20 times as fast: (2 ms + 61 x 3 ms) / 20; 3 on the other
        assert by["work by speed"].seconds == pytest.approx(782 * (0.002 + 3 * 0.003), rel=1e-6)


def test_the_split_of_a_named_net_on_devices_is_run_by_speed(capsys):
    """The command names net, device and speeds as they are: the run prices each worker's batch itself."""
    net = nets.build("tiny", (8, 8, 1))
    found = advise(Machine(compute="device(1GFLOPS)", speeds=(20, 1)), parameters=net.parameters, workers=2, batch=21,
                   images=42 * 30, work=net.work(1), net="shapes:tiny@8x8x1", candidates=FAST[3:4])
    by = {s.variant: s for s in found.strategies}
    command = by["work by speed"].command
    assert "--net shapes:tiny@8x8x1 " in command and "--batch 40,2 " in command and "--speeds 20,1" in command
    for s in found.strategies:
        assert main([*shlex.split(s.command)[1:], "--json", "-"]) == 0
        seconds = json.loads(capsys.readouterr().out)["measured"]["seconds"]
        assert seconds == pytest.approx(s.seconds, rel=1e-5)
    # the exchange costs nothing here: 20/21 of the fast node alone, a tenth of equal batches
    assert by["work by speed"].seconds / by["without worker1"].seconds == pytest.approx(20 / 21, rel=1e-6)
    assert by["work by speed"].seconds / by[""].seconds == pytest.approx(2 / 21, rel=1e-6)


def test_a_device_needs_the_models_work():
    with pytest.raises(Usage, match="without the model's work, which it prices; expected --net, or --parameters"):
        advise(Machine(compute="device(1TFLOPS)"), parameters=1000, workers=2)


RESNET = {"parameters": 25_557_032, "net": "shapes:resnet50@224x224x3", "workers": 16, "batch": 32}
TEN = Machine(compute="158ms", latency="25us", bandwidth="10Gbps")
RING_TIME = 2 * 15 / 16 * 102_228_128 / 1.25e9 + 30 * 25e-6  #: 154 ms


@pytest.mark.parametrize(("name", "seconds"), [
    ("allreduce ring", 0.158 + RING_TIME),
    # the backward pass is two thirds of a gradient; the first layers' bucket ends after it
    ("allreduce ring overlap fp16", 0.177),
    ("allreduce ring accumulate=4", 4 * 0.158 + RING_TIME),
    ("local-sgd period=8", 0.158 + RING_TIME / 8),
    ("diloco period=64", 0.158 + RING_TIME / 64)])
def test_an_iteration_by_hand(name, seconds):
    """ResNet-50 on 16 nodes with 10 Gbit/s."""
    c = next(c for c in CANDIDATES if c.name == name)
    s, = advise(TEN, **RESNET, candidates=[c]).strategies
    assert s.figure("seconds_per_iteration") == pytest.approx(seconds, rel=0.03)
    assert s.images_per_second == pytest.approx(16 * 32 * c.accumulate / seconds, rel=0.03)


@pytest.mark.parametrize("hosts", [{}, {"hosts": "4x4", "inside": "5us,300GB/s", "colocated": True}])
@pytest.mark.parametrize("own", ["ring", "ring overlap"])
def test_the_exchange_overlaps_the_last_of_accumulated_batches_only(hosts, own):
    """Of a gradient that takes four times as long, as the command once had it, the exchange overlaps more."""
    def iteration(name, **speeds):
        c = next(c for c in CANDIDATES if c.name == f"allreduce {name}")
        s, = advise(TEN.with_(**hosts, **speeds), **RESNET, candidates=[c]).strategies
        idle = sum(s.metrics["idle_by_cause"].terms.values())
        assert idle == pytest.approx(s.figure("idle_ratio"), abs=0.025)
        assert s.efficiency == pytest.approx(1 - idle, abs=0.025)
        return s.figure("seconds_per_iteration")

    assert iteration(f"{own} accumulate=4") == pytest.approx(3 * 0.158 + iteration(own), rel=1e-6)
    longer = iteration(own, speeds=(0.25,) * 16)
    assert (iteration(f"{own} accumulate=4") > 1.02 * longer) == (own == "ring overlap")


def test_workers_that_accumulate_wait_for_the_largest_sum_of_four_gradients():
    c = next(c for c in CANDIDATES if c.name == "allreduce ring accumulate=4")
    s, = advise(TEN.with_(compute="exponential(158ms)"), **RESNET, candidates=[c]).strategies
    sums = np.random.default_rng(0).gamma(4, 0.158, (100_000, 16)).max(axis=1).mean()  # 1.16 s; four of the largest: 2.1
    assert s.figure("seconds_per_iteration") == pytest.approx(sums + RING_TIME, rel=0.01)
    assert s.figure("idle_ratio") == pytest.approx(1 - 4 * 0.158 / (sums + RING_TIME), abs=0.01)


def test_accumulated_batches_hold_the_activations_of_one():
    one, four = (advise(TEN, **RESNET, activations=1e6, candidates=[Candidate("allreduce", RING, accumulate=k)]).strategies[0]
                 for k in (1, 4))
    assert one.memory["activations"] == four.memory["activations"] == 32e6
    assert four.efficiency == pytest.approx(4 * 0.158 / (4 * 0.158 + RING_TIME), rel=0.01)


@pytest.mark.parametrize(("mixed", "options", "each"), [
    (False, {}, 4 + 4 + 8), (True, {}, 2 + 2 + 4 + 8),
    (True, {"stage": 1}, 2 + 2 + (4 + 8) / 16)])
def test_bytes_a_parameter_with_adam(mixed, options, each):
    """Rajbhandari et al. 2020, figure 1: K = 12 bytes of Adam in mixed precision, which ZeRO divides, are the state and
    the copy of the parameters."""
    c = Candidate("zero", options) if options else Candidate("allreduce", RING)
    s, = advise(TEN, parameters=1_000_000 - 1_000_000 % 16, workers=16, optimiser="adam", mixed=mixed, candidates=[c]).strategies
    assert s.needs / 1_000_000 == pytest.approx(each, rel=0.01)
