"""The thesis at its quick sizes: who scales, by batch and nodes, what is sent; its names as presets."""

import pytest

from benchmarks import published
from benchmarks.studies import Lab, graur_terms
from benchmarks.studies.graur_extra import extra
from benchmarks.studies.graur_figures import CHAPTER3, IMAGES4, SECONDS4, SERVER, Key
from benchmarks.studies.graur_runs import by_formula, forward_only, rate, runs
from benchmarks.studies.graur_series import STRATEGIES
from refsgd.algorithms import CATALOGUE
from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.experiment.options.architectures import ARCHITECTURES
from refsgd.experiment.run import run


def test_a_forward_pass_costs_what_the_formula_says():
    """C/n + (n-1)/n M/B a batch, beside one of the workers: to the last digit from the second step."""
    n, w = 4, published.RESNET50 / 125e6
    machine = Machine(compute="fixed(2)", bandwidth=125e6, colocated=True)
    found = run(forward_only, net=f"shapes:{published.RESNET50 // 4}", data="none", workers=n, steps=10,
                machine=machine)
    assert found.measured["seconds"] == pytest.approx(10 * (2 + (n - 1) * w))


def test_the_slow_machine_was_one_of_the_single_nodes_and_gives_forty():
    """Its factor is one node's at batch 128; nothing of 40 nodes was fitted, and on either network
    messages alone miss by a quarter and more."""
    assert published.SLOW * published.alone("F+B",
                                            128) == pytest.approx(
                                                SECONDS4[Key(SERVER, "F+B", "Ethernet", 1, 128)])
    for link, b in (("InfiniBand", 64), ("InfiniBand", 128), ("InfiniBand", 256), ("Ethernet", 256)):
        quoted = IMAGES4[Key(SERVER, "F+B", link, 40, b)]
        assert b / published.implemented("F+B", link, b, 40) == pytest.approx(quoted, rel=0.1)
        assert b / published.implemented("F+B", link, b, 40, slow=1) > 1.25 * quoted


@pytest.mark.parametrize("key", [Key(SERVER, "F+B", "Ethernet", 40, 256), Key(SERVER, "F+B", "Ethernet", 16),
                                 Key(SERVER, "F", "Ethernet", 24, 128)], ids=str)
def test_the_terms_of_a_server_by_formula_and_by_simulation(key):
    """Within the first and the last of 15 steps; a slow machine that is answered first would hide behind
    the others' transfers."""
    ((_, seen),) = runs(Lab(quick=True), [key], terms=True).items()
    assert key.batch / rate(key, seen) == pytest.approx(published.implemented(*key[1:3], key.batch, key.nodes),
                                                   rel=0.05)
    machine = graur_terms.implemented(key)
    assert machine.speeds == ((1.0,) * (key.nodes - 1) + (1 / published.SLOW,) if key.nodes > 16 else ())


def test_a_slow_machine_that_is_answered_first_is_another_cluster():
    key = Key(SERVER, "F+B", "Ethernet", 40, 256)
    machine = graur_terms.implemented(key)
    hidden = run("bsp", net=f"shapes:{published.RESNET50 // 4}", data="none", workers=40, batch=256,
                 steps=15,
                 machine=machine.with_(speeds=machine.speeds[::-1]))
    assert hidden.measured["images_per_second"] > 1.25 * 256 / published.implemented(
        "F+B", "Ethernet", 256, 40)


def test_crowded_processors_are_fitted_forward_and_tested_with_training():
    fitted = graur_terms.CROWDED * 0.5 / 2
    assert fitted == pytest.approx(CHAPTER3[Key("caffe2", "F", "Ethernet", 2)])
    keys = [Key("caffe2", "F+B", link, 2) for link in published.LINKS]
    found = {key.link: 32 / rate(key, seen) for key, seen in runs(Lab(quick=True), keys, terms=True).items()}
    assert all(abs(seconds / CHAPTER3[Key("caffe2", "F+B", "Ethernet", 2)] - 1) < 0.25
               for seconds in found.values())
    assert found["Ethernet"] < 1.1 * found["InfiniBand"]


def test_collective_allreduce_hides_its_ring_at_the_link_s_bandwidth():
    """A ring for each layer on 1 Gbps, nothing fitted: only the first layer's ring is exposed, and 16 nodes take
    the quoted 0.55 s a batch to 3 %; after the backward pass the same ring takes 15 % longer."""
    key = Key("collective-allreduce", "F+B", "Ethernet", 4)
    assert graur_terms.implemented(key) == graur_terms.by_messages(key)
    assert graur_terms.by_messages(key).bandwidth == 125e6
    ((_, seen),) = runs(Lab(quick=True), [key]).items()
    assert rate(key, seen) == pytest.approx(32 / published.overlapped(32, 4), rel=1e-9)
    computing, ring = published.alone("F+B", 32), 1.5 * published.RESNET50 / 125e6
    assert 0 < 4 * 32 / rate(key, seen) - computing < 0.01 * ring
    assert published.overlapped(32, 16) == pytest.approx(CHAPTER3[key._replace(nodes=16)], rel=0.03)
    assert published.ringed(32, 16) > 1.15 * CHAPTER3[key._replace(nodes=16)]


