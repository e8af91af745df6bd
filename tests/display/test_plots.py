"""Pictures show what the traces say: positions and heights are read back from the axes."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import matplotlib.colors
import matplotlib.text
import numpy as np
import pytest
from matplotlib.figure import Figure

import refsgd
from refsgd.algorithms import CATALOGUE, COMPARED
from refsgd.display import plots
from refsgd.display.result import PLOTS
from refsgd.experiment.sweep import sweep
from refsgd.trace import Computed, Sent, taken
from tests.cluster.test_links import Paused, deployment

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
MACHINE = refsgd.Machine(compute="exponential(0.02)", latency=0.001, bandwidth=1e4)


@pytest.fixture(scope="module")
def asp():
    return refsgd.run("asp", data="quadratic", steps=40, workers=4, lr=0.05, machine=MACHINE)


@pytest.fixture(scope="module")
def gossip():
    return refsgd.run("gosgd", data="quadratic", steps=40, workers=4, lr=0.05, p=0.3, machine=MACHINE)


@pytest.fixture(scope="module")
def several():
    return refsgd.compare(["sequential", "allreduce", "asp", "bsp", "ssp"], runtime="simulator",
                          data="quadratic", steps=12)


@pytest.fixture(scope="module")
def compared(several):
    return plots.comparison(several)


@pytest.fixture(scope="module")
def summed_up(asp):
    return plots.run(asp)


@pytest.fixture
def ax():
    return Figure().subplots()


def lightness(color: str) -> float:
    return float(np.dot(matplotlib.colors.to_rgb(color), (0.2126, 0.7152, 0.0722)))


def test_an_algorithm_has_one_colour_and_those_compared_most_have_different_ones():
    assert len({plots.color_of(name) for name in COMPARED}) == len(COMPARED)
    others = set(CATALOGUE) - set(plots.COLORS)
    assert not {plots.color_of(name) for name in others} & set(plots.COLORS.values())


@pytest.mark.parametrize("a,b", [("bsp", "asp"), ("asp", "ssp"), ("bsp", "allreduce"), ("gosgd", "adpsgd")])
def test_neighbours_in_the_comparison_differ_to_the_colour_blind(a, b):
    # Without one kind of cone red and green fall together: what is left to tell colours apart is lightness
    # and blue.
    ba, bb = (matplotlib.colors.to_rgb(plots.color_of(n))[2] for n in (a, b))
    assert abs(ba - bb) + abs(lightness(plots.color_of(a)) - lightness(plots.color_of(b))) > 0.15


@pytest.mark.parametrize("kind", PLOTS)
def test_every_picture_of_a_result_draws_on_the_axes_it_is_given_and_returns_them(kind, asp, ax):
    assert asp.plot(kind, ax) is ax
    assert ax.get_xlabel()
    ax.figure.canvas.draw()


def test_a_wrong_picture_and_a_missing_trace_are_named(asp):
    with pytest.raises(ValueError, match="plot 'pie'; expected one of accuracy_against_time"):
        asp.plot("pie")
    for kind in ("timeline", "replica_spread"):
        with pytest.raises(ValueError, match=f"plot '{kind}' of a result read from JSON, which has no trace"):
            refsgd.Result.from_json(asp.to_json()).plot(kind)


def test_a_timeline_colours_exactly_the_waiting_and_the_computing(asp, ax):
    plots.timeline(asp.trace, ax, causes=True)
    seconds = dict.fromkeys([plots.WORK_COLOR, *plots.CAUSE_COLORS.values()], 0.0)
    for bars in ax.collections:
        color = matplotlib.colors.to_hex(bars.get_facecolor()[0]).upper()
        seconds[color] += sum(path.get_extents().width for path in bars.get_paths())
    total = asp.trace.seconds * 4
    assert seconds[plots.WORK_COLOR] == pytest.approx(sum(asp.trace.busy.values()))
    for cause in ("transfer", "queueing"):
        assert seconds[plots.CAUSE_COLORS[cause]] / total == pytest.approx(
            asp.measured["idle_by_cause"][cause], abs=1e-9)


def test_a_window_of_a_timeline_begins_at_its_start_and_keeps_within(asp, ax):
    plots.timeline(asp.trace, ax, 0.1, 0.2, nodes=["worker1"])
    extents = [path.get_extents() for bars in ax.collections for path in bars.get_paths()]
    assert min(e.x0 for e in extents) >= 0 and max(e.x1 for e in extents) <= 0.1 + 1e-12
    assert [label.get_text() for label in ax.get_yticklabels()] == ["worker1"]


HOSTS = refsgd.Machine(bandwidth=100, hosts=[["worker0", "worker2"], ["worker1"]], groups=[[0], [1]],
                       uplink={"latency": 0, "bandwidth": 50})


def two_senders(machine):
    """Both workers of host 0 send 100 bytes to worker 1 at once; the run lasts 4 s."""
    return Paused(deployment([[("worker1", 100), 4], [], [("worker1", 100)]], worker1=2), machine).run().trace


def link_rows(ax):
    """The share at the right of each row below the nodes, by the row's name."""
    names = dict(zip(ax.get_yticks(), (label.get_text() for label in ax.get_yticklabels())))
    return {names[text.xy[1]]: text.get_text() for text in ax.texts if text.get_text().endswith(" %")}


