"""Options change something of a run, or are refused with the reason."""

import json
import math
import pickle
import typing

import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.experiment.arguments import Usage, options_of
from refsgd.experiment.prepare import prepare
from refsgd.runtimes.simulator import simulate
from tests.marks import mostly_slow

PLAIN = Machine(compute="lognormal(0.01,0.3)", latency="1ms", bandwidth="20kB/s", update="1ms")
#: a field of the machine, its value, and the fields without which it could not matter
FLAGS = [
    ("colocated", True, {}), ("colocated", True, {"hosts": "cyclic:4"}), ("cores", 1, {}),
    ("cores", 1, {"hosts": "1x4"}), ("server_speeds", (0.5,), {}), ("server_speeds", (0.5,), {"update": None}),
    ("loads", "server0: 3@0", {}), ("loads", "worker1: 3@0", {}), ("duplex", "half", {}),
    ("duplex", "half", {"bandwidth": float("inf")}), ("latency", 0.002, {}), ("latency", 0.002, {"hosts": "1x4"}),
    ("bandwidth", 4e4, {}), ("inside", "1ms,1MB/s", {}), ("inside", "1ms,1MB/s", {"hosts": "2x2"}),
    ("inside", "1ms,1MB/s", {"hosts": "2x2", "colocated": True}), ("groups", "2x2", {"hosts": "cyclic:4"}),
    ("reduction", 1e-5, {}), ("codec", 1e-5, {})]
#: options with which every algorithm talks, moves and adds within a few steps
LIVELY = {"easgd": {"period": 1}, "local-sgd": {"period": 2}, "post-local": {"period": 2, "switch": 2},
          "diloco": {"period": 2}, "eager-diloco": {"period": 2}, "noloco": {"period": 2},
          "streaming-diloco": {"period": 2, "fragments": 2}, "decoupled-diloco": {"period": 1, "fragments": 2}, "gosgd": {"p": 1.0}, "approximate": {"threshold": 0.0}}
STAGED = ("gpipe", "pipedream")


def happened(name, machine, **more):
    """All events of a short run."""
    what = {"net": "mlp", "batch": 4} if name in STAGED else {"data": "quadratic"}
    stated = more.pop("stated", ())
    e = prepare(name, workers=4, steps=6, machine=machine, seed=3, stated=stated,
                **{**what, **LIVELY.get(name, {}), **more})
    run = simulate(e.deploy(), e.priced, seed=3)
    return [repr(event) for event in run.trace.events]


@pytest.mark.parametrize("name", mostly_slow(CATALOGUE, "bsp", "ssp", "allreduce", "gosgd", "gpipe"))
def test_a_flag_of_the_machine_is_refused_where_it_changes_nothing_and_only_there(name):
    """Both ways: what is refused would leave every event where it is, what is accepted moves one."""
    for field, value, beside in FLAGS:
        before = PLAIN.with_(**beside)
        after = before.with_(**{field: value}, **({"uplink": "10ms,1MB/s"} if field == "groups" else {}))
        try:
            ran = happened(name, after, stated=[field])
        except Usage as error:
            assert f"changes nothing of {name}: " in str(error), error
            assert happened(name, before) == happened(name, after), (field, beside)
        else:
            # a second program of a node may never compute, and a barrier keeps the two directions apart
            if (field != "cores" or beside) and field != "duplex":
                assert ran != happened(name, before), (field, beside)


