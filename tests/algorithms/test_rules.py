"""The rate as a function of updates: warm-up, linear scaling and the cosine, at servers and replicas alike."""

import math
from dataclasses import replace

import pytest

import refsgd
from refsgd.algorithms.facts import depends
from refsgd.algorithms.sgd import parse_schedule
from refsgd.experiment.prepare import Usage, prepare
from refsgd.runtimes.simulator import simulate
from tests.catalogue import having

SMALL = {"data": "quadratic", "steps": 6}
OPTIONS = {"softsync": {"splitting": 2}, "downpour": {"push_every": 4}, "backup-workers": {"backups": 2}}


def rates(name, **arguments):
    """Every (update, factor) that a simulated run asks its schedule for."""
    experiment = prepare(name, **SMALL, **arguments)
    seen, schedule = set(), experiment.sgd.schedule

    def spied(t):
        seen.add((t, schedule(t)))
        return schedule(t)

    simulate(replace(experiment, sgd=replace(experiment.sgd, schedule=spied)).deploy, experiment.machine, seed=0)
    return sorted(seen)


@pytest.mark.parametrize("name", having(lambda facts: not facts.unscheduled and facts.updates is not depends))
def test_a_cosine_ends_with_the_last_update_of_every_algorithm(name):
    ends(name, OPTIONS.get(name, {}))


@pytest.mark.parametrize(("name", "options"), [
    ("async-diloco", {"dylu": True, "period": 3}), ("async-rl", {"gradients": 3}), ("approximate", {"centers": 3})])
def test_a_cosine_ends_with_the_last_update_whatever_the_options(name, options):
    ends(name, options)


def ends(name, options):
    """Whether the rates of a run are those of a cosine over the updates that it makes."""
    seen = rates(name, schedule="cosine", **options)
    if name == "downpour":  # a worker's last local steps use the rate of the update that comes next
        seen = [(t, f) for t, f in seen if f]
    last, count = seen[-1][0], seen[-1][0] + 1
    assert last > 0 and [t for t, _ in seen if t == 0], "from update 0 on"
    assert [f for _, f in seen] == pytest.approx([(1 + math.cos(math.pi * t / count)) / 2 for t, _ in seen])


@pytest.mark.parametrize(("name", "options"), [("approximate", {"local": "asp"}), ("approximate", {"local": "ssp"}),
                                               ("async-rl", {"order": "completion", "filter": True})])
def test_a_cosine_without_a_length_is_refused_where_only_the_run_counts_its_updates(name, options):
    with pytest.raises(Usage, match=r"known at its end; expected cosine\(updates\)"):
        prepare(name, schedule="cosine", **SMALL, **options)


def test_the_cosine_by_hand():
    schedule = parse_schedule("cosine(4)")
    assert [schedule(t) for t in range(6)] == pytest.approx([1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4, 0, 0])
    assert parse_schedule("cosine", 4) == schedule


def test_warm_up_by_hand():
    """Goyal et al.: from the rate of one worker, by a constant amount, to that of all; decay counts from 0."""
    sgd = prepare("bsp", lr=0.25, workers=4, warmup=3, scale_lr=True, schedule="step(4,0.5)", **SMALL).sgd
    assert [sgd.rate(t) for t in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1, 0.5, 0.5])
    sgd = prepare("bsp", lr=1.0, warmup=3, **SMALL).sgd
    assert [sgd.rate(t) for t in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1, 1])


def test_servers_and_replicas_move_alike():
    told = {**SMALL, "lr": 0.05, "warmup": 3, "scale_lr": True, "schedule": "cosine"}
    first, *others = [refsgd.run(name, **told).loss for name in ("bsp", "allreduce", "zero")]
    assert others == pytest.approx([first, first], rel=1e-5)
    assert len({refsgd.run(name, workers=1, **told).parameters_sha256
                for name in ("sequential", "bsp", "allreduce", "zero")}) == 1


@pytest.mark.parametrize(("name", "options", "scale"), [
    ("sequential", {}, 1), ("bsp", {}, 4), ("allreduce", {}, 4), ("backup-workers", {"backups": 1}, 3),
    ("softsync", {"splitting": 2}, 2), ("softsync", {}, 4), ("staleness-aware", {"splitting": 2}, 2), ("consgd", {}, 4),
    ("gpipe", {"stages": 2}, 2), ("dpsgd", {}, 4)])
def test_linear_scaling_is_by_the_gradients_of_an_update(name, options, scale):
    assert prepare(name, lr=0.5, scale_lr=True, **SMALL, **options).sgd.lr == 0.5 * scale


@pytest.mark.parametrize("name", having(lambda facts: isinstance(facts.mean_of, str)))
def test_linear_scaling_is_refused_where_no_mean_grows(name):
    with pytest.raises(Usage, match=f"scale_lr with {name}: .*; expected the rate itself"):
        prepare(name, scale_lr=True, **SMALL)


@pytest.mark.parametrize(("told", "line"), [
    ({"schedule": "cosine(0)"}, "at least 1 update"), ({"schedule": "cosine(x)"}, "not understood"),
    ({"schedule": "constant()"}, "not understood"), ({"warmup": -1}, "warmup -1; expected"),
    ({"aggregation": "sum", "scale_lr": True}, "the sum of n gradients"), ({"scale_lr": 1}, "True or False")])
def test_wrong_rates_are_refused(told, line):
    with pytest.raises(ValueError, match=line):
        prepare("bsp", **SMALL, **told)


def test_a_record_repeats_the_rates(tmp_path):
    told = {**SMALL, "warmup": 3, "schedule": "cosine", "scale_lr": True}
    result = refsgd.run("bsp", record=tmp_path / "r", **told)
    assert refsgd.replay(tmp_path / "r").parameters_sha256 == result.parameters_sha256
    refsgd.run("bsp", checkpoint=tmp_path / "c", **SMALL)
    with pytest.raises(ValueError, match="made with warmup None, not 2"):
        refsgd.run("bsp", resume=tmp_path / "c", **SMALL, warmup=2)
