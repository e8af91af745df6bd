"""What `refsgd advise` predicts beside figures by hand, which ask nothing of the library, within 3 %."""

import re

import pytest

from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.experiment.advice.advise import advise
from refsgd.experiment.advice.candidates import CANDIDATES, RING, Candidate

pytestmark = pytest.mark.usefixtures("few_draws_throughout")

BANDWIDTH, LATENCY, GRADIENT = 1.25e9, 25e-6, 0.158  # bytes a second of 10 Gbit/s, seconds, seconds
TEN = Machine(compute="158ms", latency="25us", bandwidth="10Gbps")
RESNET = {"parameters": 25_557_032, "net": "shapes:resnet50@224x224x3", "workers": 16, "batch": 32}
M = 4 * 25_557_032
NAMED = {c.name: c for c in CANDIDATES}


def ring(nbytes, workers=16):
    """A sum round a ring takes 2 (n-1) messages, one after another, of one n-th of the vector each."""
    return 2 * (workers - 1) * (LATENCY + nbytes / workers / BANDWIDTH)


def one(machine, candidate, **asked):
    """The only strategy without variants."""
    s, = (s for s in advise(machine, candidates=[candidate], **asked).strategies if not s.variant)
    return s


@pytest.mark.parametrize(("stage", "trips", "transfer"), [(2, 2, 0.154), (3, 3, 0.231)])
def test_zero_sends_two_or_three_vectors_layer_by_layer(stage, trips, transfer):
    """Stage 2 scatters a sum and gathers parameters; stage 3 gathers them twice. ResNet-50 has 53 convolutions, as many
    batch normalisations and a dense layer, each of which goes round the ring, n-1 messages a trip."""
    layers = 53 + 53 + 1
    seconds = trips * 15 / 16 * M / BANDWIDTH
    assert seconds == pytest.approx(transfer, rel=0.01)
    s = one(TEN, Candidate("zero", {"stage": stage}), **RESNET)
    expected = GRADIENT + seconds + trips * 15 * layers * LATENCY
    assert s.figure("seconds_per_iteration") == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("optimiser", "momentum", "mixed", "each"), [
    ("sgd", 0.0, False, 4 + 4), ("sgd", 0.9, False, 4 + 4 + 4), ("adam", 0.0, False, 4 + 4 + 4 + 4),
    ("sgd", 0.9, True, 2 + 2 + 4 + 4), ("adam", 0.0, True, 2 + 2 + 4 + 4 + 4)])
def test_bytes_a_parameter_by_optimiser_and_precision(optimiser, momentum, mixed, each):
    """Parameters, gradient, a copy of the parameters in mixed precision, and vectors of state, in this order."""
    s = one(TEN, NAMED["allreduce ring"], parameters=1_000_000, workers=16, optimiser=optimiser, momentum=momentum,
            mixed=mixed)
    assert s.needs / 1_000_000 == pytest.approx(each, rel=0.03)


@pytest.mark.parametrize(("algorithm", "options", "terms"), [
    ("zero", {"stage": 2}, ["largest layer"]), ("zero", {"stage": 3}, ["largest layer", "activations"]),
    ("gpipe", {"stages": 4, "micro": 8}, ["between layers"]), ("pipedream", {"stages": 4}, ["stashed versions"])])
def test_mixed_precision_halves_all_but_the_optimisers_state(algorithm, options, terms):
    c = Candidate(algorithm, options, nodes=options.get("stages", 1) if algorithm != "zero" else 1)
    single, mixed = (one(TEN, c, **RESNET, activations=1e6, optimiser="adam", mixed=mixed).memory for mixed in (False, True))
    assert {*terms, "optimiser state"} <= single.keys() and mixed.keys() - single.keys() == {"parameters in fp32"}
    assert {term: 2 * mixed[term] for term in single} == single | {"optimiser state": 2 * single["optimiser state"]}


LAYERS, WIDE, SEQUENCE, WORDS = 24, 2048, 2048, 50257
#: a block has 12 w^2 weights and 13 w biases and scales; words, positions, and the last normalisation
GPT = LAYERS * (12 * WIDE ** 2 + 13 * WIDE) + (WORDS + SEQUENCE) * WIDE + 2 * WIDE


@pytest.mark.parametrize(("name", "gradients", "sums"), [
    ("allreduce ring", 1, 1), ("allreduce ring accumulate=4", 4, 1), ("diloco period=64", 1, 1 / 64)])
def test_a_transformer_that_exchanges_less_often(name, gradients, sums):
    """1.3 billion parameters, 2.6 s a gradient: 7.9 s a sum, after each gradient, after 4, or after 64."""
    s = one(TEN.with_(compute="2.6s"), NAMED[name], parameters=GPT, workers=16, batch=1, optimiser="adam",
            net=f"shapes:transformer:{LAYERS},{WIDE},16,{SEQUENCE},{WORDS}")
    seconds = gradients * 2.6 + sums * ring(4 * GPT)
    assert s.figure("seconds_per_iteration") == pytest.approx(seconds, rel=0.03)
    assert s.images_per_second == pytest.approx(16 * gradients / seconds, rel=0.03)  # sequences
    assert s.needs == pytest.approx(16 * GPT, rel=0.03)  # 21 GB with Adam