@pytest.mark.parametrize(("command", "reason"), [
    ("run allreduce --servers 3", "servers 3 with allreduce: it has no servers; expected 1"),
    ("run gosgd --servers 3", "servers 3 with gosgd: it has no servers"),
    ("run backup-workers --servers 2", "servers 2 with backup-workers: it has one server"),
    ("run bsp --codec 1e-9", "it encodes nothing: --compress does"),
    ("run asp --reduction 1e-9", "it has no collective"),
    ("run allreduce --inside 1us,1GB/s", "no two nodes that exchange messages share a host"),
    ("run allreduce --inside 1us,1GB/s --hosts 4x1", "no two nodes that exchange messages share a host"),
    ("run bsp --checkpoint-every 2", "without checkpoint"),
    ("run bsp --machine ipccc20-4vm --compute 20ms --colocated", "already say where its servers are"),
    ("run sequential --bandwidth 1Gbps", "it exchanges nothing"),
    ("run bsp --net mlp", "net mlp with data quadratic, whose gradients are not of a net"),
    ("run bsp --batch 4", "batch 4 with data quadratic, whose gradients are not of images"),
    ("run bsp --shards by-label", "which has no labels"),
    ("run bsp --layout layers --balance hash", "with one server, which has all parts"),
    ("run staleness-aware --scale-lr", "an update applies the gradient of one worker, whose batch"),
    ("run approximate --staleness 5", "expected local ssp"),
    ("run approximate --centers 1 --ahead 5", "a single data centre has no other to send to"),
    ("run strads --rho 0.2", "rho 0.2 changes nothing of strads here; expected policy dependency-aware"),
    ("run strads --eps 0.1 --policy dependency-aware", "expected policy prioritised"),
    ("predict bsp --metric idle_ratio", "without a sweep"),
    ("predict bsp --plot x.png", "without a sweep"),
    ("predict bsp --runtime tcp", "has no option --runtime"),
    ("predict bsp --sweep workers=2:4 --kind simulated", "whose curves are formulas"),
    ("predict bsp --sweep workers=2:4 --reduction 1e-9", "it has no collective"),
    ("predict allreduce --sweep servers=1:4", "which has no servers"),
    ("predict bsp --sweep staleness=0:4", "which has no staleness"),
    ("compare --algorithms bsp,asp --staleness 2", "without an algorithm that has a slack"),
    ("compare --algorithms bsp,asp --reduction 1e-9", "it has no collective"),
    ("compare --algorithms gosgd,adpsgd --servers 2", "it has no servers"),
    ("explore bsp --seed 3", "without --walks"),
    ("explore bsp --walks 5 --max-runs 3", "which is their number")])
def test_an_option_that_would_be_ignored_is_refused_with_the_reason(command, reason, capsys):
    words = command.split() + ([] if "explore" in command else ["--data", "quadratic"])
    try:
        code = main(words)
    except SystemExit as exit:
        code = exit.code
    err = capsys.readouterr().err
    assert code == 2 and reason in err and err.count("\n") == 1, err


@pytest.mark.parametrize(("given", "reason"), [
    ({"batch": 32}, "which says how many images"), ({"net": "mlp"}, "whose gradients are not of a net"),
    ({"data": "mnist"}, "which has its own"), ({"shards": "by-label"}, "which divides its own data")])
def test_an_own_problem_has_its_data_net_and_batches(given, reason):
    with pytest.raises(Usage, match=reason):
        prepare("bsp", refsgd.problems.quadratic(), **given)


def test_stages_without_peers_have_no_collective_and_labels_are_needed_to_sort_by_them():
    with pytest.raises(Usage, match="a stage of one replica has no peers"):
        prepare("gpipe", net="mlp", collective="tree")
    with pytest.raises(Usage, match="shards by-label with net shapes:100, which has no labels"):
        prepare("bsp", net="shapes:100", shards="by-label")
    with pytest.raises(Usage, match="lr, schedule, warmup"):
        prepare("strads", data="lasso", lr=0.2)


def test_what_all_rows_share_is_refused_only_where_no_row_uses_it():
    """A comparison's number of servers is for those that have some; a cluster's prices likewise."""
    found = refsgd.compare(["bsp", "allreduce"], runtime="simulator", data="quadratic", steps=2, servers=2,
                           machine=PLAIN.with_(reduction=1e-6), stated=["reduction"])
    assert [row.simulated.servers for row in found.rows] == [2, 0]
    swept = refsgd.experiment.sweep.sweep(["bsp", "allreduce"], "servers", [1, 2], data="quadratic", steps=5)
    flat, (one, two) = swept.curves["allreduce"], swept.curves["bsp"]
    assert flat[0] == flat[1] and one != two


