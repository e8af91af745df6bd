"""The IPDPS 2021 study at its quick sizes: orders of accuracy, speed-ups, waiting, techniques."""

import re

import pytest

from benchmarks.studies.ko2021 import _compared, _depends, _ordered
from benchmarks.studies.ko_runs import NETS, SPEEDUP, elsewhere, own_rate, runs, size_of, waits, whole_rate
from benchmarks.studies.ko_scalability import _also_easgd, _cap, _heavier, _saturates, _scaling, _shared
from benchmarks.studies.ko_techniques import (
    SMALL,
    TECHNIQUES,
    _compression,
    _overlap,
    _sharding,
    _together,
    options,
    timed,
    why_not,
)
from benchmarks.studies.lab import Lab, Seen
from refsgd.cluster.machine import Machine
from refsgd.experiment.arguments import Usage
from refsgd.experiment.run import run


def test_an_order_is_judged_by_intervals_only():
    rows = {("a", 4): [0.9, 0.91, 0.9], ("b", 4): [0.8, 0.81, 0.8]}
    assert _ordered("", rows, ("a", "b"), [4]).verdict == "holds in shape"
    assert _ordered("", rows, ("b", "a"), [4]).verdict == "does not hold"
    near = {("a", 4): [0.9, 0.8, 0.85], ("b", 4): [0.84, 0.88, 0.86]}
    assert _ordered("", near, ("a", "b"), [4]).verdict == "not testable"
    assert _ordered("", near, ("a", "b"), [4], or_equal=True).verdict == "not testable"


def test_a_lead_of_less_than_two_test_images_is_a_tie():
    tie = {("a", 4): [0.9, 0.8, 0.85], ("b", 4): [0.897, 0.798, 0.847]}
    claim = _ordered("", tie, ("a", "b"), [4])
    assert claim.verdict == "does not hold" and claim.because.startswith("no lead that counts is left to a over b")
    for columns in (("a", "b"), ("b", "a")):
        assert _ordered("", tie, columns, [4], or_equal=True).verdict == "holds in shape"
    wide = {("a", 4): [0.9, 0.8, 0.85], ("b", 4): [0.89, 0.80, 0.85]}  # a lead of two images is still possible
    assert _ordered("", wide, ("a", "b"), [4]).verdict == "not testable"
    assert _ordered("", {**tie, ("a", 8): [0.9, 0.8, 0.85], ("b", 8): [0.89, 0.80, 0.85]}, ("a", "b"),
                    [4, 8]).verdict == "not testable"  # at one number of workers


def test_an_order_is_by_seed_and_names_what_decides():
    rows = {("a", 4): [0.9, 0.7, 0.5], ("b", 4): [0.9, 0.7, 0.51], ("a", 8): [0.9, 0.7, 0.5],
            ("b", 8): [0.8, 0.61, 0.4], ("c", 4): [0.9, 0.7, 0.5],
            ("c", 8): [0.8, 0.61, 0.4]}
    claim = _ordered("", rows, ("a", "b"), [4, 8])
    assert claim.verdict == "holds in shape" and claim.because.startswith(
        "decided by a above b at 8 workers (")
    claim = _ordered("", rows, ("a", "b", "c"), [4, 8])
    assert claim.verdict == "not testable" and claim.because.startswith("no difference of b over c counts")
    assert _ordered("", rows, ("b", "a"), [4, 8]).because.startswith("a above b at 8 workers (")


def test_a_tie_that_is_none_speaks_against():
    rows = {("a", 4): [0.9, 0.7, 0.5], ("b", 4): [0.9, 0.7, 0.51], ("a", 8): [0.9, 0.7, 0.5],
            ("b", 8): [0.8, 0.61, 0.4]}
    assert _compared("", "", rows, [("a", "b", 8)], [("a", "b", 4)]).verdict == "holds in shape"
    assert _compared("", "", rows, [("a", "b", 4)], [("a", "b", 8)]).verdict == "does not hold"