def test_the_largest_layer_of_a_transformer_in_mixed_precision():
    """Words and positions are one layer, twice in 2 bytes a number; per parameter 2 bytes, and an eighth of 2 + 4 + 8."""
    s = one(TEN, Candidate("zero", {"stage": 2}), parameters=GPT, workers=8, batch=1, optimiser="adam", mixed=True,
            net=f"shapes:transformer:{LAYERS},{WIDE},16,{SEQUENCE},{WORDS}")
    assert s.memory["largest layer"] == 2 * 2 * (WORDS + SEQUENCE) * WIDE == 428_482_560
    assert s.needs == pytest.approx(GPT * (2 + 14 / 8) + 428_482_560, rel=0.01)


def test_a_transformer_whose_last_backward_pass_of_four_hides_most_of_the_exchange():
    """2 s a gradient at 100 Gbit/s, 0.74 s a sum: after four gradients only that of the last bucket remains."""
    s = one(Machine(compute="2s", bandwidth="100Gbps"), NAMED["allreduce ring overlap accumulate=4"], parameters=GPT,
            workers=8, batch=1, net=f"shapes:transformer:{LAYERS},{WIDE},16,{SEQUENCE},{WORDS}")
    tail = 2 * 7 / 8 * 4 * (WORDS + SEQUENCE + 12 * WIDE) * WIDE / 12.5e9  # the words and some of the first block
    assert 8 < s.figure("seconds_per_iteration") <= 8 + 1.03 * tail and s.needs == pytest.approx(8 * GPT, rel=0.03)


def test_hierarchical_allreduce_on_hosts():
    """The first of each 8 devices takes 7 gradients off its link of 300 GB/s and sends 7 sums; two hosts exchange halves."""
    machine = TEN.with_(hosts="2x8", inside="2us,300GB/s", colocated=True)
    s = one(machine, NAMED["allreduce hierarchical"], **RESNET)
    between = 2 * (LATENCY + M / 2 / BANDWIDTH)
    inside = 2 * (2e-6 + 7 * M / 300e9)
    assert between == pytest.approx(0.082, rel=0.01)
    assert s.figure("seconds_per_iteration") == pytest.approx(GRADIENT + inside + between, rel=0.03)


def test_batches_by_speed():
    """15 workers and one at half speed: of 512 images 15.5 shares, 33 and 17, so that a gradient takes 33/32 or 34/32
    of its time; without the slow one 15 workers, with equal batches twice the time."""
    found = advise(TEN.with_(speeds=(1,) * 15 + (0.5,)), candidates=[Candidate("allreduce", RING)], **RESNET)
    by = {s.variant: s.figure("seconds_per_iteration") for s in found.strategies}
    assert by == pytest.approx({"": 2 * GRADIENT + ring(M), "without worker15": GRADIENT + ring(M, 15),
                                "work by speed": 34 / 32 * GRADIENT + ring(M)}, rel=0.03)


def test_local_steps():
    """An average every 8 steps, and the passes' time: 98 iterations of 512 images."""
    s = one(TEN, NAMED["local-sgd period=8"], **RESNET)
    each = GRADIENT + ring(M) / 8
    assert s.figure("seconds_per_iteration") == pytest.approx(each, rel=0.03)
    assert s.seconds == pytest.approx(98 * each, rel=0.03)


def test_what_exceeds_the_memory_comes_and_goes_in_each_iteration():
    what = {"parameters": 10_000_000, "workers": 4, "memory_limit": 60e6, "images": 12_800}
    machine = Machine(compute="fixed(0.2)", bandwidth=1.25e9)
    kept, slow = (next(s for s in advise(machine, **what, swap=swap).strategies if s.name == "allreduce ring")
                  for swap in (None, 1e9))
    over = 2 * 4 * 10_000_000 - 60e6  # parameters and gradient
    assert kept.rejected and not slow.rejected
    assert slow.seconds == pytest.approx(kept.seconds + 100 * 2 * over / 1e9)
    assert slow.metrics["seconds_per_iteration"].terms["swapping"] == pytest.approx(2 * over / 1e9)
    assert slow.images_per_second == pytest.approx(12_800 / slow.seconds)
    busy = (1 - kept.figure("idle_ratio")) * kept.figure("seconds")
    assert slow.figure("idle_ratio") == pytest.approx(1 - busy / slow.figure("seconds"))
    assert sum(slow.causes.values()) == pytest.approx(slow.figure("idle_ratio")) and "swapping" in slow.causes


def test_the_command_has_no_swapping(capsys):
    flags = "--parameters 10000000 --workers 4 --images 12800 --compute fixed(0.2) --bandwidth 1.25GB/s --budget 10 --swap 1GB/s --memory"
    said = []
    for memory in ("60MB", "600MB"):
        assert main(["advise", *flags.split(), memory]) == 0
        said.append(re.search(r"this run(.*): (.*)", capsys.readouterr().out).groups())
    assert said[0][0] == ", without swapping" and said[0][1] == said[1][1]


def test_what_fits_is_not_swapped():
    machine = Machine(compute="fixed(0.2)", bandwidth=1.25e9)
    plain, roomy = (advise(machine, parameters=1_000_000, workers=4, memory_limit=1e9, swap=swap) for swap in (None, 1e9))
    assert [s.seconds for s in plain.strategies] == [s.seconds for s in roomy.strategies]
