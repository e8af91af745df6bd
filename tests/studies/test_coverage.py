"""Every table row, quoted figure and sentence of the five documents has a line or a verdict in some study."""

from typing import NamedTuple

import pytest

from benchmarks.studies import NAMES, parts_of
from benchmarks.studies.study import Grid, Line, Part, Study, judged, untestable


class Row(NamedTuple):
    """A fact of a document, and the words that begin the line or the claim that answers it."""

    fact: str
    study: str
    part: str
    words: str


ROWS = tuple(Row(*row) for row in (
    # the study of synchronous and asynchronous SGD
    ("rates that adapt", "jia2020", "table2", "the learning rate adapts"),
    ("processor use", "jia2020", "table2", "the processors are in use"),
    ("memory use", "jia2020", "table2", "65 to 98 % of the memory"),
    ("similar memory", "jia2020", "resources", "synchronous and asynchronous training need similar"),
    ("similar use of processors", "jia2020", "resources", "and use the processors"),
    ("reads and writes", "jia2020", "resources", "more is written than read"),
    *((f"weight updates, {m} {n}", "jia2020", "table2", f"{m} {n}: {what}") for m in ("sync", "async")
      for n in ("Inception-v1", "ResNet-18")
      for what in ("weight updates", "one update", "pull", "push")),
    *((f"ratios, {n}", "jia2020", "table2", f"{n}: {what}") for n in ("Inception-v1", "ResNet-18")
      for what in ("asynchronous training makes", "a synchronous", "pulls", "an asynchronous pull",
                   "an update takes longer")),
    ("who pulls", "jia2020", "table2", "the server issues a pull"),
    ("layers", "jia2020", "figure4", "push, update and pull"),
    ("asynchronous loss", "jia2020", "figure7", "async: accuracy lost from 4 to 12 workers"),
    ("its mean over epochs", "jia2020", "figure7", "async: accuracy lost from 4 to 12 workers, mean"),
    ("synchronous loss", "jia2020", "figure7", "synchronous accuracy falls"),
    ("monotone fall", "jia2020", "figure7", "asynchronous accuracy falls"),
    ("more than synchronous", "jia2020", "figure7", "asynchronous training loses more accuracy"),
    ("gap over epochs", "jia2020", "figure7", "the gap widens"),
    ("a quarter of it", "jia2020", "figure7", "synchronous accuracy loses at most a quarter"),
    ("time falls", "jia2020", "figure7", "the time of a pass falls"),
    ("async before sync", "jia2020", "figure7", "asynchronous training is faster"),
    ("computing", "jia2020", "figure7", "computing falls"),
    ("communicating", "jia2020", "figure7", "communicating stays"),
    *((f"staleness of {n}", "jia2020", "figure8", f"{n} workers: largest staleness, as clocks")
      for n in (4, 8, 12)),
    ("growth with workers", "jia2020", "figure8", "staleness grows"),
    ("mean", "jia2020", "figure8", "its mean in updates"),
    ("growth with epochs", "jia2020", "figure8", "staleness increases"),
    ("servers and accuracy", "jia2020", "figure9", "the number of servers does not"),
    ("servers and time", "jia2020", "figure9", "time rises"),
    *((f"where servers cost time, {m}", "jia2020", "figure9",
       f"{m}: computing and exchanging both take longer") for m in ("sync", "async")),
    ("servers and batches", "jia2020", "figure9", "small batches need"),
    ("first doubling", "jia2020", "figure10", "the first doubling"),
    ("flattening", "jia2020", "figure10", "time falls"),
    ("accuracy by batch", "jia2020", "figure10", "a larger batch gives"),
    ("lower accuracy", "jia2020", "figure10", "asynchronous accuracy is the lower"),
    ("its contradiction", "jia2020", "figure10", "asynchronous training has the higher"),
    ("servers to workers", "jia2020", "figure11", "idleness falls from 1:3"),
    ("batch", "jia2020", "figure11", "idleness falls with the batch"),
    *((f"latency {ms}", "jia2020", "figure11", f"latency {ms} ms") for ms in (10, 100, 200)),
    ("72 %", "jia2020", "figure11", "idleness rises"),
    ("concave", "jia2020", "figure11", "the rise is concave"),
    *((w, "jia2020", "stages", w) for w in ("model parallelism gives no", "data parallelism is faster")),
    *((w, "jia2020", "balance", w) for w in ("workers must be launched in multiples", "and servers, too")),
    *((w, "jia2020", "idleness", w) for w in ("idleness exists under asynchronous", "asynchronous idleness falls from 1:3")),
    *((f"summary: {w}", "jia2020", "summary", w) for w in
      ("synchronous training is consistent", "and as slow", "asynchronous training is faster",
       "which is best")),
    # the class report
    ("loss by batch", "pani2020", "batches", "the loss rises"),
    ("error by batch", "pani2020", "batches", "the classification error decreases"),
    ("devices and learning", "pani2020", "same_learning", "the number of devices changes neither"),
    ("run time order", "pani2020", "devices", "the small net is slower"),
    ("all batches", "pani2020", "devices", "that order holds"),
    ("ResNet-18's run time", "pani2020", "devices", "the larger net's time hardly changes from"),
    ("its run time, all batches", "pani2020", "devices", "the larger net's time hardly changes at"),
    ("anomaly", "pani2020", "local", "a doubled run time"),
    ("local hardware", "pani2020", "local", "a large increase in run time"),
    ("lesson and crossing", "pani2020", "devices", "distribution pays only"),
    ("ResNet-18's batches", "pani2020", "deeper", "larger batches are better"),
    ("NaN", "pani2020", "deeper", "training at small batches"),
    ("over-fitting", "pani2020", "deeper", "small batches over-fit"),
    ("negative loss", "pani2020", "batches", "losses are negative"),
    ("1/21", "pani2020", "unequal", "the weaker machine"),
    ("trainable range", "pani2020", "unequal", "no gain if"),
    ("20 times", "pani2020", "unequal", "an RTX"), ("SparkNet", "pani2020", "unequal", "SparkNet"),
    # the comparison of seven algorithms
    *((f"Table III, {n} workers, {c}", "ko2021", "table3", f"{n} workers, {c}") for n in (4, 24) for c in (
        "BSP", "ASP", "SSP s=3", "SSP s=10", "EASGD 4", "EASGD 8", "GoSGD p=1", "GoSGD p=0.1", "GoSGD p=0.01",
        "AD-PSGD")),
    *((w, "ko2021", "table3", w) for w in (
        "BSP is at least", "ASP is above SSP", "SSP with s = 3 is above", "EASGD is better",
        "GoSGD is the better", "GoSGD with p = 1 beats",
        "BSP, ASP and AD-PSGD hardly", "BSP, ASP and AD-PSGD are within",
        "SSP with s = 10, EASGD", "AD-PSGD and SSP with s = 3 tie", "bounding staleness",
        "communicating now and then", "centralised training",
        "the variance of parameters", "sending less", "4 workers: ASP above AD-PSGD",
        "24 workers: ASP above AD-PSGD", "SSP s=10: accuracy lost")),
    *((w, "ko2021", "scalability", w) for w in (
        "decentralised algorithms avoid", "ASP always", "VGG-16 scales worse", "a faster network",
        "a server's speed-up saturates", "up to 191 %",
        "ResNet-50, 10 Gbps: one transfer",
        "VGG-16, 10 Gbps: one transfer", "VGG-16, 10 Gbps: 24 transfers", "VGG-16, 10 Gbps: a ring's",
        "ResNet-50, 56 Gbps: one")),
    ("waiting", "ko2021", "waiting", "the waiting time"),
    *((w, "ko2021", "techniques", w)
      for w in ("sharding", "layer-wise overlap", "compressed gradients", "compression does not help")),
    # the thesis
    *((f"{s}, {p}, {k}, {n}", "graur2019", "chapter3", f"{s}, {p}, {k}, {n} nodes") for s, p, k, n in (
        ("caffe2", "F", "Ethernet", 1), ("caffe2", "F", "Ethernet", 2), ("caffe2", "F", "Ethernet", 24),
        ("caffe2", "F+B", "Ethernet", 24),
        ("caffe2", "F", "InfiniBand", 24), ("collective-allreduce", "F", "Ethernet", 16),
        ("collective-allreduce", "F+B", "Ethernet", 24),
        ("distributed-replicated", "F", "Ethernet", 16), ("distributed-replicated", "F+B", "Ethernet", 1),
        ("distributed-replicated", "F+B", "Ethernet", 16),
        ("parameter-server-collocated", "F", "Ethernet", 8), ("parameter-server", "F", "Ethernet", 24),
        ("parameter-server-collocated", "F+B", "Ethernet", 1),
        ("parameter-server-collocated", "F", "InfiniBand", 16),
        ("parameter-server-collocated", "F+B", "InfiniBand", 24),
        ("distributed-allreduce-pscpu", "F", "InfiniBand", 16), ("distributed-allreduce-pscpu", "F+B", "InfiniBand", 8),
        ("distributed-allreduce-ringx2", "F+B", "Ethernet", 8), ("horovod", "F+B", "Ethernet", 8))),
    *((w, "graur2019", "chapter3", w) for w in (
        "Collective Allreduce scales", "and is the best", "Parameter Server grows",
        "and linearly on InfiniBand", "a ceiling",
        "Distributed Replicated: forward", "with training like", "Distributed Allreduce never", "nor by PSCPU",
        "Distributed Allreduce is much worse",
        "Parameter Server gains nothing", "Distributed Replicated stays below",
        "Distributed Allreduce stays below", "Distributed Allreduce's images",
        "with soft placement", "figures of several nodes with batches of 32",
        "forward passes with a server",
        "forward passes through", "Collective Allreduce's ring", "Caffe2 takes", "the network makes",
        "Caffe2 is best", "soft and hard", "Caffe2 fails",
        "Distributed Allreduce, F+B", "images/s = batch", "seconds of a batch = step")),
    *((w, "graur2019", "survey", w) for w in (
        "Downpour SGD scales", "AdaGrad gives", "Sandblaster L-BFGS", "Petuum's speed-up", "MXNet's speed-up",
        "and its convergence slower", "256 GPUs keep 90 % of the efficiency of 8: batches of 8192, 1 hour",
        "a parameter server is a decentralised", "large batches pay", "checkpoints and restarts")),
    *((f"{p}, {k}, batch {b}, {n}", "graur2019", "chapter4", f"{p}, {k}, batch {b}, {n} nodes")
      for p, k, b, n in (
        ("F", "Ethernet", 8, 2), ("F", "Ethernet", 128, 16), ("F", "Ethernet", 256, 40),
        ("F+B", "Ethernet", 8, 2), ("F+B", "Ethernet", 128, 2),
        ("F+B", "Ethernet", 256, 8), ("F+B", "Ethernet", 256, 32), ("F", "InfiniBand", 64, 16),
        ("F", "InfiniBand", 128, 40), ("F", "InfiniBand", 256, 32),
        ("F+B", "InfiniBand", 64, 40), ("F+B", "InfiniBand", 128, 4), ("F+B", "InfiniBand", 256, 40))),
    *((w, "graur2019", "chapter4", w) for w in (
        "F+B, InfiniBand, batch 256, 8 to 16", "F+B, InfiniBand, batch 256, 16 to 24",
        "F+B, InfiniBand, batch 256, 24 to 32", "figures of several nodes",
        "the time of a batch", "and falls", "on Ethernet more", "and 40 nodes", "images per second",
        "they saturate", "from batch 64", "the most nodes",
        "the best number")),
    *((w, "graur2019", "chapter5", w) for w in (
        "a ring's traffic", "a parameter server's", "and so does that of PSCPU", "InfiniBand raises a",
        "on Ethernet a parameter server's traffic", "all but Caffe2", "memory does not",
        "forward passes need",
        "Distributed Replicated takes", "Collective Allreduce takes",
        "Caffe2's processors",
        "memory: Caffe2 below 1 GB, parameter server 10 GB, Distributed Allreduce 11 GB",
        "a slack of 0")),
    *((w, "graur2019", "series", w) for w in (
        "traffic of a ring's process", "a parameter server's traffic has plateaus", "its workers make little use",
        "Caffe2 and Collective Allreduce use well below", "InfiniBand raises the traffic",
        "a parameter server's process depends", "Distributed Replicated communicates very little",
        "InfiniBand raises the processor use", "processor use does not depend", "forward passes of Distributed",
        "forward passes need a small part", "Collective Allreduce needs the most",
        "Megabytes that all nodes send", "Messages of the busiest process", "Share of the time", "Real processes")),
    *((w, "graur2019", "extra", w) for w in (
        "with an extra worker a server's traffic has plateaus", "its traffic grows linearly in the number of workers",
        "InfiniBand raises the processor use of a server with an extra worker",
        "parameter-server-extra-worker, F+B, Ethernet, batch 128, 17 nodes: outgoing"))))

