"""Profiles of jobs: what is read, what it predicts, and the one line about a file that cannot be used."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from refsgd.cli import main
from refsgd.cluster import files
from refsgd.experiment.advice.candidates import TRACED
from refsgd.experiment.prepare import Usage
from refsgd.experiment.profiles import chrome
from refsgd.experiment.profiles.job import read
from refsgd.experiment.profiles.whatif import what_if

DATA = os.environ.get("REFSGD_DATA")
TRACES = Path(DATA or "") / "traces"
needs_data = pytest.mark.skipif(not DATA or not TRACES.is_dir(), reason="needs REFSGD_DATA with traces/")

#: forward and backward of each rank in ms, by step
TIMES = [[(10, 20), (10, 20), (10, 20), (10, 20)], [(10, 20), (20, 40), (10, 20), (10, 20)],
         [(10, 20), (10, 20), (10, 20), (20, 40)]]
SYNC = 5.0  # ms of grads-sync once all ranks are there


def event(name, start, took, **more):
    """A complete event; milliseconds."""
    return {"ph": "X", "name": name, "ts": 1e3 * start, "dur": 1e3 * took, "pid": 0, "tid": 0, **more}


def timeline(times=TIMES, first=0, pid=lambda rank: rank):
    """Ranks that compute, and wait for the last one in grads-sync."""
    events = []
    for step in range(len(times[0])):
        begin = 10_000.0 * step
        end = begin + max(sum(rank[step]) for rank in times) + SYNC
        for rank, own in enumerate(times):
            f, b = own[step]
            for name, start, took in (("forward-compute", begin, f), ("backward-compute", begin + f, b),
                                      ("grads-sync", begin + f + b, end - begin - f - b)):
                events.append(event(name, start, took, pid=pid(rank), args={"step": first + step}))
    return events


def profile(rank, slow=1.0, steps=3, world=2, sizes=(1_000_000, 4_000_000), start=7.0, info=True):
    """A rank of DDP on CPUs: a forward pass, buckets that gloo sends after the backward pass, an optimiser."""
    events = []
    for step in range(steps):
        at, took = start + 100 * step, 20 * slow
        events += [event("aten::addmm", at, took, cat="cpu_op", tid=1),
                   event("## backward ##", at + 5 * slow, took - 5 * slow, cat="user_annotation", tid=1)]
        sent = at + 40  # both ranks have computed
        for k, n in enumerate(sizes):
            seconds = 1 + n * 4e-6  # ms: latency and bytes
            events.append(event("gloo:all_reduce", at + took if k == 0 else sent, sent + seconds - (
                at + took if k == 0 else sent), cat="user_annotation", tid=2,
                args={"Input Dims": [[n]], "Input type": ["float"]}))
            sent += seconds
        events += [event("Optimizer.step#SGD.step", sent, 2, cat="user_annotation", tid=1),
                   event("aten::add_", sent, 2, cat="cpu_op", tid=1),
                   event(f"ProfilerStep#{step + 10}", at, sent + 2 - at, cat="user_annotation", tid=1)]
    data = {"schemaVersion": 1, "traceEvents": events}
    return data | {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": world}} if info else data


def wrote(path, data, packed=None):
    """The path of a trace file, which is compressed if its name says so or `packed` does."""
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    packed = str(path).endswith(".gz") if packed is None else packed
    path.write_bytes(gzip.compress(raw) if packed else raw)
    return str(path)


# -- timelines ----------------------------------------------------------------------------------------------


def check_timeline(job):
    """What the times above give."""
    assert job.ranks == (0, 1, 2)
    assert job.compute == pytest.approx(1e-3 * np.sum(TIMES, axis=2))
    assert job.exchange == pytest.approx(SYNC / 1e3)
    assert job.phases == pytest.approx({"forward": 140 / 12e3, "backward": 280 / 12e3})
    assert job.synchronous == pytest.approx((30 + 60 + 30 + 60) / 4e3 + SYNC / 1e3)


def test_a_timeline_is_read_in_any_dress(tmp_path):
    events = timeline()
    pairs = [e for x in sorted(events, key=lambda e: e["ts"]) for e in (
        {**x, "ph": "B"}, {"ph": "E", "pid": x["pid"], "tid": 0, "ts": x["ts"] + x["dur"]})]
    texts = [{**e, "ts": f"{e['ts']:.3f}", "dur": f"{e['dur']:.3f}"} for e in events]
    for name, data, packed in (
            ("list.json", events, None), ("object.json", {"traceEvents": events, "unit": "ms"}, None),
            ("list.json.gz", events, None), ("packed.json", events, True), ("plain.json.gz", events, False),
            ("pairs.json", pairs, None), ("texts.json", texts, None),
            ("mark.json", b"\xef\xbb\xbf" + json.dumps(events).encode(), None),
            ("latin.json", json.dumps([*events, event("\xe9", 0, 1)], ensure_ascii=False).encode("latin-1"), None)):
        check_timeline(read([wrote(tmp_path / name, data, packed)]))


def test_a_file_for_each_rank_and_other_numbers(tmp_path):
    for rank in range(3):
        own = [{**e, "pid": 4711} for e in timeline() if e["pid"] == rank]
        wrote(tmp_path / f"t-rank_{rank}.json", own)
    check_timeline(read([str(tmp_path / f"t-rank_{rank}.json") for rank in (2, 0, 1)]))
    named = [{"ph": "M", "name": "process_name", "pid": 900 + r, "args": {"name": f"DP rank [{2 - r}]"}}
             for r in range(3)]
    found = read([wrote(tmp_path / "named.json", named + timeline(pid=lambda rank: 902 - rank))])
    check_timeline(found)
    assert read([wrote(tmp_path / "high.json", timeline(pid=lambda r: 8 + 8 * r))]).ranks == (8, 16, 24)


def test_steps_that_some_ranks_lack_are_left_out(tmp_path):
    events = [e for e in timeline(first=16) if (e["pid"], e["args"]["step"]) != (1, 18)]
    found = read([wrote(tmp_path / "t.json", events)])
    assert found.steps == (16, 17, 19)
    assert any("1 steps that some ranks lack" in each for each in found.unknown)


def test_what_if(tmp_path):
    found = what_if(read([wrote(tmp_path / "t.json", timeline())]))
    rows = {row.name: 1e3 * row.seconds for row in found.rows}
    mean = np.sum(TIMES) / 12
    assert rows["as it was"] == pytest.approx(45 + SYNC)
    assert rows["equal ranks"] == pytest.approx(mean + SYNC)
    assert [rows[name] for name in rows if name.startswith("without")] == pytest.approx([1.5 * 150 / 4 + SYNC])
    assert rows["bsp"] == rows["allreduce"] == pytest.approx(45 + SYNC)
    # windows of two steps: 90 and 90 of the slowest, and an exchange every two steps
    assert rows["local-sgd period=2"] == pytest.approx((90 + 90) / 4 + SYNC / 2)
    assert rows["local-sgd period=4"] == pytest.approx(150 / 4 + SYNC / 4)
    assert "in turns" in found.verdict
    assert set(rows) > {c.name for c in TRACED}  # each strategy applies to three ranks
    assert "level stages" not in rows


def test_a_rank_that_is_slow_all_the_time_gets_less_work(tmp_path):
    times = [[(10, 20)] * 4, [(20, 40)] * 4, [(10, 20)] * 4]
    found = what_if(read([wrote(tmp_path / "t.json", timeline(times))]))
    rows = {row.name: 1e3 * row.seconds for row in found.rows}
    assert rows["work by speed"] == pytest.approx(3 / (1 / 30 + 1 / 60 + 1 / 30) + SYNC)
    assert rows["without rank 1"] == pytest.approx(30 * 1.5 + SYNC)
    assert rows["local-sgd period=4"] == pytest.approx(60 + SYNC / 4)  # windows do not help
    assert "Rank 1 is slow all the time: work by speed" in found.verdict


def test_one_pause_is_not_a_rank_that_is_slow_all_the_time(tmp_path):
    times = [[(10, 20)] * 9 + [(10, 6000)], [(10, 20)] * 10]
    verdict = what_if(read([wrote(tmp_path / "t.json", timeline(times, first=10))])).verdict
    assert "Pauses cost most: step 19 of rank 0 took 6.01 s, x200 of its median" in verdict
    assert "without 1 such pause a step takes 35 ms" in verdict


def test_a_rank_that_is_slow_in_few_steps_is_not_slow_all_the_time(tmp_path):
    times = [[(10, 20)] * 7 + [(20, 50)] * 3, [(10, 20)] * 10, [(10, 20)] * 10]  # x2.3 is no pause
    assert "slow in turns" in what_if(read([wrote(tmp_path / "t.json", timeline(times))])).verdict


def staged(slow, micro=4, count=3):
    """Ranks of a pipeline whose last stage takes `slow` times as long, one forward and one backward."""
    events, hop = [], 0.5
    for rank in range(2):
        free, ended = [0.0] * count, {}
        order = [[("f", m) for m in range(min(count - s, micro))] for s in range(count)]
        for s, some in enumerate(order):
            for m in range(micro):
                some.append(("b", m))
                some += [("f", m + count - s)] * (m + count - s < micro)
        while any(order):
            for s in range(count):
                kind, m = order[s][0] if order[s] else ("", 0)
                near = (kind, m, s - 1 if kind == "f" else s + 1)
                if not kind or (0 <= near[2] < count and near not in ended):
                    continue
                order[s].pop(0)
                start = max(free[s], ended.get(near, -hop) + hop)
                took = {"f": 10, "b": 20}[kind] * (slow if s == count - 1 else 1)
                free[s] = ended[kind, m, s] = start + took
                events.append(event("forward-compute" if kind == "f" else "backward-compute", start, took, pid=rank,
                                    tid=10 * s, args={"step": 3, "mb_id": m}))
                if 0 <= near[2] < count:
                    events.append(event("forward-recv", start - hop, hop, pid=rank, tid=10 * s + 1, args={"step": 3}))
    return events, max(free)


@pytest.mark.parametrize("slow", [1.0, 2.0])
def test_a_pipeline_is_run_again_in_its_order(tmp_path, slow):
    events, took = staged(slow)
    found = read([wrote(tmp_path / "p.json", events)])
    assert found.compute[0, 0] == pytest.approx(took / 1e3)
    assert len(found.stages) == 3
    assert found.stages[2] == pytest.approx(slow * found.stages[0])
    verdict = what_if(found).verdict
    assert ("Stage 2, the last of 3" in verdict and "No data-parallel" in verdict) == (slow > 1)


def test_passes_that_wait_for_each_other_are_refused(tmp_path):
    events = [event(name, start, 1, tid=tid, pid=rank, args={"step": 1}) for rank in (0, 1) for tid, name, start in (
        (0, "backward-compute", 0), (0, "forward-compute", 2), (1, "forward-compute", 4), (1, "backward-compute", 6))]
    with pytest.raises(Usage, match="wait for each other"):
        read([wrote(tmp_path / "p.json", events)])


# -- profiles of PyTorch ------------------------------------------------------------------------------------


def test_profiles_of_two_ranks(tmp_path):
    paths = [wrote(tmp_path / f"{rank}.json.gz", profile(rank, 1 + rank, start=1000.0 * rank)) for rank in (0, 1)]
    found = read(paths)
    assert found.steps == (10, 11, 12)
    assert found.compute == pytest.approx(1e-3 * np.array([[22] * 3, [42] * 3]), rel=1e-6)
    assert found.exchange == pytest.approx(22e-3)  # the second rank comes last, and waits for bytes alone
    assert found.link == pytest.approx((0.5e-3, 1e9), rel=1e-6)  # 2 (n-1) messages, 2 (n-1)/n of the bytes
    assert [each["parameters"] for each in found.net("n")["layers"]] == [4_000_000, 1_000_000]
    assert found.collectives["all_reduce", 4e6, 2] == (1, pytest.approx(5e-3))


def test_files_of_some_ranks_are_not_the_whole_job(tmp_path):
    few, both = (what_if(read([wrote(tmp_path / f"{world}-rank{r}.json", profile(r, 1 + r, world=world))
                               for r in (0, 1)])) for world in (128, 2))
    rows = {row.name: row for row in few.rows}
    assert few.job.link  # over which two of 128 ranks would exchange faster than all
    assert rows["without rank 1"].seconds == pytest.approx(0.022 * 128 / 127 + 0.022)
    assert rows["allreduce"].seconds == pytest.approx(rows["as it was"].seconds)
    assert "of exchange every step, as it was" in rows["bsp"].assumption
    assert not [name for name in rows if name.startswith("backup")]  # the slowest may be one of the others
    assert "with equal ranks, among the 2 of 128 whose files are here." in few.verdict
    assert [row.assumption[:3] for row in both.rows if row.name.startswith("backup")] == ["50%"]
    equal = what_if(read([wrote(tmp_path / f"rank{r}.json", profile(r, world=3)) for r in (0, 1)]))
    assert "by treating stragglers, unless they are among the others." in equal.verdict


def test_the_strategy_of_the_job_itself_takes_as_long_as_the_job(tmp_path):
    for last in (False, True):  # accumulation: buckets in the last step alone, which no link is asked for in each
        data = [profile(r, 1 + r) for r in (0, 1)]
        for each in data:
            each["traceEvents"] = [e for e in each["traceEvents"] if not last or e["ts"] > 2e5 or "gloo" not in e["name"]]
        found = what_if(read([wrote(tmp_path / f"rank{r}.json", data[r]) for r in (0, 1)]))
        rows = {row.name: row for row in found.rows}
        assert found.job.link
        assert rows["allreduce"].seconds == pytest.approx(rows["as it was"].seconds)
        assert ("over the fitted link" in rows["bsp"].assumption) == (not last)


def test_one_size_tells_no_bandwidth(tmp_path):
    found = read([wrote(tmp_path / f"{r}.json", profile(r, sizes=(1000, 1000))) for r in (0, 1)])
    assert found.link is None
    assert any("one size" in each for each in found.unknown)


def test_kernels_and_merged_processes(tmp_path):
    """A GPU's kernels have its number as pid, and ranges of the GPU repeat those of the CPU."""
    events = [event("ProfilerStep#1", 0, 100, cat="user_annotation", pid=99),
              event("ProfilerStep#1", 10, 80, cat="gpu_user_annotation", pid=0),
              event("nccl:all_reduce", 5, 1, cat="user_annotation", pid=99, args={
                  "Input Dims": [[1000]], "Input type": ["float"]}),
              event("volta_sgemm", 10, 50, cat="kernel", pid=0),
              event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", 40, 50, cat="kernel", pid=0, tid=7, args={
                  "Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float"})]
    found = read([wrote(tmp_path / "gpu.json", events)])
    assert found.compute[0, 0] == pytest.approx(0.07)  # 30 ms of the collective are beside no kernel
    assert found.collectives["all_reduce", 4000.0, 1] == (1, pytest.approx(0.05))
    both = [{**e, "pid": f"{rank}"} for rank in (0, 1) for e in profile(rank)["traceEvents"]]
    assert read([wrote(tmp_path / "both.json", both)]).ranks == (0, 1)