def test_both_parameters_must_show():
    flat = {(p, a): [0.9, 0.8, 0.85] for p in (1, 16) for a in (0.02, 0.1)}
    assert _depends(flat).verdict == "does not hold"  # equal on every seed
    one = {(p, a): [x - p / 100 for x in found] for (p, a), found in flat.items()}
    assert _depends(one).because.startswith("no difference that counts by moving rate 0.1 over 0.02 (")
    noisy = {**one, (1, 0.1): [0.85, 0.83, 0.87]}
    assert _depends(noisy).because.startswith("the seeds do not decide ")
    assert _depends(
        {(p, a): [x + a for x in found] for (p, a), found in one.items()}).verdict == "holds in shape"


def speedups(**changed):
    """With 24 workers, by algorithm, net, Gbps: servers bind most, nothing waits under gossip."""
    by = {"bsp": (2, 10), "asp": (2, 10), "ssp": (2, 10), "easgd": (8, 22), "allreduce": (11, 17),
          "gosgd": (24, 24), "adpsgd": (21, 24), **changed}
    return {(a, net, g, 24): x * (0.9 if net == "VGG-16" and x < 24 else 1) for a, two in by.items()
            for net in ("ResNet-50", "VGG-16")
            for g, x in zip((10, 56), two)}


#: the fraction of the time in which workers wait for the network, where any does
WAITS = {key: 0.0 if x == 24 else 0.2 for key, x in speedups().items()}


def test_what_scales_says_which_algorithms_it_is_of():
    found = {claim.says.split()[0]: claim for claim in _scaling(speedups(), WAITS, 24)}
    assert found["decentralised"].verdict == found["a"].verdict == found["VGG-16"].verdict == "holds in shape"
    assert found["decentralised"].because.endswith(
        "more than allreduce with ResNet-50 at 56 Gbps, VGG-16 at 56 Gbps")
    assert found["VGG-16"].because.endswith("under gosgd at 10 Gbps, gosgd at 56 Gbps, adpsgd at 56 Gbps")
    slow = {claim.says.split()[0]: claim.verdict
            for claim in _scaling(speedups(adpsgd=(5, 24), allreduce=(1, 17)), WAITS, 24)}
    assert slow["decentralised"] == slow["a"] == "does not hold"
    assert _heavier({**speedups(), ("asp", "VGG-16", 10, 24): 2}, WAITS, 24).verdict == "does not hold"
    assert _heavier(speedups(), dict.fromkeys(WAITS, 0.2), 24).verdict == "does not hold"  # equal, and both wait


class Counted(Seen):
    """A run of which only rates and waits are known."""

    def __new__(cls, whole, gradients, near=0.5, far=0.5):
        """`gradients`: of each of 24 workers in 100 s; `near`, `far`: shares in which the first four, the others
        compute."""
        found = super().__new__(cls, None, {f"worker{k}": [gradients, 100.0, 100 * (near if k < 4 else far)]
                                            for k in range(24)})
        found.whole = whole
        return found

    @property
    def measured(self):
        return {"images_per_second": self.whole}


def counted(**changed):
    """Runs of 24 workers by their whole speed, at 10 and at 56 Gbps."""
    by = {**dict.fromkeys(SPEEDUP, (1.0, 2.0)), **changed}
    return {(a, net, g, 24): Counted(x, x, 0.9, 0.1) for a, two in by.items() for net in NETS
            for g, x in zip((10, 56), two)}


def test_what_machines_change_is_judged_against_a_link_for_each_worker():
    flat = counted(adpsgd=(2.0, 2.0))
    assert [c.verdict for c in _shared(counted(), flat, 24)] == ["holds"] * 3
    assert [c.verdict for c in _shared(counted(allreduce=(0.9, 2.0)), flat, 24)] == ["holds", "does not hold", "holds"]
    assert _shared(counted(), counted(), 24)[2].verdict == "does not hold"
    even = {key: Counted(1.0, 1, 0.5, 0.5) for key in flat}
    assert _shared(even, even, 24)[0].verdict == "does not hold"


