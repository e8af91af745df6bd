"""Advice for several settings: prices by hand, none left out that is best at some price, refusals in one line."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cli import main
from refsgd.cli.settings import Offer, Setting, chosen, offer

SMALL = ["advise", "--net", "resnet18", "--image", "32,32,3", "--bandwidth", "10Gbps", "--budget", "1000"]


def asked(tmp_path, *flags):
    assert main([*SMALL, *flags, "--json", str(tmp_path / "found.json")]) == 0
    return json.loads((tmp_path / "found.json").read_text())["settings"]


def test_the_price_is_of_all_workers_and_servers(tmp_path, capsys):
    rows = asked(tmp_path, "--search", "workers=2,4", "--device", "slow=1TFLOPS@0.5", "--device", "fast=9TFLOPS@3")
    assert {row["device"]["name"] for row in rows} == {"slow", "fast"} and {row["workers"] for row in rows} == {2, 4}
    for row in rows:
        hourly = {"slow": 0.5, "fast": 3.0}[row["device"]["name"]]
        assert row["price"] == pytest.approx(hourly * (row["workers"] + row["servers"]) * row["seconds"] / 3600)
    said = capsys.readouterr().out
    assert "One model, synchronous" in said and "price: of the time of all workers" in said


def test_servers_that_the_machine_lists_count(tmp_path):
    rows = asked(tmp_path, "--hosts", "worker0; worker1; server0; server1", "--compute", "1s", "--search", "workers=2")
    assert {row["servers"] for row in rows if row["name"] == "asp K=2"} == {2}


def test_batches_of_a_machine_on_devices_can_be_searched(tmp_path):
    rows = asked(tmp_path, "--compute", "device(1TFLOPS)", "--search", "batch=16,64")
    assert {row["images"] for row in rows} == {16, 64}


@pytest.mark.slow
def test_without_prices_the_fastest_of_each_kind_in_any_setting(tmp_path):
    rows = asked(tmp_path, "--rate", "1TFLOPS", "--search", "batch=16,64", "workers=2:3", "servers=1,2")
    first = next(row for row in rows if row["kind"] == "one model, synchronous")
    assert (first["workers"], first["images"]) == (3, 64)
    seconds = [row["seconds"] for row in rows if row["kind"] == first["kind"]]
    assert seconds == sorted(seconds) and len(seconds) == 6
    names = [(row["name"], row["workers"], row["images"]) for row in rows]
    assert len(set(names)) == len(names)  # servers are no setting of a strategy without any


@pytest.mark.slow
def test_a_race_ranks_all_kinds_together(tmp_path, capsys):
    rows = asked(tmp_path, "--rate", "1TFLOPS", "--search", "workers=4,8", "--race", "digits")
    assert [row["seconds_to_target"] for row in rows] == sorted(row["passes"] * row["seconds"] for row in rows)
    assert "to target" in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "says"), [
    (["--search", "latency=1ms,2ms", "--rate", "1TFLOPS"], "--search over latency; expected some of workers, servers, batch"),
    (["--search", "batch=1:65", "--rate", "1TFLOPS"], "65 settings; expected at most 64"),
    (["--search", "batch=1,2", "--compute", "20ms"], "--compute 20ms, which has the time of one batch; expected --rate or --device"),
    (["--search", "batch=1,2", "--machine", "laptop"], "--machine laptop, which has the time of one batch"),
    (["--search", "workers=2.9", "--rate", "1TFLOPS"], "workers 2.9; expected whole numbers, at least 1"),
    (["--search", "workers=inf", "--rate", "1TFLOPS"], "workers inf; expected whole numbers"),
    (["--device", "a=1TFLOPS", "--rate", "1TFLOPS"], "--device with --rate"),
    (["--search", "workers=2,4", "--rate", "1TFLOPS", "--mtbf", "9"], "--mtbf with --search or --device"),
    (["--rate", "1TFLOPS", "--disk", "1GB/s"], "--disk 1e+09 without --mtbf"),
    (["--rate", "1TFLOPS", "--swap", "1GB/s"], "--swap 1e+09 bytes/s; expected a finite number > 0, with --memory"),
    (["--device", "1TFLOPS"], "expected NAME=FLOP/S@PRICE"), (["--device", "a=1TFLOPS@-1"], "expected NAME=FLOP/S@PRICE"),
    (["--search", "workers=2,4", "--rate", "1TFLOPS", "--memory", "1MB"], "no strategy fits in any setting")])
def test_what_cannot_be_compared_is_refused_in_one_line(flags, says, capsys):
    assert main([*SMALL, *flags]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_batches_are_searched_beside_a_slow_worker(tmp_path, capsys):
    """Whose number is one of the machine's eight, not of four."""
    (tmp_path / "devices.toml").write_text('compute = "device(5TFLOPS)"')
    flags = ["--machine", str(tmp_path / "devices.toml"), "--slow", "5=0.5", "--search", "batch=1,2"]
    assert main([*SMALL, *flags]) == 0, capsys.readouterr().err


def test_an_offer_is_read():
    assert offer("T4=2.5TFLOPS@0.35") == Offer("T4", 2.5e12, 0.35) and offer("a=1TFLOPS").price == 0


def setting(kind, seconds, price):
    """Of one worker that costs this price for its time."""
    found = SimpleNamespace(kind=kind, seconds=seconds, to_target=float("nan"), workers=1)
    return Setting(Offer("", 1.0, price * 3600 / seconds), 1, 0, found)


points = st.lists(st.tuples(st.sampled_from("ab"), st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=12)


@given(points)
def test_nothing_kept_is_beaten_and_what_is_left_out_is(points):
    """By another of its kind, in time and price."""
    tried = [setting(*point) for point in points]
    kept = chosen(tried)
    for s in tried:
        own = [other for other in kept if other.found.kind == s.found.kind]
        beaten = any(o.seconds <= s.seconds and o.price <= s.price for o in own if o is not s)
        assert beaten or s in kept
        assert s not in kept or not any(o.seconds < s.seconds and o.price < s.price for o in own)