def ahead(rank, marked=True):
    """A GPU that needs 200 ms a step, launched in 20 ms by a host that never waits."""
    events = []
    for k in range(4):
        host, gpu = 20 * k, 1 + 200 * k
        events += [event("DistributedDataParallel.forward", host, 6, cat="user_annotation"),
                   event("Optimizer.step#SGD.step", host + 17, 2, cat="user_annotation"),
                   event(f"ProfilerStep#{k}", host, 20, cat="user_annotation"),
                   event("gemm", gpu, 160, cat="kernel"), event("adam", gpu + 190, 10, cat="kernel"),
                   event("ncclDevKernel_AllReduce", gpu + 140, 50, cat="kernel", tid=20,
                         args={"Collective name": "allreduce"})]
        events += [event(f"ProfilerStep#{k}", gpu, 160, cat="gpu_user_annotation"),
                   event(f"ProfilerStep#{k}", gpu + 140, 60, cat="gpu_user_annotation", tid=20),
                   event("Optimizer.step#SGD.step", gpu + 190, 10, cat="gpu_user_annotation")] * marked
    return {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}


def test_a_host_that_runs_ahead_of_its_gpu(tmp_path, capsys):
    found = read([wrote(tmp_path / f"{r}.json", ahead(r)) for r in (0, 1)])
    assert found.recorded == pytest.approx(np.full((2, 4), 0.2))
    assert (found.compute.mean(), found.exchange) == pytest.approx((0.17, 0.03))  # 190 - 160
    assert found.phases == pytest.approx({"forward on the host": 0.006, "optimiser": 0.01})
    assert found.collectives["all_reduce", 0.0, 2] == (1, pytest.approx(0.05))
    assert main(["advise", "--trace", wrote(tmp_path / "plain.json", ahead(0, marked=False))]) == 2
    assert "kernels end 721 ms after the last step" in capsys.readouterr().err