def test_easgd_must_gain_more_by_both_ways_to_count():
    better = counted(easgd=(1.0, 3.0))
    assert _also_easgd(better, better, 24).verdict == "holds in shape"
    by_one = {key: Counted(run.whole, 1) if key[0] == "easgd" else run for key, run in better.items()}
    claim = _also_easgd(by_one, by_one, 24)
    assert claim.verdict == "does not hold" and "until each worker's own end: easgd 1.0, allreduce 2.0" in claim.because


def test_a_server_saturates_at_the_messages_of_other_machines():
    """Of eight workers four share the server's machine: 0.16 s of computing, four transfers of 0.08 s."""
    assert [elsewhere(n) for n in (2, 4, 8, 24)] == [0, 0, 4, 20]
    assert _cap("ResNet-50", 10, 8) == pytest.approx(8 * size_of("ResNet-50")[1] / (4 * 0.0818), rel=1e-3)
    right = {("asp", net, g, 24): 0.97 * _cap(net, g, 24) for net in NETS for g in (10, 56)}
    assert _saturates(right, 24).verdict == "holds in shape"
    assert _saturates({key: 20 / 24 * x for key, x in right.items()}, 24).verdict == "does not hold"


def test_workers_beside_the_server_are_ahead():
    """Over the bus at 16 GB/s a way takes 35 ms, over the link 0.44 s."""
    run = runs(Lab(quick=True), [("asp", "VGG-16", 10, 6)], steps=6)["asp", "VGG-16", 10, 6]
    assert sum(gradients for gradients, _, _ in run.looked.values()) == 36
    bus, computing = 4 * size_of("VGG-16")[0] / 16e9, size_of("VGG-16")[1]
    assert waits(run, range(4)) == pytest.approx(2 * bus / (2 * bus + computing), rel=0.1)
    assert waits(run, range(4, 6)) > 0.5 and own_rate(run) > 1.2 * whole_rate(run)
    slower = runs(Lab(quick=True), [("asp", "VGG-16", 10, 6)], steps=6, flat=True)["asp", "VGG-16", 10, 6]
    assert waits(slower, range(4)) > 0.5 and slower.predicted("idle_ratio") and run.predicted("idle_ratio") is None


@pytest.mark.parametrize("algorithm", SPEEDUP)
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_technique_is_a_run_or_is_refused_with_its_reason(algorithm, technique):
    given = {"data": "digits", "workers": 2, "steps": 1, "evaluations": 0, "machine": Machine(compute="fixed(1)"),
             **SPEEDUP[algorithm], **options(algorithm, technique, SMALL)}
    reason = why_not(algorithm, technique)
    if reason:
        with pytest.raises(Usage, match=re.escape(reason)):
            run(algorithm, **{key: value for key, value in given.items() if key != "servers"})
    else:
        assert run(algorithm, **given).steps == 1


def test_compression_is_computed_at_the_ratio_that_its_claim_names():
    """A thousandth of each of VGG-16's matrices, 8 bytes an entry, and its 13,416 biases whole, to one peer."""
    seen = timed(Lab(quick=True), ["allreduce"], [10], workers=2, steps=1)
    (sent,) = set(seen["VGG-16", 10, "allreduce", "DGC"].measured["bytes_sent_by_node"].values())
    assert sent == pytest.approx(8 * 138_344_128 / 1000 + 4 * 13_416, rel=1e-4)
    assert "0.1 %" in _compression(seconds_of(1.0), server_of(2.0))[0].says


def seconds_of(ring, **changed):
    """Seconds of an iteration by net, Gbps, algorithm and technique: servers bind, a ring nearly hides."""
    by = {"none": 4.0, "sharding, layers": 3.0, "sharding, chunks": 1.0, "overlap": 4.1, "DGC": 2.0, "all": 0.6}
    rings = {"none": 1.0, "overlap": ring, "DGC": 0.7, "all": 0.6}
    return {(net, 10, a, t): x for net in NETS for a in ("bsp", "asp", "allreduce")
            for t, x in (rings if a == "allreduce" else {**by, **changed}).items()}