def test_a_timeline_groups_nodes_by_host_and_leaves_gaps_between_hosts(ax):
    plots.timeline(two_senders(HOSTS), ax)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[:3] == ["worker0", "worker2", "worker1"]
    assert list(ax.get_yticks()[:3]) == pytest.approx([0, 1, 2 + plots.traces.GAP])
    assert [text.get_text() for text in ax.texts if text.get_text().startswith("host")] == ["host0", "host1"]


@pytest.mark.parametrize(("machine", "window", "links", "shares"), [
    # 1 s a message on host 0's link and 2 s on those of the groups, one after the other
    (HOSTS, (0, None), 12, {"host0 out": "50 %", "group0 up": "100 %", "group1 down": "100 %"}),
    (HOSTS, (0, 8), 12, {"host0 out": "50 %", "group0 up": "100 %", "group1 down": "100 %"}),
    (HOSTS, (1.5, 3.5), 12, {"host0 out": "25 %", "group0 up": "100 %", "group1 down": "100 %"}),
    (HOSTS, (2, 4), 12, {"group0 up": "100 %", "group1 down": "100 %"}),
    (HOSTS, (0, None), 2, {"group0 up": "100 %", "group1 down": "100 %"}),
    (HOSTS.with_(groups=(), uplink=None), (0, None), 12, {"host0 out": "50 %"}),
    (HOSTS.with_(groups=(), uplink=None, duplex="half"), (0, None), 12, {"host0": "50 %"}),
    (refsgd.Machine(bandwidth=100), (0, None), 12, {}),
    (refsgd.Machine(bandwidth=100, colocated=True), (0, None), 12, {})])
def test_each_shared_link_that_was_used_has_a_row_with_its_share_of_the_time(ax, machine, window, links, shares):
    trace = two_senders(machine)
    plots.timeline(trace, ax, *window, links=links)
    assert link_rows(ax) == shares
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[3:] == list(shares)
    seconds = min(window[1] or 4, 4) - window[0]
    drawn = [sum(path.get_extents().width for path in bars.get_paths()) for bars in ax.collections
             if matplotlib.colors.to_hex(bars.get_facecolor()[0]) == plots.traces.MESSAGE_COLOR]
    assert drawn == pytest.approx([float(share[:-2]) / 100 * seconds for share in shares.values()])