def test_an_exchange_in_one_step_of_four_counts_by_a_quarter(tmp_path):
    """Gradient accumulation, where a step of the profile is a micro-batch."""
    events = []
    for k in range(8):
        at, took = 100 * k + 80 * (k // 4), 180 if k % 4 == 3 else 100
        events += [event(f"ProfilerStep#{k}", at, took, cat="user_annotation"),
                   event("backward", at, 60, cat="user_annotation"), event("gemm", at, 100, cat="kernel")]
        events += [event("ncclDevKernel_AllReduce", at + 100, 80, cat="kernel", args={
            "Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float"})] * (k % 4 == 3)
    found = read([wrote(tmp_path / f"rank{r}.json", events) for r in (0, 1)])
    assert (found.compute.mean(), found.exchange) == pytest.approx((0.1, 0.08 / 4))
    assert found.collectives["all_reduce", 4000.0, 2] == pytest.approx((1 / 4, 0.08))
    times = [e for e in timeline() if e["name"] != "grads-sync" or e["args"]["step"] == 3]
    assert read([wrote(tmp_path / "t.json", times)]).exchange == pytest.approx(SYNC / 4e3)


def collectives(dtype, *some, group=4, world=64):
    """A rank whose step sends each (name of the kernel, name, numbers, ms), after a backward pass of 50 ms."""
    events, at = [], 50
    for kernel, name, numbers, took in some:
        events += [event("nccl:" + name, 30, 1, cat="user_annotation"),
                   event(f"ncclDevKernel_{kernel}_RING_LL(...)", at, took, cat="kernel", tid=20, args={
                       "Collective name": name, "In msg nelems": numbers, "dtype": dtype, "Group size": group})]
        at += took
    events += [event("backward", 20, 20, cat="user_annotation"), event("gemm", 0, 50, cat="kernel"),
               event("Optimizer.step#SGD.step", 41, 2, cat="user_annotation"),
               event("ProfilerStep#1", 0, at, cat="user_annotation")]
    return {"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": world}}


