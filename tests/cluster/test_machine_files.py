"""Machine files in TOML and JSON: what they say, includes, what is refused and how, and every field as an option."""

import dataclasses
import json
import os

import pytest

from refsgd.cli import main, parsed
from refsgd.cli.options import FIELDS, machine_of
from refsgd.cluster import files
from refsgd.cluster.links import Link, Overhead
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import load_machine, load_timed

TOML = """
compute = "lognormal(158ms,0.1)"
latency = "25us"
bandwidth = "10Gbps"
hosts = [["worker0", "worker1", "server0"], ["worker2", "worker3"]]
inside = "5us,32GB/s"
groups = "2x1"

[uplink]
latency = "20ms"
bandwidth = "1Gbps"
duplex = "half"
"""
MACHINE = Machine("lognormal(0.158,0.1)", 25e-6, 1.25e9, hosts=(("worker0", "worker1", "server0"), ("worker2", "worker3")),
                  inside=Link(5e-6, 32e9), groups=((0,), (1,)), uplink=Link(0.02, 1.25e8, "half"))


@pytest.fixture
def file(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_toml_and_json_say_the_same(file):
    assert load_machine(file("cluster.toml", TOML)) == MACHINE
    assert load_machine(file("cluster.json", json.dumps(MACHINE.to_json()))) == MACHINE


@pytest.mark.parametrize("machine", [
    MACHINE, Machine(), Machine("exponential(0.02)", 0.001, speeds=(1, 2), cores=4, colocated=True, duplex="half"),
    Machine(hosts="cyclic:4", inside=Link(1e-6), update="gamma(0.002,4)", reduction=1e-10)])
@pytest.mark.parametrize("toml", [True, False])
def test_what_is_written_is_read_back(file, machine, toml):
    text = files.written(machine, toml)
    assert load_machine(file("m.toml" if toml else "m.json", text)) == machine
    assert ("speeds" in text) == bool(machine.speeds)  # nothing that is as in every machine


def test_a_file_says_only_what_differs_from_the_one_that_it_includes(file, tmp_path):
    (tmp_path / "racks").mkdir()
    file("cluster.toml", TOML)
    path = file("racks/half.toml", 'include = "../cluster.toml"\nbandwidth = "1Gbps"\nduplex = "half"\n')
    assert load_machine(path) == MACHINE.with_(bandwidth=1.25e8, duplex="half")
    nested = file("m.json", '{"include": "racks/half.toml", "machine": {"latency": 0.5}, "net": {"net": "tiny", "batch": 4}}')
    assert load_timed(nested) == (MACHINE.with_(bandwidth=1.25e8, duplex="half", latency=0.5), ("tiny", 4))
    assert load_timed(file("n.toml", 'include = "m.json"'))[1] == ("tiny", 4)


WRONG = [  # file a, file b, the file that is named, and what is said of it
    ('include = "b.toml"', 'include = "a.toml"', "b.toml",
     "include 'a.toml' forms the cycle a.toml -> b.toml -> a.toml; expected files that do not include each other"),
    ('include = "a.toml"', "", "a.toml", "include 'a.toml' forms the cycle a.toml -> a.toml"),
    ('include = "c.toml"', "", "a.toml", "include 'c.toml': No such file or directory; expected the name of another"),
    ("include = 3", "", "a.toml", "include 3; expected the name of another machine file"),
    ('include = "b.toml"', "latency = -1", "b.toml", "latency -1 s; expected a finite number of seconds >= 0"),
    ('include = "b.toml"\nlatency = nan', "latency = 1", "a.toml", "latency nan s; expected a finite number"),
    ('include = "b.toml"', 'lateny = "1ms"', "b.toml",
     "unknown keys ['lateny'] of a machine; did you mean latency? expected some of ['bandwidth'"),
    ("codec = inf", "", "a.toml", "codec inf s/byte; expected a finite number of s/byte >= 0"),
    ("bandwidth = 0", "", "a.toml", "bandwidth 0 bytes/s; expected a number of bytes/s > 0"),
    ('[inside]\nlatency = "1us"\nbandwith = 3', "", "a.toml",
     "inside: unknown keys ['bandwith'] of a link; did you mean bandwidth? expected some of ['latency', "),
    ('uplink = "1ms,-1Gbps"\ngroups = "2x2"', "", "a.toml", "uplink: bandwidth -125000000.0 bytes/s; expected"),
    ('groups = "2x2"', "", "a.toml", "groups 2x2 without an uplink; expected latency and bandwidth of each group's link"),
    ('groups = [[0, 1], [1, 2]]\nuplink = "1ms,1Gbps"', "", "a.toml",
     "groups: host 1 appears in groups 0 and 1; expected each host once"),
    ('hosts = [["worker0"], ["worker0"]]', "", "a.toml", "hosts: node worker0 appears in hosts 0 and 1; expected each node once"),
    ('latency = "1ms"\nlatency = "2ms"\n', "", "a.toml", "Cannot overwrite a value (at line 2, column 16); expected TOML"),
    ('hosts = [["worker0"], ["worker1", "server0", "worker9"]]', "", "a.toml",
     "hosts: worker9 on host 1 is not a node of this run; expected some of worker0, worker1, server0"),
    ('hosts = "1x1"', "", "a.toml", "hosts 1x1 have room for 1 workers, but worker1 is number 2; expected hosts for all"),
    ('groups = "2x1"\nuplink = "1ms,1Gbps"', "", "a.toml", "groups 2x1: host 2, where server0 runs, is in no group; expected"),
]


@pytest.mark.parametrize("a, b, names, says", WRONG)
def test_one_line_names_file_key_and_what_is_expected(file, tmp_path, capsys, a, b, names, says):
    file("b.toml", b)
    assert main(["run", "bsp", "--data", "quadratic", "--workers", "2", "--machine", file("a.toml", a)]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"refsgd: machine file {tmp_path / names}: {says}") and line.count("\n") == 1


def test_json_with_a_key_twice(file):
    with pytest.raises(ValueError, match="key 'latency' appears twice; expected JSON"):
        load_machine(file("m.json", '{"latency": 1, "latency": 2}'))


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean laptop"):
        load_machine("labtop")


def test_every_field_has_an_option():
    calibrated = {"updating", "crowding"}  # nobody knows them without a calibration, which writes a file
    assert {field.name for field in dataclasses.fields(Machine)} - {"source"} - calibrated == set(FIELDS)
    options = ["--compute", "1s", "--latency", "25us", "--bandwidth", "10Gbps", "--duplex", "half", "--update", "1ms",
               "--reduction", "1e-9", "--speeds", "4x1", "--colocated", "--cores", "2", "--hosts", "2x2", "--inside",
               "5us,32GB/s", "--groups", "2x1", "--uplink", "20ms,1Gbps,half", "--overhead", "20us,0.2ns/B"]
    for command in (["run", "bsp"], ["predict", "bsp"], ["compare"]):
        assert machine_of(parsed([*command, *options])) == Machine(
            "fixed(1)", 25e-6, 1.25e9, update="fixed(0.001)", reduction=1e-9, speeds=(1,) * 4, colocated=True, cores=2,
            duplex="half", hosts="2x2", inside=Link(5e-6, 32e9), groups=((0,), (1,)), uplink=Link(0.02, 1.25e8, "half"),
            overhead=Overhead(20e-6, 0.2e-9))


def test_none_removes_what_a_file_has(file):
    path = file("cluster.toml", TOML)
    said = ["--machine", path, "--hosts", "none", "--inside", "none", "--groups", "none"]
    found = machine_of(parsed(["run", "bsp", *said]))
    assert found == Machine("lognormal(0.158,0.1)", 25e-6, 1.25e9)


@pytest.mark.parametrize("option", [["--inside", "1us,10"], ["--uplink", "1us,10", "--groups", "2x1"]])
def test_links_without_a_unit_are_refused(option, capsys):
    assert main(["run", "bsp", "--data", "quadratic", *option]) == 2
    assert f"{option[0][2:]} 1us,10 is 10 bytes/s; expected at least 1kB/s" in capsys.readouterr().err


def test_an_error_does_not_blame_the_file_for_an_option(file, capsys):
    path = file("a.toml", 'latency = "1ms"')
    assert main(["run", "bsp", "--data", "quadratic", "--machine", path, "--hosts", "1x2", "--workers", "4"]) == 2
    assert capsys.readouterr().err.startswith("refsgd: hosts 1x2 have room for 2 workers")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["m.toml", "m.json"])