#: what a reproduction in shape must show, and the claims that say whether it does
SHAPES = {
    "asynchronous training makes n times the updates": [
        ("jia2020", "ResNet-18: asynchronous training makes")],
    "a synchronous push is at least ten times an asynchronous one": [
        ("jia2020", "ResNet-18: a synchronous push")],
    "asynchronous accuracy loses four times as much": [("jia2020", "synchronous accuracy loses at most")],
    "staleness grows with workers, its mean is n - 1": [("jia2020", "staleness grows"),
                                                        ("jia2020", "its mean")],
    "idleness: up with latency, down with batch and servers": [
        ("jia2020", "idleness rises"), ("jia2020", "the rise is concave"), ("jia2020", "idleness falls with"),
        ("jia2020", "idleness falls from")],
    "time by batch flattens": [("jia2020", "time falls with the batch")],
    "a small net is slower on more devices, a larger one crosses": [("pani2020", "the small net"),
                                                                    ("pani2020", "distribution pays")],
    "Table III's flat and falling columns": [
        ("ko2021", "BSP, ASP and AD-PSGD hardly"), ("ko2021", "SSP with s = 10, EASGD"),
        ("ko2021", "SSP with s = 3 is above")],
    "decentralised best, VGG below ResNet": [("ko2021", "decentralised algorithms avoid"),
                                             ("ko2021", "VGG-16 scales")],
    "servers like a logarithm, rings linear": [
        ("graur2019", "Parameter Server grows"), ("graur2019", "and linearly on"),
        ("graur2019", "Collective Allreduce scales")],
    "forward passes tend to M/B": [("graur2019", "forward passes through a server tend")],
    "Distributed Replicated": [("graur2019", "Distributed Replicated: forward"),
                               ("graur2019", "with training like")],
    "traffic of rings flat, of servers linear": [("graur2019", "a ring's traffic"),
                                                 ("graur2019", "a parameter server's grows"),
                                                 ("graur2019", "and so does that of PSCPU")],
    "images per second concave in the batch": [("graur2019", "images per second grow")],
    "the share 1/21": [("pani2020", "the weaker machine")]}