def test_a_link_is_fitted_to_the_groups_of_collectives(tmp_path, capsys):
    some = [("AllReduce", "allreduce", n, 2 * 3 * (0.02 + 4 * n / 4 / 1e7)) for n in (1_000_000, 25_000_000)]
    path = wrote(tmp_path / "rank0.json", collectives("Float", *some))
    assert read([path]).link == pytest.approx((2e-5, 1e10))
    assert main(["calibrate", "--trace", path, "--output", str(tmp_path / "m.json")]) == 0
    assert "1 a step of 4.00 MB in groups of 4" in capsys.readouterr().out
    data = {"traceEvents": collectives("Float", *some)["traceEvents"]}  # which does not say how many ranks there are
    assert read([wrote(tmp_path / "rank1.json", data)]).world == 4


@pytest.mark.parametrize(("kernel", "name", "op", "share"), [
    ("AllGather", "_allgather_base", "all_gather", 1), ("AllGather", "all_gather_into_tensor_coalesced", "all_gather", 1),
    ("ReduceScatter_Sum_f32", "_reduce_scatter_base", "reduce_scatter", 4),
    ("ReduceScatter_Sum_f32", "reduce_scatter_tensor_coalesced", "reduce_scatter", 4),
    ("ReduceScatter_Sum_f32", None, "reduce_scatter", 4)])