def test_a_flat_timeline_has_one_row_for_each_node_in_their_order(ax):
    trace = two_senders(refsgd.Machine(bandwidth=100))
    assert not trace.hosts and not trace.links and not trace.shared_links
    plots.timeline(trace, ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["worker0", "worker1", "worker2"]
    assert list(ax.get_yticks()) == [0, 1, 2] and ax.get_ylim() == (2.5, -0.5) and not ax.texts


def test_the_page_of_a_run_shows_hosts_and_links_and_grows_with_their_rows(summed_up):
    machine = MACHINE.with_(hosts="cyclic:4", inside="1us,1GB/s", groups="2x2", uplink="1ms,10kB/s")
    page = plots.run(refsgd.run("asp", data="quadratic", steps=16, workers=8, servers=4, lr=0.05, machine=machine))
    page.canvas.draw()
    labels = [label.get_text() for label in page.axes[3].get_yticklabels()]
    assert labels[:4] == ["worker0", "worker4", "server0", "worker1"] and "group1 down" in labels
    assert page.get_figheight() > summed_up.get_figheight() == 6.6
    names = [text.get_window_extent() for text in page.axes[3].texts if text.get_text().startswith("host")]
    nodes = [label.get_window_extent() for label in page.axes[3].get_yticklabels()]
    assert max(box.x1 for box in names) < min(box.x0 for box in nodes)  # beside each other
    rows = sorted(nodes, key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(rows))


def test_staleness_over_time_has_the_mean_of_the_histogram(asp, ax):
    plots.staleness_over_time(asp.trace, ax, bins=1)
    (_, mean), = [line.get_xydata()[0] for line in ax.lines]
    assert mean == pytest.approx(asp.measured["staleness_mean"])
    heights = list(np.asarray(ax.collections[0].get_array()).ravel())
    counts = asp.measured["staleness_histogram"]
    assert heights == pytest.approx([100 * counts.get(str(k), 0) / 160 for k in range(len(heights))])


def test_the_communication_pattern_sums_to_the_bytes_sent(asp, gossip, ax):
    for result, unit in ((asp, 1e3), (gossip, 1.0)):
        table = plots.communication(result.trace, Figure().subplots()).images[0].get_array()
        assert list(table.sum(axis=1) * unit) == pytest.approx(list(result.measured["bytes_sent_by_node"].values()))
        assert not np.diag(table).any()


def test_the_spread_of_replicas_is_computed_from_what_they_were(gossip):
    from refsgd.experiment.result import final_parameters
    from refsgd.runtimes.simulator import simulate

    found = refsgd.run("independent", data="quadratic", steps=5, workers=3, lr=0.1)
    (*_, (seconds, distance)) = found.trace.replica_spread
    run = simulate(found.deploy, found.machine, 0)
    x = [np.asarray(run.values[n], float) for n in run.trace.nodes]
    assert distance == pytest.approx(np.mean([np.sum((one - final_parameters(run)) ** 2) for one in x]),
                                     rel=1e-6)
    assert distance == pytest.approx(found.consensus_distance) and seconds == found.measured["seconds"]
    assert [t for t, _ in gossip.trace.replica_spread] == sorted(t for t, _ in gossip.trace.replica_spread)


def test_the_spread_of_elastic_replicas_is_seen_and_that_of_a_parameter_servers_workers_is_none(asp, ax):
    elastic = refsgd.run("easgd", data="quadratic", steps=12, workers=3, lr=0.05)
    assert 12 <= len(elastic.trace.replica_spread) <= 3 * 12
    plots.replica_spread({"easgd": elastic, "asp": asp}, ax)
    assert [line.get_label() for line in ax.lines] == ["easgd"]


def test_throughput_stands_beside_its_formula_and_the_ideal(ax):
    runs = [refsgd.run("bsp", data="quadratic", steps=10, workers=n,
                       machine=refsgd.Machine(compute="fixed(0.02)")) for n in (1, 2, 4)]
    plots.throughput_against_workers(runs, ax)
    formula, points, ideal = ax.lines
    assert formula.get_ydata() == pytest.approx(points.get_ydata())  # nobody waits where all are equally fast
    assert ideal.get_ydata()[-1] == pytest.approx(points.get_ydata()[-1])
    assert points.get_color() == plots.color_of("bsp")


def test_predicted_against_measured_leaves_out_what_has_no_formula_and_hollows_bounds(asp, ax):
    bound, none = refsgd.Result.from_json(asp.to_json()), replace(asp, predicted={})
    bound.predicted["seconds_per_iteration"]["kind"] = "bound"
    plots.predicted_against_measured({"asp": asp, "bound": bound, "none": none}, ax)
    full, hollow, diagonal = ax.lines
    assert (full.get_label(), hollow.get_label()) == ("asp", "bound")
    assert (full.get_markerfacecolor(), hollow.get_markerfacecolor()) == (plots.color_of("asp"), "none")
    assert list(full.get_xdata()) == [1e3 * asp.predicted["seconds_per_iteration"]["value"]]
    assert list(full.get_ydata()) == [1e3 * asp.measured["seconds_per_iteration"]]
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())


def test_updates_and_seconds_are_the_columns_of_the_history(asp):
    by_time, by_updates = (draw({"asp": asp}, Figure().subplots()).lines[0]
                           for draw in (plots.accuracy_against_time, plots.accuracy_against_updates))
    assert list(by_time.get_xdata()) == [h[0] for h in asp.history]
    assert list(by_updates.get_xdata()) == [h[1] for h in asp.history]


def boxes(figure, artists):
    figure.canvas.draw()
    return [a.get_window_extent() for a in artists]


