"""`refsgd machine`: the machine in words, as a picture without overlaps, and as a file; every preset."""

import ast
import itertools
import json
import re
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import refsgd
from refsgd.cli import main
from refsgd.cluster.links import Link, Network, nodes_of
from refsgd.cluster.placement import usual
from refsgd.cluster.presets import PRESETS, load_machine
from refsgd.display.plots import machine_figure

pytestmark = pytest.mark.usefixtures("few_draws_throughout")

@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Lines are not wrapped."""
    monkeypatch.setenv("COLUMNS", "400")


def test_jias_machines_with_two_workers_and_a_server_on_each(capsys):
    assert main(["machine", "ipccc20-4vm", "--workers", "8", "--servers", "4"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "machine  unpaced, latency 10 ms, bandwidth 1250 MB/s, cores 1, hosts cyclic:4",
        "links",
        "  inside a host   free                         nodes of one host share memory",
        "  between hosts   10 ms, 10 Gbps               each host's, out and in, shared by its nodes",
        "hosts    4 hosts, 1 core each; 12 nodes on them",
        "  host 0: worker0, worker4, server0",
        "  host 1: worker1, worker5, server1",
        "  host 2: worker2, worker6, server2",
        "  host 3: worker3, worker7, server3",
        "a message of 1 MB on idle links",
        "  between hosts   10.8 ms                      worker0 to worker1: host0 out, host1 in",
        "  inside a host   0 s                          worker0 to worker4"]


def test_groups_links_and_the_time_of_a_message_at_each_level(capsys):
    options = ["--hosts", "4x6", "--inside", "1ms,1GB/s", "--groups", "2x2", "--uplink", "20ms,80Mbps,half", "--servers", "0"]
    assert main(["machine", "--compute", "1s", "--latency", "1ms", "--bandwidth", "1Gbps", *options]) == 0
    out = capsys.readouterr().out
    for said in ("between groups  20 ms, 10 MB/s, half duplex  each group's, up and down, shared by its hosts",
                 "hosts    4 hosts in 2 groups; 24 nodes on them",
                 "  group 1\n    host 2: worker12, worker13, worker14, worker15, worker16, worker17",
                 "inside a host   2 ms                         worker0 to worker1: worker0 inside out, worker1 inside in",
                 "between groups  121 ms                       worker0 to worker12: host0 out, group0, group1, host2 in"):
        assert said in out, said


def test_many_hosts_of_one_node_take_one_line(capsys):
    assert main(["machine", "das5-sites"]) == 0
    out = capsys.readouterr().out
    assert "  group 0\n    host 0: worker0, server0\n    hosts 1 to 32: worker1 to worker32, one on each\n" in out
    assert len(out.splitlines()) < 30


@pytest.mark.parametrize(("options", "lines"), [
    (["--hosts", "cyclic:10", "--groups", "0,2,4,6,8;1,3,5,7,9", "--uplink", "1ms,1Gbps"],
     [f"host {k}: worker{k}" for k in (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)]),
    (["--hosts", "; ".join(f"worker{k}" for k in (1, 0, 2, 4, 3, 5, 6, 7, 8, 9))],
     [f"host {k}: worker{w}" for k, w in enumerate((1, 0, 2, 4, 3))] + ["hosts 5 to 9: worker5 to worker9, one on each"])])
def test_only_consecutive_nodes_of_consecutive_hosts_share_a_line(options, lines, capsys):
    assert main(["machine", *options, "--workers", "10", "--servers", "0"]) == 0
    assert [line.strip() for line in capsys.readouterr().out.splitlines() if re.match(" +hosts? ", line)] == lines


def test_each_level_has_the_time_of_a_message_wherever_its_first_pair_is(capsys):
    assert main(["machine", "--hosts", "worker0; worker1,worker2", "--inside", "10us,32GB/s", "--workers", "3",
                 "--servers", "0"]) == 0
    assert "inside a host   41.2 us                      worker1 to worker2: " in capsys.readouterr().out


def test_it_writes_a_file_that_can_be_read_and_changed(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    assert main(["machine", "sites-2x8", "--uplink", "30ms,1Gbps", "--compute", "158ms", "--output", str(path)]) == 0
    assert load_machine(str(path)) == load_machine("sites-2x8").with_(uplink=Link(0.03, 1.25e8), compute="158ms")
    capsys.readouterr()
    assert main(["machine", str(path), "--json", "-"]) == 0
    assert refsgd.Machine.from_json(json.loads(capsys.readouterr().out)) == load_machine(str(path))


@pytest.mark.parametrize("arguments, says", [
    (["nowhere"], "machine 'nowhere' is neither a file nor a preset; expected a file or one of das5-ethernet"),
    (["sites-2x8", "--hosts", "2x2", "--workers", "5"], "hosts 2x2 have room for 4 workers, but worker4 is number 5"),
    (["--workers", "0"], "workers 0; expected at least 1"), (["--servers", "-1"], "servers -1; expected at least 0"),
    (["--plot", "x.txt"], "cannot draw x.txt"), (["--output", "/nowhere/x.toml"], "cannot write /nowhere/x.toml")])
def test_what_is_refused(arguments, says, capsys):
    assert main(["machine", *arguments]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"refsgd: {says}") and line.count("\n") == 1


SHOWN = [*((name, None) for name in PRESETS), ("ipccc20-4vm", (8, 4)), ("laptop", (40, 3)), ("hosts-4x8", (32, 8))]


@pytest.mark.parametrize("name, sizes", SHOWN)
def test_nothing_overlaps_in_a_picture(name, sizes):
    """Neither texts nor nodes, and all lie within it."""
    machine = load_machine(name)
    figure = machine_figure(machine, nodes_of(*sizes or usual(machine.hosts, machine.groups) or (4, 1)))
    FigureCanvasAgg(figure).draw()
    page, texts = figure.bbox, figure.axes[0].texts
    boxes = [(t.get_bbox_patch() or t).get_window_extent() for t in texts]
    for text, box in zip(texts, boxes):
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1, text.get_text()
    for (a, one), (b, other) in itertools.combinations(zip(texts, boxes), 2):
        assert not one.overlaps(other), (a.get_text(), b.get_text())
    said = "\n".join(t.get_text() for t in texts)
    assert str(machine.between) in said and (machine.uplink is None or str(machine.uplink) in said)


def test_a_picture_is_written(tmp_path):
    assert main(["machine", "racks-2x8", "--plot", str(tmp_path / "racks.png")]) == 0
    assert (tmp_path / "racks.png").stat().st_size > 5000


@pytest.mark.parametrize("name", PRESETS)
def test_presets_say_where_their_figures_come_from_and_run(name):
    """Each run of a preset's own size takes time, and nodes of one host are nearer than those of different groups."""
    preset = PRESETS[name]
    assert any(word in preset.says for word in ("2019", "2020", "2021", "assumed", "one computer"))
    machine = preset.machine if preset.machine.compute else preset.machine.with_(compute="fixed(0.1)")
    workers, servers = usual(machine.hosts, machine.groups) or (4, 1)
    workers = min(workers, 24)
    found = refsgd.run("bsp", net="shapes:1000000", data="none", workers=workers, servers=servers, steps=2, machine=machine)
    assert found.measured["seconds_per_iteration"] > machine.compute.mean
    network = Network(machine, nodes_of(workers, servers))
    times = {}
    for to in range(1, workers):
        way = network.way("worker0", f"worker{to}")
        seconds = sum(hop.latency_after for hop in way) + max((1e6 * hop.byte_time for hop in way), default=0.0)
        times.setdefault(len(way), set()).add(seconds)
    assert all(len(found) <= 2 for found in times.values())
    if machine.groups and workers > len(machine.groups[0]):
        assert max(times) == 4 and min(times[4]) > max(times[2])