def test_collectives_of_sharded_data_parallel(tmp_path, kernel, name, op, share):
    """All-gather sends its whole input n - 1 times, reduce-scatter an n-th of it."""
    some = [(kernel, name or "x", n, 3 * (0.02 + 4 * n / share / 1e7)) for n in (1_000_000, 20_000_000)]
    data = collectives("Float", *some)
    for each in data["traceEvents"]:
        if name is None and "args" in each:
            del each["args"]["Collective name"]
    found = read([wrote(tmp_path / "rank0.json", data)])
    assert (op, 4e6, 4) in found.collectives
    assert found.link == pytest.approx((2e-5, 1e10))


@pytest.mark.parametrize(("dtype", "nbytes"), [("Float", 4), ("BFloat16", 2)])
@pytest.mark.parametrize("launched", [True, False])
def test_layers_of_kernels_that_run_after_the_host_has_launched_the_optimiser(tmp_path, dtype, nbytes, launched):
    """Without record_shapes only kernels have sizes; a gradient in bf16 has as many numbers as one in fp32."""
    data = collectives(dtype, *[("AllReduce", "allreduce", n, 5) for n in (1_000_000, 3_000_000)], world=4)
    data["traceEvents"] = [e for e in data["traceEvents"] if launched or e["name"] != "nccl:allreduce"]
    found = read([wrote(tmp_path / "rank0.json", data)])
    assert [each["parameters"] for each in found.net("n")["layers"]] == [3_000_000, 1_000_000]
    assert sum(each[0] for each in found.buckets) == 4_000_000 * nbytes
    assert any(f"{nbytes} bytes" in each for each in found.unknown) == (nbytes != 4)


