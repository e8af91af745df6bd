"""Quantities with units, and speeds of workers: the same text on the command line and in Python."""

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.cli import main
from refsgd.cluster import units
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.experiment.advice.advise import Candidate, advise
from refsgd.experiment.arguments import Usage

pytestmark = pytest.mark.usefixtures("few_draws_throughout")


@pytest.mark.parametrize(("read", "text", "value"), [
    (units.seconds, "0.001", 0.001), (units.seconds, "158ms", 0.158), (units.seconds, "25us", 25e-6),
    (units.seconds, "25 \u00b5s", 25e-6),
    (units.seconds, "2s", 2.0), (units.seconds, "1e3ns", 1e-6), (units.bytes_per_second, "1.25e9", 1.25e9),
    (units.bytes_per_second, "10Gbps", 1.25e9),
    (units.bytes_per_second, "10gbps", 1.25e9), (units.bytes_per_second, "1.25GB/s", 1.25e9),
    (units.bytes_per_second, "10 Gbit/s", 1.25e9),
    (units.bytes_per_second, "100 Mb/s", 12.5e6), (units.bytes_per_second, "50kB/s", 5e4),
    (units.bytes_per_second, "inf", float("inf")),
    (units.nbytes, "16GB", 16e9), (units.flops, "5TFLOPS", 5e12), (units.flops, "312 tflop/s", 3.12e14),
    (units.flops, "2GFLOPS", 2e9),
    (units.nbytes, "16gb", 16e9), (units.nbytes, "16 GiB", 16 * 2**30), (units.nbytes, "16e9", 16e9)])