def test_the_pictures_letters_can_be_read_at_800_pixels_and_legends_cover_no_bar(compared, summed_up):
    """9 of 800 pixels, and titles; one key to the colours, outside all axes."""
    for figure in (compared, summed_up):
        figure.canvas.draw()
        wide = figure.get_size_inches()[0] * 72
        drawn = [t for t in figure.findobj(matplotlib.text.Text) if t.get_text() and t.get_visible()]
        assert len(drawn) > 20 and min(t.get_fontsize() for t in drawn) / wide * 800 >= 9
        assert all(ax.get_title(loc="left") and ax.get_legend() is None for ax in figure.axes)
        (legend,) = figure.legends
        (key,) = boxes(figure, [legend])
        assert not any(key.overlaps(box) for box in boxes(figure, figure.axes))
        named = {t.get_text() for t in legend.get_texts()}
        assert {"computing", "waits: transfer", "formula", "message"} <= named


def test_the_comparison_has_a_tick_where_the_formula_is_and_three_timelines(several, compared):
    idle, times, timeline = compared.axes
    for ax, key, scale in ((idle, "idle_ratio", 100), (times, "seconds_per_iteration", 1000)):
        assert [line.get_xdata()[0]
                for line in ax.lines] == pytest.approx(
                    [scale * row.predicted[key]["value"] for row in several.rows])
    assert list(dict.fromkeys(label.get_text().split()[0] for label in timeline.get_yticklabels())) == [
        r.algorithm for r in several.results.values() if r.workers > 1][:3]


def test_one_palette_for_causes_in_bars_and_in_timelines(compared):
    drawn = set()
    for ax in compared.axes:
        for artist in [*ax.patches, *ax.collections]:
            drawn.add(matplotlib.colors.to_hex(np.atleast_2d(artist.get_facecolor())[0]).upper())
    assert drawn <= {"#C4C8CE", plots.WORK_COLOR, *plots.CAUSE_COLORS.values()} and len(drawn) > 4


def colours(ax):
    """Those of bars that are together wider than a thousandth of the axes."""
    widths = Counter()
    for patch in ax.patches:
        widths[matplotlib.colors.to_hex(patch.get_facecolor()).upper()] += patch.get_width()
    for bars in ax.collections:
        widths[matplotlib.colors.to_hex(bars.get_facecolor()[0]).upper()] += sum(
            path.get_extents().width for path in bars.get_paths())
    return {color for color, width in widths.items() if width > 1e-3 * ax.get_xlim()[1]}


@pytest.mark.parametrize("name, options",
                         [("ssp", {}), ("ssp", {"staleness": 1}), ("bsp", {}), ("asp", {}), ("easgd", {}),
                          ("adpsgd", {})])
def test_the_key_of_a_run_names_exactly_the_causes_drawn_and_every_label_lies_inside_its_axes(name, options):
    figure = plots.run(refsgd.run(name, data="quadratic", workers=3, steps=6, **options))
    _learning, idle, _ages, below = figure.axes
    (legend,) = figure.legends
    named = {t.get_text().removeprefix("waits: ") for t in legend.get_texts()} & set(plots.CAUSE_COLORS)
    assert {plots.CAUSE_COLORS[cause] for cause in named} == (colours(idle) | colours(below)) & set(
        plots.CAUSE_COLORS.values())
    (_frame, *labels) = boxes(figure, [idle, *idle.texts])
    inside = idle.get_window_extent()
    assert idle.texts and all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in labels)


def test_the_comparison_shows_a_wait_at_the_slack_where_there_is_one():
    """The slower worker is three iterations behind only after the first twelve."""
    machine = refsgd.Machine(compute=0.02, latency=0.001, bandwidth=1e6, speeds=(1.0, 1.0, 0.8))
    options = {"ssp": {"staleness": 3}}
    found = refsgd.compare(["asp", "ssp"], runtime="simulator", data="quadratic", workers=3, steps=40,
                           machine=machine, options=options)
    below = plots.comparison(found).axes[2]
    assert plots.CAUSE_COLORS["slack"] in colours(below) and "slack" in below.get_title(loc="left")
    without = refsgd.compare(["asp"], runtime="simulator", data="quadratic", workers=3, steps=40,
                             machine=machine)
    assert plots.comparison(without).axes[2].get_title(loc="left") == "The first iterations: asp"


def test_whole_figures_draw(compared, summed_up, tmp_path):
    plots.save(summed_up, tmp_path / "run.png")
    plots.save(
        plots.sweep_figure(sweep(["bsp", "asp"], "workers", (1, 2, 4), data="quadratic", machine=MACHINE)),
        tmp_path / "sweep.png")
    plots.save(compared, tmp_path / "comparison.png")
    assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in ("run", "sweep", "comparison"))


def test_without_axes_the_current_ones_of_pyplot_are_used(asp):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    assert asp.plot("staleness_histogram") is ax
    plt.close(figure)