@pytest.mark.slow
def test_rows_of_one_algorithm_are_told_apart_in_table_sentences_json_and_picture(capsys, tmp_path):
    picture, data = tmp_path / "x.svg", tmp_path / "x.json"
    assert main(["compare", "--algorithms", "bsp lr=0.05; bsp lr=0.3; bsp seed=5", "--runtime", "simulator",
                 "--no-hard", "--steps", "12", "--plot", str(picture), "--json", str(data)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "bsp lr=0.05 predicted" in out and "bsp lr=0.3 reaches" in out and "bsp seed=5 after" in out
    assert [row["options"] for row in json.loads(data.read_text())["rows"]] == [{"lr": 0.05}, {"lr": 0.3}, {"seed": 5}]
    found = refsgd.compare(["bsp lr=0.05", "bsp lr=0.3"], runtime="simulator", data="quadratic", steps=3)
    assert list(found.results) == ["bsp lr=0.05", "bsp lr=0.3"]
    texts = [t.get_text() for ax in refsgd.display.plots.figures.comparison(found).axes
             for t in ax.get_yticklabels()]
    assert "bsp lr=0.05 worker0" in texts and "bsp lr=0.3 worker0" in texts
    with pytest.raises(Usage, match="bsp lr=0.3 appears twice"):
        refsgd.compare(["bsp lr=0.3", "bsp lr=0.3"], runtime="simulator", data="quadratic")
    fast = Machine(compute="1ms")
    found = refsgd.compare("bsp", options={"bsp": {"lr": 0.3, "machine": fast}}, runtime="simulator", data="quadratic", steps=3)
    assert json.loads(found.to_json())["rows"][0]["options"] == {"lr": 0.3, "machine": str(fast)}


def test_an_option_that_is_text_stays_text_although_it_looks_like_a_number():
    found = refsgd.compare("gpipe stages=2 cut=3", runtime="simulator", steps=2)
    assert found.results["gpipe stages=2 cut=3"].options["cut"] == "3"
    with pytest.raises(Usage, match="cut 3 of type int; expected text"):
        refsgd.run("gpipe", stages=2, cut=3, steps=2)


@pytest.mark.parametrize(("name", "given", "workers"), [
    ("gpipe", {"stages": 3}, 3), ("gpipe", {"stages": 2}, 4), ("gpipe", {"stages": 6}, 6), ("pipedream", {"stages": 5}, 5),
    ("gpipe", {}, 4), ("gpipe", {"stages": 3, "workers": 6}, 6)])
def test_stages_decide_how_many_workers_there_are_where_nobody_says(name, given, workers):
    assert prepare(name, net="mlp", steps=1, **given).workers == workers


@pytest.mark.parametrize(("hosts", "workers"), [
    ("1x2", 2), ("4x2", 4), ("cyclic:2", 4), ("worker0,server0; worker1", 2), ("worker0,worker1,worker2,worker3,worker4,server0", 5)])
def test_hosts_decide_how_many_workers_there_are_where_nobody_says(hosts, workers):
    assert prepare("bsp", data="quadratic", steps=1, machine=Machine("20ms", hosts=hosts)).workers == workers


#: own options that change nothing in these short runs, and where they do
ELSEWHERE = {("approximate", "barrier"): "where a link between data centres is behind",
             ("async-rl", "ahead"): "where samples are more than the actors, who have one each",
             ("strads", "width"): "where there are several blocks; of one the default is 1"}


def some(option):
    """A few values of an option, by its type and default."""
    kinds, usual = typing.get_args(option.annotation), option.default
    if isinstance(usual, bool):
        return [True, False]
    if texts := [kind for kind in kinds if isinstance(kind, str)]:
        return texts
    if float in (usual.__class__, *kinds):
        return sorted({0.0, usual or 0.25, (usual or 1.0) / 2, 1.0} - {math.inf})
    return [0, 1, 2, 3] if usual is None or isinstance(usual, int) else []


def outcome(name, options):
    """Events and results of a short run with unequal workers; None if it is refused."""
    divided = name in STAGED or "stages" in options
    machine = PLAIN if divided else PLAIN.with_(speeds=(1, 1, 1, 0.25))
    what = {"net": "mlp", "batch": 4} if divided else {"data": "quadratic"}
    own = {"async-diloco": {"period": 2}, "downpour": {"push_every": 1, "fetch_every": 1}}.get(name, LIVELY.get(name, {}))
    rule = {} if name == "strads" else {"momentum": 0.5}
    try:
        e = prepare(name, workers=4, steps=12, machine=machine, seed=3, **what, **rule, **{**own, **options})
    except (Usage, ValueError):
        return None
    run = simulate(e.deploy(), e.priced, seed=3)
    return [repr(event) for event in run.trace.events], pickle.dumps(run.values)


def unnoticed(name):
    """Own options whose every accepted value gives the same run beside some value of another."""
    options, known, found = options_of(CATALOGUE[name]), {}, set()

    def of(**own):
        key = repr(sorted(own.items()))
        if key not in known:
            known[key] = outcome(name, own)
        return known[key]

    for option, told in options.items():
        for beside, other in options.items():
            for value in some(other) if option != beside else ():
                runs = [of(**{beside: value}), *(of(**{beside: value, option: v}) for v in some(told) if v != told.default)]
                accepted = [run for run in runs if run is not None]
                if runs[0] is not None and len(accepted) > 1 and all(run == runs[0] for run in accepted):
                    found.add(option)
    return found - {option for algorithm, option in ELSEWHERE if algorithm == name}


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOGUE)
def test_an_own_option_that_changes_nothing_beside_another_is_refused(name):
    assert not unnoticed(name)


@pytest.mark.parametrize(("name", "option"), [("diloco", "form"), ("zero", "flat"), ("post-local", "switch")])
def test_an_option_that_is_not_refused_where_it_changes_nothing_is_found(name, option, monkeypatch):
    monkeypatch.setattr("refsgd.experiment.options.unused.check_own", lambda *_: None)
    assert option in unnoticed(name)