@pytest.mark.parametrize("strategy", ["collective-allreduce", "horovod"])
def test_the_formula_stands_for_runs_of_many_nodes(strategy, monkeypatch):
    """To four digits, with a slow machine, which the runs of more than 16 nodes have."""
    monkeypatch.setattr(published, "WITHOUT_SLOW", 4)
    key = Key(strategy, "F+B", "Ethernet", 5)
    ((_, seen),) = runs(Lab(quick=True), [key], terms=True).items()
    assert by_formula(Lab(quick=True), key, terms=True) == pytest.approx(rate(key, seen), rel=1e-4)


def test_one_session_does_everything_in_turn():
    one, w = published.alone("F+B", 32), published.RESNET50 / 125e6
    assert graur_terms.one_session("Ethernet", 1) == pytest.approx(32 / one)
    assert graur_terms.one_session("Ethernet", 3) == pytest.approx(3 * 32 / (3 * one + 4 * w))
    assert all(graur_terms.one_session("Ethernet", n) < 7 for n in (2, 4, 8, 16))


def test_congestion_that_gives_forty_nodes_gives_32_fewer_images():
    """So it is no reason for 95.1 images/s on 40 nodes and 111.5 on 32, however well it meets the ceiling
    and small batches."""
    at = {n: graur_terms.congested(n, 256) for n in (32, 40)}
    assert at[40] == pytest.approx(IMAGES4[Key(SERVER, "F+B", "Ethernet", 40, 256)]) and at[32] < at[40]
    assert max(graur_terms.congested(n, 32) for n in (16, 24, 32, 40)) == pytest.approx(20, rel=0.05)
    assert all(graur_terms.congested(16, b) > 0.9 * max(graur_terms.congested(n, b) for n in (24, 32, 40))
               for b in (8, 32, 64))
    assert graur_terms.congested(40, 256,
                                 k=0) == pytest.approx(256 / published.served("Ethernet", 256, 40, "full"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_preset_runs(name, capsys):
    assert ARCHITECTURES[name].algorithm in CATALOGUE
    assert main(["run", "--preset", name, "--data", "quadratic", "--workers", "3", "--steps", "2"]) == 0
    assert capsys.readouterr().out.startswith(ARCHITECTURES[name].algorithm)


def test_a_preset_is_its_flags(capsys):
    given = ["--data", "quadratic", "--workers", "3", "--steps", "4"]
    assert main(["run", "--preset=caffe2", *given]) == 0
    one = capsys.readouterr().out
    assert main(["run", "allreduce", "--collective", "halving-doubling", *given]) == 0
    assert capsys.readouterr().out == one
    assert main(["run", "--preset", "nothing"]) == 2 and "horovod" in capsys.readouterr().err


#: what does not hold by messages
BY_MESSAGES = {
    "figures of several nodes with batches of 32 follow from those of one, within 25 %",
    "Parameter Server gains nothing beyond 8 nodes on Ethernet",
    "a ceiling of about 20 images/s on Ethernet",
    "Distributed Replicated stays below Parameter Server on InfiniBand",
    "Distributed Allreduce never scales, with one ring",
    "Distributed Allreduce stays below 7 images/s on Ethernet and falls with the nodes",
    "Distributed Allreduce's images per second fall with the nodes on InfiniBand too",
    "Distributed Allreduce is much worse than Parameter Server on InfiniBand too",
    "memory does not depend on the number of nodes",
    "on Ethernet a parameter server's traffic levels off at the link's rate",
    "all but Caffe2 and Collective Allreduce benefit from InfiniBand",
    "Caffe2 and Collective Allreduce use well below the bandwidth of Ethernet",
    "InfiniBand raises the processor use of Parameter Server only",
    "processor use does not depend on the number of nodes, but for Parameter Server",
    "with soft placement forward passes of Parameter Server take 40 nodes to 0.1 s a batch on InfiniBand, others 16",
    "Caffe2 fails beyond 24 nodes, Distributed Allreduce beyond 16",
    "Collective Allreduce takes 750 MB more with each batch",
    "memory: Caffe2 below 1 GB, parameter server 10 GB, Distributed Allreduce 11 GB, Collective Allreduce most",
    "MXNet's speed-up from 1 to 10 machines is more than linear", "a parameter server is a decentralised topology"}
MEASURED = "Collective Allreduce needs the most memory"  # of real processes: a busy machine changes what is seen


@pytest.fixture(scope="module")
def study(quick):
    return quick("graur2019")


@pytest.mark.slow
def test_every_verdict(study):
    found = {claim.says: claim.verdict for claim in study.claims}
    wrong = {says for says, verdict in found.items() if verdict == "does not hold"}
    # which machines a run had decides the order of 32 and 40 nodes, and nobody knows it; the others fail by
    # messages, and a term chosen by them tests nothing
    assert wrong - {MEASURED} == {"and 40 nodes are slower than 32 with training",
                                  "the best number of nodes on Ethernet with training is 32", *BY_MESSAGES}
    # a run at the link's bandwidth, where an infinite one was assumed before
    assert found["Collective Allreduce's ring is hidden behind the backward pass on Ethernet"] == "holds"
    for says in ("Caffe2 takes 19 times as long on two nodes as on one",
                 "the network makes no difference to Caffe2",
                 "the best number of nodes on Ethernet for forward passes is 16, more yield little",
                 "up to batches of 64 training on Ethernet gains next to nothing beyond 16 nodes"):
        # with a term or beside one: no figure on which it was fitted
        assert found[says] == "holds in shape", says


@pytest.mark.slow
def test_series_have_every_strategy_and_say_what_they_decide(study):
    """Five series over time: out, in, requests, processors in virtual time, memory of real processes."""
    part = study.part("series")
    rates = {panel.title: panel.curves for panel in part.panels}
    central, ring = (rates["out of the busiest process, Ethernet"][s] for s in (SERVER, "distributed-allreduce-ringx1"))
    assert max(rate for _, rate in central) == pytest.approx(125, rel=1e-6)
    # a plateau of 15 answers of 102 MB at 125 MB/s, a tooth of one model
    assert sum(rate > 120 for _, rate in central) > 3 * sum(rate > 120 for _, rate in ring)
    assert {title.split(",")[0] for title in rates} >= {
        "out of the busiest process", "into the busiest process", "requests of the busiest process",
        "computing of a node", "real processes"}
    sent, *_, real = part.grids
    assert {f"{strategy}, F+B" for strategy in STRATEGIES} <= set(real.rows)
    assert real.columns[0] == "memory of a worker since its start [MB]" and all(row[0] > 0 for row in real.rows.values())
    assert sent.columns[-1] == "16 nodes"
    assert sent.rows["distributed-replicated, F"][-1] == 0
    assert sent.rows["distributed-replicated, F+B"][-1] == pytest.approx(2 * 15 * published.RESNET50 / 1e6)


@pytest.mark.slow
def test_an_extra_worker_makes_up_for_the_server_s_node():
    """17 nodes pass as many batches as 16 with a server beside a worker, one transfer later; 16 pass a sixteenth less."""
    part = extra(Lab(quick=True))
    assert {claim.verdict for claim in part.claims} == {"holds", "holds in shape"}
    rates = {line.what: line.simulated for line in part.lines if line.unit == "images/s"}
    one, extra_, beside = (rates[f"{s}, F+B, InfiniBand, batch 128, {n} nodes: images"] for s, n in (
        ("parameter-server", 16), ("parameter-server-extra-worker", 17), (SERVER, 16)))
    assert extra_ == pytest.approx(beside, rel=1e-3) and one == pytest.approx(15 / 16 * extra_, rel=2e-3)


@pytest.mark.slow
def test_a_figure_is_counted_once_and_misses_are_listed(study):
    """Both of an experiment's figures, seconds and images per second, are one; the slow machine's row
    counts its successes and failures."""
    experiments = {key for key in (*SECONDS4, *IMAGES4) if key.nodes > 1}
    assert [line for line in study.part("chapter4").lines
            if f"one of each experiment, of {len(experiments)}" in line.what]
    tested = [line for line in study.part("terms").lines if line.what.startswith("a slow machine, tested on")]
    met = [sum(abs(value / line.paper - 1) <= 0.25 for line in tested for value in [getattr(line, name)])
           for name in ("formula", "implementation")]
    (told,) = [line for line in study.part("terms").lines if line.what.startswith("a slow machine: of these")]
    assert len(tested) == sum(key.nodes > published.WITHOUT_SLOW for key in experiments)
    assert [told.formula, told.implementation] == met and met[1] < len(tested)
    assert max(len(claim.because) for claim in study.claims) < 1000


@pytest.mark.slow
def test_misses_have_reasons():
    assert all(f.reason for f in published.figures() if abs(f.error) > 0.25)