def test_a_quantity_is_the_float_nearest_to_what_is_written(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(("read", "text"), [
    (units.seconds, "10Gbps"), (units.seconds, "1m"), (units.seconds, "ms"), (units.seconds, "1.2.3ms"),
    (units.seconds, "1e999999s"), (units.seconds, ""),
    (units.bytes_per_second, "10G"), (units.bytes_per_second, "10GB"), (units.bytes_per_second, "10ms"),
    (units.nbytes, "16GB/s"), (units.nbytes, "lots")])
def test_what_is_no_quantity_is_refused_with_what_would_be_one(read, text):
    with pytest.raises(ValueError, match="not understood; expected (seconds|bytes)") as error:
        read(text)
    assert str(error.value).startswith(repr(text))


@pytest.mark.parametrize(("text", "same"), [
    ("158ms", "fixed(0.158)"), ("exponential(20ms)", "exponential(0.02)"),
    ("Uniform(10ms, 0.03s)", "uniform(0.01,0.03)"),
    ("shifted(20ms,5ms)", "shifted(0.02,0.005)"),
    ("lognormal(158ms,0.1)", "lognormal(0.158,0.1)"), ("straggler(20ms,0.01,10)", "straggler(0.02,0.01,10)"),
    ("empirical(150ms,0.16,300ms)", "empirical(0.15,0.16,0.3)")])
def test_times_of_a_law_may_carry_a_unit(text, same):
    assert Distribution.parse(text) == Distribution.parse(same)


@pytest.mark.parametrize("text",
                         ["lognormal(20ms,5ms)", "gamma(20ms,4s)", "exponential(20Gbps)", "exponential()"])
def test_only_times_of_a_law_carry_a_unit(text):
    with pytest.raises(ValueError,
                       match="expected numbers between the brackets of .*; times may carry a unit"):
        Distribution.parse(text)


def test_a_machine_takes_the_same_text_in_python():
    assert Machine("158ms", "25us", "10Gbps", "2ms",
                   speeds="3x1,0.5") == Machine("fixed(0.158)", 25e-6, 1.25e9, "fixed(0.002)",
                                                speeds=(1, 1, 1, 0.5))


@given(st.lists(st.sampled_from([0.25, 0.5, 1.0, 4.0]), min_size=1, max_size=20))
def test_speeds_are_read_as_they_are_written(speeds):
    assert list(units.speeds(units.written(speeds))) == speeds


def test_speeds_by_number_and_by_worker():
    assert units.speeds("15x1,0.5") == (1.0,) * 15 + (0.5,) == units.slowed(["15=0.5"], (), 16)
    assert units.slowed(["1=0.5,worker3=2", "0=4"], (1, 1, 3), 4) == (4, 0.5, 3,
                                                                      2) and units.slowed(["2=0.5"],
                                                                                          ()) == (1, 1, 0.5)


@pytest.mark.parametrize("text", ["0x1", "-1x1", "999999999x1", "x1", "1x", "1;2", ""])
def test_what_are_no_speeds_is_refused(text):
    with pytest.raises(ValueError, match="expected numbers separated by commas, e.g. 1,1,4 or 15x1,0.5"):
        units.speeds(text)


@pytest.mark.parametrize(("text", "expected"), [
    ("16=0.5", "there is no worker 16: 16 workers are numbered 0 to 15"),
    ("-1=0.5", "there is no worker -1: 16 workers"),
    ("0.5", "'0.5'; expected a worker and its speed, such as 15=0.5"),
    ("a=1", "'a=1'; expected a worker and its speed")])
def test_a_slow_worker_that_is_none_is_refused(text, expected):
    with pytest.raises(ValueError) as error:
        units.slowed([text], (), 16)
    assert expected in str(error.value)


WRITTEN = ["--compute", "158ms", "--latency", "25us", "--bandwidth", "10Gbps", "--update", "2ms", "--slow",
           "15=0.5"]
PLAIN = ["--compute", "fixed(0.158)", "--latency", "0.000025", "--bandwidth", "1.25e9", "--update",
         "fixed(0.002)", "--speeds", ",".join(["1"] * 15 + ["0.5"])]


@pytest.mark.parametrize("command", [
    ["run", "bsp", "--data", "quadratic", "--steps", "2", "--workers", "16"],
    ["predict", "bsp", "--data", "quadratic", "--steps", "2", "--workers", "16"],
    ["compare", "--algorithms", "bsp", "--runtime", "simulator", "--data", "quadratic", "--steps", "2",
     "--workers", "16"],
    ["advise", "--parameters", "25e6", "--workers", "16", "--memory", "16GB"]])
def test_every_command_reads_units(command, capsys, monkeypatch):
    """The same output as for plain numbers, but for the flags that the advice repeats as they were typed."""
    few = [Candidate("bsp", {}), Candidate("allreduce", {"collective": "ring"})]
    monkeypatch.setattr("refsgd.experiment.advice.advise.advise", partial(advise, candidates=few))
    found = []
    for machine in (WRITTEN, PLAIN):
        assert main([*command, *machine, "--json", "-",
                     *(["--quiet"] if command[0] in ("run", "compare") else [])]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_a_sweep_over_a_rate_reads_units(capsys, tmp_path):
    texts = ("bandwidth=1Gbps:10Gbps", "bandwidth=1.25e8:1.25e9")
    found = []
    for text in texts:
        assert main(["predict", "asp", "--sweep", text, "--slow", "3=0.5", "--json", "-"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def test_a_bound_on_memory_that_is_none_says_what_is_expected(capsys):
    assert main(["advise", "--parameters", "1000", "--compute", "1", "--memory", "lots"]) == 2
    assert "'lots' not understood; expected bytes, such as 16e9, 16GB or 16GiB" in capsys.readouterr().err


@pytest.mark.parametrize("speeds", [(1, 1, 0.5), (1, 1, 1, 1, 0.5)])
def test_speeds_of_another_number_of_workers_are_refused_in_python_and_on_the_command_line(speeds, capsys):
    machine = Machine(compute="20ms", speeds=speeds)
    said = set()
    for act in (refsgd.run, refsgd.predict, refsgd.compare):
        with pytest.raises(Usage) as error:
            act("bsp", workers=4, data="quadratic", steps=2, machine=machine,
                **({"runtime": "simulator"} if act is not refsgd.predict else {}))
        said.add(str(error.value))
    for command in (["run", "bsp", "--data", "quadratic", "--steps", "2"], ["predict", "bsp"], ["compare"],
                    ["advise", "--parameters", "1000", "--workers", "4"]):
        assert main([*command, "--compute", "20ms", "--speeds", ",".join(map(str, speeds))]) == 2
        lines = capsys.readouterr().err.strip().splitlines()  # the first may say that kernels are compiled
        said.add(lines[-1].removeprefix("refsgd: "))
    assert len(
        said) == 1 and f"for {len(speeds)} workers in a run with 4; expected a speed for each" in said.pop()


def test_speeds_fit_one_worker_alone_and_the_other_workers_of_a_comparison():
    uneven = Machine(compute="fixed(0.02)", speeds=(0.5, 1, 1, 1))
    for machine in (uneven, uneven.for_workers(1)):
        assert refsgd.predict("sequential", data="quadratic", steps=2,
                              machine=machine)["seconds_per_iteration"].value == pytest.approx(0.04)
    found = refsgd.compare(["sequential", "bsp"], data="quadratic", steps=2, machine=uneven,
                           runtime="simulator")
    assert found.machine == uneven and [row.simulated.machine.speeds
                                        for row in found.rows] == [(0.5,), uneven.speeds]