def test_ranks_in_names_of_files(tmp_path):
    paths = [wrote(tmp_path / f"job.rank{r}.pt.trace.json", profile(r, info=False)) for r in (3, 12)]
    assert read(paths).ranks == (3, 12)
    for rank in (1, 2):
        (tmp_path / f"rank_{rank}").mkdir()
    paths = [wrote(tmp_path / f"rank_{r}" / "trace.json", profile(r, info=False)) for r in (1, 2)]
    assert read(paths).ranks == (1, 2)
    said = {**profile(0, info=False), "distributedInfo": {"rank": "5", "world_size": "8"}}
    assert read([wrote(tmp_path / "text.json", said)]).world == 8
    label = {"ph": "M", "name": "process_labels", "pid": 0, "args": {"labels": "rank_4"}}
    labelled = [label, *profile(0)["traceEvents"]]
    assert read([wrote(tmp_path / "label.json", labelled)]).ranks == (4,)


def test_the_last_step_that_only_began_is_left_out(tmp_path):
    data = profile(0)
    data["traceEvents"].append(event("ProfilerStep#13", 400, 0.1, cat="user_annotation"))
    assert read([wrote(tmp_path / "t.json", data)]).steps == (10, 11, 12)


# -- what cannot be used ------------------------------------------------------------------------------------