# -- layers --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_layer():
    machine = refsgd.Machine(compute="fixed(0.03)", bandwidth=1000, codec=1e-4)
    return refsgd.run("bsp", data="quadratic", steps=2, workers=2, layout="layers", overlap="both",
                      machine=machine, compress="fp16")


def bars(ax):
    """(start, end, row, colour) of each bar."""
    return sorted((box.x0, box.x1, round(box.y0 + 0.35), matplotlib.colors.to_hex(found.get_facecolor()[0]))
                  for found in ax.collections for box in (path.get_extents() for path in found.get_paths()))


def test_the_picture_of_layers_has_each_piece_and_each_message_at_its_time(by_layer, ax):
    plots.layers(by_layer.trace, ax, node="worker1")
    trace, found = by_layer.trace, bars(ax)
    computed = sorted((e.start, e.time) for e in trace.of(Computed, "worker1") if e.time > e.start)
    assert np.allclose([bar[:2] for bar in found if bar[2] == 0], computed)
    for row, picked in ((1, [t for t in trace.transits if t.src == "worker1"]),
                        (2, [t for t in trace.transits if t.to == "worker1"])):
        drawn = [(a, b) for a, b, r, _ in found if r == row]
        assert np.allclose(sorted(b - a for a, b in drawn), sorted(t.nbytes / 1000 for t in picked))
        assert all(b <= c + 1e-9 for (_, b), (c, _) in pairwise(drawn))  # a link serves one at a time
    labels = {text.get_text() for text in ax.texts}
    assert {"forward 1", "backward 3", "Push 3"} <= labels or {"1", "3"} <= labels


def test_what_a_layer_computes_and_the_parts_it_sends_have_one_colour(by_layer, ax):
    found = bars(plots.layers(by_layer.trace, ax, end=0.04))
    last = max((bar for bar in found if bar[2] == 1), key=lambda bar: -bar[0])  # the last layer leaves first
    assert last[3] in {bar[3] for bar in found if bar[2] == 0}


def test_a_timeline_names_pieces_where_there_is_room_and_gives_codecs_their_colour(by_layer, ax):
    plots.timeline(by_layer.trace, ax, causes=True)
    assert {text.get_text() for text in ax.texts} & {"forward 1", "backward 3", "1", "3"}
    assert plots.CAUSE_COLORS["codec"] in colours(ax)
    assert "codec" in [text.get_text() for text in ax.get_legend().get_texts()]
    narrow = Figure(figsize=(0.3, 2)).subplots()
    plots.timeline(by_layer.trace, narrow)
    assert not narrow.texts


def test_pieces_parts_and_codecs_have_names_in_the_exported_trace(by_layer):
    found = json.loads(by_layer.trace.to_chrome())["traceEvents"]
    assert {"forward", "forward 1", "backward 0", "codec", "update"} <= {e["name"] for e in found}
    assert {f"Push of part {k}" for k in range(4)} <= {e["name"] for e in found if e["ph"] == "s"}


@pytest.mark.parametrize("algorithm", CATALOGUE)
def test_each_message_is_an_arrow_of_the_exported_trace_between_its_programs(algorithm):
    """Perfetto drops an arrow whose id is not a number, and one that ends where no program runs."""
    trace = refsgd.run(algorithm, data="quadratic", workers=4, steps=6, evaluations=0).trace
    pid, ends = {n: i for i, n in enumerate(trace.nodes)}, {"s": {}, "f": {}}
    for e in json.loads(trace.to_chrome())["traceEvents"]:
        if e["ph"] in ends:
            assert type(e["id"]) is int and e["id"] not in ends[e["ph"]]
            ends[e["ph"]][e["id"]] = e["pid"], e["tid"], e["ts"]
    sent = {(e.node, e.to, e.number): (pid[e.node], e.program, e.time * 1e6) for e in trace.of(Sent)}
    taking = {taken(e): (pid[e.node], e.program, e.time * 1e6) for e in trace.events if taken(e)}
    assert ends["s"].keys() == ends["f"].keys()
    assert sorted((ends["s"][i], ends["f"][i]) for i in ends["f"]) == sorted((sent[m], taking[m]) for m in taking)


def test_encoding_is_a_cause_of_waiting_of_its_own(by_layer):
    """At least the time that workers encode; the servers' decoding is added."""
    waited = by_layer.measured["idle_by_cause"]
    encoded = sum(e.time - e.start for e in by_layer.trace.of(Computed)
                  if e.work == "codec" and e.node.startswith("worker"))
    assert waited["codec"] * by_layer.trace.seconds * 2 >= encoded * (1 - 1e-9) > 0
    assert waited["update"] == 0