def test_a_file_is_read_in_the_encoding_that_its_byte_order_mark_names(tmp_path, encoding, name):
    path = tmp_path / name
    text = "# J\u00fclich\r\nlatency = 0.25" if name == "m.toml" else '{\r\n"latency": 0.25}'
    path.write_bytes(text.encode(encoding))
    assert load_machine(str(path)).latency == 0.25


@pytest.mark.parametrize(("content", "reason"), [
    ("latency = 0.1".encode("utf-16-le"), "zero bytes, as UTF-16 without a byte order mark"),
    ("# \xe9\nlatency = 0.1".encode("latin-1"), "'utf-8' codec can't decode")])
def test_another_encoding_is_named(tmp_path, content, reason):
    path = tmp_path / "m.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        load_machine(str(path))


def test_only_some_regular_files_are_read(tmp_path):
    """Neither pipes, which would be waited for, nor devices, nor huge files, nor ever more of them."""
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "large.toml").write_bytes(b"")
    os.truncate(tmp_path / "large.toml", 1 << 40)
    for further in ("pipe.toml", "large.toml", "/dev/zero"):
        (tmp_path / "m.toml").write_text(f'include = "{further}"')
        with pytest.raises(ValueError, match="not a regular file of at most 16 MiB"):
            load_machine(str(tmp_path / "m.toml"))
    for i in range(1500):
        (tmp_path / f"{i}.toml").write_text(f'include = "{i + 1}.toml"')
    (tmp_path / "1500.toml").write_text("latency = 0.25")
    with pytest.raises(ValueError, match="17 files include one another; expected at most 16"):
        load_machine(str(tmp_path / "0.toml"))
    assert load_machine(str(tmp_path / "1485.toml")).latency == 0.25