def studied():
    """Names of presets on which a study runs: arguments of `load_machine`, in which an f-string's fields are one word."""
    names = set()
    for path in (Path(__file__).parents[2] / "benchmarks" / "studies").glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "load_machine":
                parts = getattr(call.args[0], "values", [call.args[0]])
                if any(isinstance(part, ast.Constant) for part in parts):  # else the path of a file
                    words = "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else r"\w+" for p in parts)
                    names |= {name for name in PRESETS if re.fullmatch(words, name)}
    return names


def test_only_a_preset_of_a_study_is_called_as_deployed(capsys):
    """Presets that no study runs on are run by readers alone."""
    assert studied() == {"das5-ethernet", "hosts-4x8", "ipccc20-4vm", "ipdps21-10g", "ipdps21-56g"}
    assert main(["list"]) == 0
    shown = re.findall(r"^  (\S+) +(.*)", capsys.readouterr().out, re.M)
    assert {*PRESETS} <= {name for name, _ in shown}
    for name in PRESETS:
        assert main(["machine", name]) == 0
        shown.append((name, capsys.readouterr().out))
    assert {name for name, text in shown if "as deployed" in text} <= studied()


SITES = ["--hosts", "cyclic:2", "--groups", "2x1", "--uplink", "20ms,100Mbps", "--compute", "158ms"]


@pytest.mark.parametrize("command", [
    ["predict", "adpsgd", "--data", "quadratic", "--workers", "2001"],
    ["predict", "adpsgd", "--data", "quadratic", "--sweep", "bandwidth=1e8,1e9", "--workers", "2001"]])
def test_what_no_formula_covers_and_is_too_large_to_simulate_is_said(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*command, *SITES]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "links shared by" in line


def test_what_formulas_cover_on_such_machines_is_predicted(capsys):
    assert main(["predict", "bsp", "--data", "quadratic", "--workers", "2", *SITES]) == 0
    assert "exact" in capsys.readouterr().out


def test_compare_simulates_such_machines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--algorithms", "bsp,allreduce,gosgd", "--runtime", "simulator", "--workers", "2", "--steps",
                 "3", "--data", "quadratic", "--quiet", *SITES]) == 0
    assert "gosgd" in capsys.readouterr().out


def test_a_wait_over_an_uplink_is_transfer():
    """One worker and its server in two groups: it waits for nothing but the way there and back."""
    machine = refsgd.Machine(compute="1s", latency=0.01, bandwidth=1e6, hosts=[["worker0"], ["server0"]], groups="2x1",
                             uplink="0.1s,100kB/s")
    found = refsgd.run("bsp", net="shapes:1000", data="none", workers=1, steps=3, machine=machine)
    assert found.measured["seconds_per_iteration"] == pytest.approx(1 + 2 * (0.01 + 0.1 + 4000 / 1e5))
    causes = found.measured["idle_by_cause"]
    assert causes["transfer"] == pytest.approx(0.3 / 1.3) == sum(causes.values())