#: of the same list, what ours does not show; each page says why
NOT_SHOWN = {"ASP is the worst": ("ko2021", "ASP always has the worst"),
             "the first doubling saves most, more than half": ("jia2020", "the first doubling saves")}


def missing(rows, studies):
    """Facts whose words begin neither a line or a grid that has figures nor a claim with a reason."""
    out = []
    for row in rows:
        part = studies[row.study].part(row.part)
        lines = [line.what for line in part.lines if any(v is not None for v in line[1:5])]
        lines += [grid.title for grid in part.grids if any(v is not None for row in grid.rows.values() for v in row)]
        if not any(text.startswith(row.words) for text in lines + [c.says for c in part.claims if c.because]):
            out.append(row)
    return out


def test_a_row_without_an_answer_is_found():
    part = Part("t", "", "", [Line("time of two", 1.0), Line("nothing")],
                [judged("it grows", "", True, "1, 2"), untestable("colour", "", "not stated")],
                grids=[Grid("by nodes", ["1"], {"a": [2.0]}), Grid("empty", ["1"], {"a": [None]})])
    studies = {"x": Study("x", "", True, 0, [part])}
    given = [Row("", "x", "t", words) for words in ("time", "it grows", "colour", "by", "nothing", "absent", "empty")]
    assert [row.words for row in missing(given, studies)] == ["nothing", "absent", "empty"]


def test_every_row_names_a_part():
    parts = {name: {f.__name__ for f in parts_of(name)[1]} for name in NAMES}
    assert [row for row in ROWS if row.part not in parts[row.study]] == []
    assert len(set(ROWS)) == len(ROWS) and {row.study for row in ROWS} == set(NAMES)


@pytest.mark.slow
def test_every_row_is_answered(quick):
    assert missing(ROWS, {name: quick(name) for name in NAMES}) == []


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape, quick):
    for study, words in SHAPES[shape]:
        (verdict,) = {c.verdict for c in quick(study).claims if c.says.startswith(words)}
        assert verdict in ("holds", "holds in shape"), words


@pytest.mark.slow
@pytest.mark.parametrize("study, words", NOT_SHOWN.values())
def test_shapes_that_ours_does_not_have(study, words, quick):
    assert [c.verdict for c in quick(study).claims if c.says.startswith(words)] == ["does not hold"]