def server_of(compressed):
    """Of long runs through a server: 4 s without compression."""
    return {(net, 10, "bsp", t): x for net in NETS for t, x in (("none", 4.0), ("DGC", compressed))}


def test_techniques_are_judged_by_seconds():
    """VGG's gradient takes 0.58 s, two thirds of it backward: 0.42 s of a second can hide at most."""
    computing = size_of("VGG-16")[1]
    found = seconds_of(0.99)
    assert [claim.verdict for claim in _overlap(found)] == ["holds in shape", "does not hold"]
    hidden = {**found, ("VGG-16", 10, "allreduce", "overlap"): 1 - computing}
    assert _overlap(hidden)[0].verdict == "does not hold"
    assert [claim.verdict for claim in _sharding(found, 5.9)] == ["holds in shape", "does not hold"]
    assert _sharding(seconds_of(0.99, **{"sharding, layers": 1.0}), 1.0)[1].verdict == "holds in shape"
    assert _together(found).verdict == "holds in shape"
    assert _together(seconds_of(0.99, all=1.2)).because.endswith("asp: 1.200 s, best of one 1.000")
    verdicts = [claim.verdict for claim in _compression(found, server_of(2.0))]
    assert verdicts == ["holds in shape", "holds in shape", "not testable"]
    assert _compression(found, server_of(3.9))[1].verdict == "does not hold"


@pytest.fixture(scope="module")
def study(quick):
    return quick("ko2021")


@pytest.mark.slow
def test_table_3(study):
    found = {claim.says: claim.verdict for claim in study.part("table3").claims}
    for says in ("BSP, ASP and AD-PSGD hardly depend on the number of workers",
                 "SSP with s = 10, EASGD and GoSGD fall with the number of workers",
                 "SSP with s = 3 is above s = 10", "sending less lets the workers' parameters drift apart"):
        assert found[says] == "holds in shape"
    # with fresh reads SSP does not lose: the paper's order needs cached parameters
    assert found["bounding staleness costs accuracy: SSP is below unbounded ASP"] == "does not hold"
    assert found[
        "communicating now and then costs accuracy (F1): GoSGD with p = 0.01 is below p = 1"] != "holds in shape"
    assert "of 24 runs none did" in study.part("table3").note


@pytest.mark.slow
def test_speed_ups(study):
    found = {claim.says: claim.verdict for claim in study.part("scalability").claims}
    assert found.pop("ASP always has the worst speed-up") == "does not hold"
    # AD-PSGD gains more, since its pairs share links
    assert found.pop("a faster network helps EASGD, too, more than the decentralised algorithms") == "does not hold"
    assert set(found.values()) == {"holds", "holds in shape", "not testable"}


@pytest.mark.slow
def test_only_table_3_has_figures_of_the_document(study):
    assert {part.key for part in study.parts for line in part.lines if line.paper is not None} == {"table3"}


@pytest.mark.slow
def test_waiting_and_sensitivity(study):
    assert {c.verdict for p in ("waiting", "sensitivity")
            for c in study.part(p).claims} == {"holds in shape"}


@pytest.mark.slow
def test_techniques(study):
    part = study.part("techniques")
    assert {c.says: c.verdict for c in part.claims if c.verdict != "holds in shape"} == {
        "sharding by whole layers does as well": "does not hold",  # one server holds VGG-16's largest layer
        "it helps the algorithms of one server too": "does not hold",  # all exchanges go through one link
        "and through a server": "does not hold",  # answers are dense
        "sharding and overlap change no bit of BSP": "holds",
        "compression does not help algorithms that exchange parameters": "not testable"}
    seconds, sent, accuracy, refused = part.grids
    assert seconds.rows["VGG-16, 10 Gbps, easgd"][3:] == ["–"] * 3 and "gosgd" in str(refused.rows)
    assert sent.rows["VGG-16, allreduce"][4] < 0.01 * sent.rows["VGG-16, allreduce"][0]
    assert accuracy.rows["bsp"][0] == accuracy.rows["bsp"][2] == accuracy.rows["bsp"][3]
