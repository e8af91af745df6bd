"""Tables of nccl-tests."""
import json

import pytest

from refsgd.cli import main
from refsgd.cluster.machine import Machine

HEAD = """# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#
# Using devices
{ranks}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def table(ranks, latency, bandwidth, sizes=(8, 1024, 65536, 1 << 20, 1 << 24, 1 << 27), busbw=None):
    text = HEAD.format(ranks="\n".join(f"#  Rank  {r} Group  0 Pid  4{r} on  node{r // 8} device  {r % 8} [0x07] NVIDIA A100"
                                       for r in range(ranks)))
    for size in sizes:
        t = 2 * (ranks - 1) * (latency + size / ranks / bandwidth)
        alg = size / max(t, 1e-12) / 1e9
        bus = alg * (busbw or 2 * (ranks - 1) / ranks)
        text += (f"{size:12d} {size // 4:13d}     float     sum      -1  {t * 1e6:8.2f} {alg:7.2f} {bus:7.2f}      0  "
                 f"{t * 1e6:8.2f} {alg:7.2f} {bus:7.2f}      0\n")
    return text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 6.6\n"


@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_the_link_of_a_table_is_found_again(tmp_path, ranks):
    path = tmp_path / "table.txt"
    path.write_text(table(ranks, 9e-6, 12e9))
    found = Machine(compute="1", bandwidth=f"@{path}")
    assert found.bandwidth == pytest.approx(12e9, rel=0.01) and found.latency == pytest.approx(9e-6, rel=0.05)
    assert Machine(compute="1", latency="5us", bandwidth=f"@{path}").latency == 5e-6


@pytest.mark.parametrize(("text", "said"), [
    (None, "No such file"), ("", "0 ranks and 0 sizes"), (table(1, 1e-6, 1e9), "1 ranks and"),
    (table(4, 1e-6, 1e9, (1024,)), "4 ranks and 1 sizes"), ("\0\1\2", "0 ranks"),
    (table(4, 1e-6, float("inf")), "larger exchanges took no longer"),
    (table(4, 1e-6, 1e9).replace(" sum ", " none "), "redop none"),  # all-gather, all-to-all
    (table(4, 1e-6, 1e9).replace(" -1 ", "  0 "), "redop sum, root 0"),  # reduce
    (table(4, 1e-6, 1e9, busbw=3 / 4), "not an all-reduce of 4 ranks"),  # reduce-scatter
    (table(2, 1e-6, 1e9, busbw=1 / 2), "not an all-reduce of 2 ranks")])
def test_what_is_no_table_is_one_line(tmp_path, text, said, capsys):
    path = tmp_path / "table.txt"
    if text is not None:
        path.write_text(text)
    assert main(["predict", "allreduce", "--data", "quadratic", "--compute", "20ms", "--bandwidth", f"@{path}"]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1


def test_a_table_wins_over_another_machine_and_a_latency_beside_it_over_both(tmp_path, capsys):
    path, base, above = (tmp_path / name for name in ("table.txt", "base.toml", "above.toml"))
    path.write_text(table(8, 9e-6, 12e9))
    base.write_text('latency = "50us"\nbandwidth = "1GB/s"\n')

    def latency(*told):
        assert main(["machine", *told, "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)["latency"]

    assert latency("laptop", "--bandwidth", f"@{path}") == pytest.approx(9e-6, rel=0.05)
    assert latency("laptop", "--bandwidth", f"@{path}", "--latency", "5us") == 5e-6
    for said, expected in (("", 9e-6), ('latency = "5us"\n', 5e-6)):  # the table is named as seen from the file
        above.write_text(f'include = "base.toml"\nbandwidth = "@table.txt"\n{said}')
        assert latency(str(above)) == pytest.approx(expected, rel=0.05)
    base.write_text('bandwidth = "@table.txt"\n')
    above.write_text('include = "base.toml"\nbandwidth = "1Gbps"\n')
    assert latency(str(above)) == pytest.approx(9e-6, rel=0.05), "the rest of what a table gives is kept"
    above.write_text('include = "base.toml"\nbandwidth = "@none.txt"\n')
    assert main(["machine", str(above)]) == 2
    assert f"machine file {above}: bandwidth @{tmp_path / 'none.txt'}: No such file" in capsys.readouterr().err