STEP = event("ProfilerStep#1", 0, 1, cat="user_annotation")


@pytest.mark.parametrize(("data", "says"), [
    (b"", "it is empty"), (b"[]", "no events"), (b"{}", "no events"), (b'{"traceEvents": []}', "no events"),
    (b"3", "no events"), (b"hello", "no JSON"), (b"PK\x03\x04 zip", "no JSON"),
    (json.dumps(timeline()).encode()[:-300], "it ends in the middle"),
    (json.dumps(timeline()).encode()[:-1], "it ends in the middle"),
    (json.dumps(timeline()).encode().replace(b'"ph"', b'"ph', 1), "no JSON"),
    (gzip.compress(json.dumps(timeline()).encode())[:-40], "gzip data end in the middle"),
    (gzip.compress(json.dumps(timeline()).encode())[:-8] + b"\0" * 8, "damaged"),
    (b"[" * 100_000, "damaged"), ([event("forward-compute", 0, 1)], "no steps"),
    ([STEP, event("aten::mm", 0, 1, cat="cpu_op")], "no backward pass, optimiser or collective"),
    ([STEP, event("matmul", 0, 1, cat="mtia_ccp_events")], "mtia"),
    ([{**STEP, "dur": -5000}], "dur -5000"), ([{**STEP, "ts": "soon"}], "ts 'soon'"),
    ([{**STEP, "ts": float("nan")}], "ts nan"), ([{**STEP, "ph": "E"}], "without its beginning"),
    (profile(7), "rank 7 of a job of 2"),
    ([*profile(0)["traceEvents"], {**STEP, "name": "ProfilerStep#10"}], "step 10 appears twice"),
    ([event("backward-send", 0, 1, args={"step": 1})], "without forward-compute"),
])
def test_one_line_says_what_is_wrong(tmp_path, capsys, data, says):
    path = wrote(tmp_path / "bad.json", data, packed=False)
    for command in (["calibrate", "--output", str(tmp_path / "m.json")], ["advise"]):
        assert main([*command, "--trace", path]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert path in error
        assert says in error
        assert "expected" in error
    assert not (tmp_path / "m.json").exists()


def test_files_that_contradict_each_other(tmp_path):
    a = wrote(tmp_path / "a.json", profile(0))
    for data, says in ((profile(0), "rank 0, as in"), (profile(1, world=4), "jobs of 2 and 4 ranks"),
                       (profile(1, info=False), "no rank"), (timeline(first=0)[3:6], "a timeline beside")):
        with pytest.raises(Usage, match=says):
            read([a, wrote(tmp_path / "b.json", data)])
    late = profile(1)
    for each in late["traceEvents"]:
        each["name"] = each["name"].replace("ProfilerStep#1", "ProfilerStep#2")
    with pytest.raises(Usage, match="no step that all ranks have"):
        read([a, wrote(tmp_path / "b.json", late)])


def test_too_much_is_refused_before_it_is_read(tmp_path, monkeypatch):
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(Usage, match="more than 537 MB"):
        read([str(tmp_path / "large.json")])
    monkeypatch.setattr(chrome, "LARGEST", 1 << 20)
    with pytest.raises(Usage, match="fewer steps"):
        read([wrote(tmp_path / "bomb.json.gz", b" " * (1 << 22))])
    with pytest.raises(Usage, match="not a regular file"):
        read([str(tmp_path)])
    with pytest.raises(Usage, match="No such file"):
        read([str(tmp_path / "none.json")])


# -- commands -----------------------------------------------------------------------------------------------


def test_calibrate_writes_a_machine_and_a_net(tmp_path, capsys):
    paths = [wrote(tmp_path / f"rank{r}.json", profile(r, 1 + r)) for r in (0, 1)]
    machine, net = tmp_path / "m.json", tmp_path / "n.json"
    assert main(["calibrate", "--trace", *paths, "--output", str(machine), "--net-output", str(net)]) == 0
    said = capsys.readouterr().out
    assert "2 ranks of 2, 3 steps" in said
    assert "latency 0.5 ms" in said.replace("500 us", "0.5 ms")
    found, _ = files.read(str(machine))
    assert [each.family for each in found.compute] == ["replayed"] * 2
    assert found.compute[1].parameters == pytest.approx([0.042] * 3)
    layers = json.loads(net.read_text())["layers"]
    assert set(layers[0]) == {"name", "parameters", "operations", "activations"}
    assert sum(each["parameters"] for each in layers) == 5_000_000
    assert main(["calibrate", "--net-output", str(net)]) == 2
    assert "--trace" in capsys.readouterr().err


def test_advise_prints_a_table_and_json(tmp_path, capsys):
    path = wrote(tmp_path / "t.json", timeline())
    assert main(["advise", "--trace", path]) == 0
    said = capsys.readouterr().out
    assert "x1.17" not in said.split("\n")[0]
    assert "as it was" in said
    assert "in PyTorch: DistributedDataParallel" in " ".join(said.split())
    assert main(["advise", "--trace", path, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["slow_down"] == pytest.approx(50 / (np.sum(TIMES) / 12 + SYNC))
    assert main(["advise", "--trace", path, "--net", "resnet50"]) == 2
    assert "--net" in capsys.readouterr().err


# -- files of real jobs -------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(("job", "remedy"), [("SE", "slow in turns"), ("ST", "Stage 3, the last of 4")])
def test_slow_down_and_remedy_of_published_jobs(job, remedy):
    found = what_if(read([str(TRACES / "bytedance" / f"timeline-{job}.json.gz")]))
    published = json.loads((TRACES / "bytedance" / f"ms-{job}.json").read_text())
    assert found.slow_down == pytest.approx(published["tori"] / published["tideal"], rel=0.05)
    assert found.rows[0].seconds == pytest.approx(published["tori"], rel=0.05)
    assert remedy in found.verdict
    assert ("No data-parallel strategy" in found.verdict) == (job == "ST")
    if job == "SE":
        mean, rest = found.job.compute.mean(), found.job.exchange
        rows = {row.name: row.seconds for row in found.rows}
        for period, times in ((2, 1.22), (4, 1.15), (8, 1.10), (16, 1.06)):
            assert (rows[f"local-sgd period={period}"] - rest / period) / mean == pytest.approx(times, rel=0.02)
        assert (rows["bsp"] - rest) / mean == pytest.approx(1.31, rel=0.02)


@needs_data
@pytest.mark.parametrize(("name", "says"), [
    ("benchmark_result_2869224_1695835535_trace", "no steps"), ("mi250_minitoy_train_ROCm6_2_kineto", "1 rank of 1"),
    ("rank-34.Jul_15_10_52_41.1074.pt.trace", "1 rank of 300, 1 step"), ("rank_non_gpu", "1 rank of 1, 1 step"),
    ("sampled_rank-0", "1 rank of 128, 2 steps"), ("sampled_rank-1", "1 rank of 128, 2 steps")])
def test_each_profile_is_read_or_refused(tmp_path, capsys, name, says):
    code = main(["calibrate", "--trace", str(TRACES / "kineto" / f"{name}.json.gz"),
                 "--output", str(tmp_path / "m.json")])
    said = capsys.readouterr()
    assert says in said.out + said.err
    assert code == (2 if "no steps" in says else 0)


@pytest.mark.parametrize("flags", [["--net", "tiny"], ["--batches", "1,2,3,4"], ["--runtime", "tcp"]])
def test_what_a_trace_does_not_need_is_refused(flags, capsys):
    assert main(["calibrate", "--trace", "any.json", *flags]) == 2
    assert capsys.readouterr().err == f"refsgd: --trace and {flags[0]}; expected --trace alone: the trace has the times\n"
