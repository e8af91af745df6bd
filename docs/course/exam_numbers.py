"""The numbers of the exam's sample answers, computed with the library: change a number here and run this file.

Each function is one question; it returns the numbers in the order in which the answer prints them, as text.
"""

import math
from fractions import Fraction

import refsgd
from refsgd.algorithms.gossip import graphs
from refsgd.cluster.distributions import Distribution
from refsgd.theory.phenomena import collectives, gossip, memory, pipeline, staleness, stragglers
from refsgd.trace import Computed

LINK = refsgd.Machine(compute="fixed(0.02)", latency=0.001, bandwidth=10e6)  # 40 kB take 4 ms
NET = {"data": "none", "net": "shapes:10000"}
GBPS10 = collectives.Link(latency=50e-6, bandwidth=1.25e9)


def q2():
    """Mean of the longest of eight exponential times, and the share of waiting."""
    harmonic = stragglers.harmonic(8)
    return f"{20 * harmonic:.1f} ms", f"{1 - 1 / harmonic:.0%}"


def q3():
    """Workers with exponential times that are together four times as fast as one."""
    return (str(next(n for n in range(1, 100) if n / stragglers.harmonic(n) >= 4)),)


def q4():
    """Mean of the longest of nine uniform times; its limit."""
    return f"{1000 * stragglers.mean_of_maximum([Distribution.parse('uniform(0.01,0.03)')] * 9):.0f} ms", "30 ms"


def q5():
    """Throughput with and without the slow worker, in units of one fast worker."""
    def rate(*speeds):
        machine = refsgd.Machine(compute="fixed(1)", speeds=speeds)
        return len(speeds) * 10 / refsgd.run("bsp", workers=len(speeds), steps=10, machine=machine, evaluations=0, **NET).measured["seconds"]

    return f"{rate(1, 1, 1, 0.25):.0f}", f"{rate(1, 1, 1):.0f}"


def q6():
    """Mean staleness of sixteen asynchronous workers."""
    return (f"{staleness.asp_run([Distribution.parse('exponential(0.02)')] * 16, 10**9).value:.0f}",)


def q7():
    """Staleness of a slow worker, of the fast one, and of all updates."""
    slow, *_, fast = (p.value for p in staleness.asp_of_worker([1, 1, 1, 4]))
    return f"{slow:.0f}", f"{fast:.2f}", f"{(3 * slow + 4 * fast) / 7:.0f}"


def q8():
    """Largest stable rate of eight workers that take turns."""
    return (f"{staleness.constant_delay(7).value:.3f}",)


def q9():
    """Probability of a fresh gradient, and of one at least four updates old."""
    fresh, *older = (staleness.geometric(4, tau) for tau in range(4))
    return f"{fresh:.2f}", f"{1 - fresh - sum(older):.2f}"


def q11():
    """Largest lead and largest staleness under SSP."""
    return "3", f"{staleness.ssp_bound(4, 2, 1000).value:.0f}"


def q12():
    """Smallest slack with less than 5 % blocked; the share for a slack of 3."""
    return str(next(s for s in range(99) if 1 / (2 * s + 3) < 0.05)), f"{1 / (2 * 3 + 3):.0%}"


def q13():
    """Staleness of worker 1's second gradient in the order of the answer, replayed; the bound for slack 1."""
    stepper = refsgd.Stepper("ssp", workers=2, steps=3, staleness=1)
    for worker in ("worker1", "worker0", "worker0", "worker0", "worker1"):
        computed = False
        while True:  # compute and push, then read the model if the server answers
            own = [words for words in stepper.actions() if words.startswith("server0") or worker in words]
            if not own or (computed and own[0].startswith(f"{worker} computes")):
                break
            computed = True
            stepper.choose(stepper.actions().index(own[0]))
    return str(stepper.trace().staleness[-1][1]), f"{staleness.ssp_bound(2, 1, 1000).value:.0f}"


def q14():
    """The effective rate of SSP without slack."""
    return (f"{8 * 0.3:.1f}",)


def q15():
    """Iteration of BSP with one server; its first iteration."""
    steady = (refsgd.predict("bsp", workers=8, steps=1001, machine=LINK, **NET)["seconds"].value
              - refsgd.predict("bsp", workers=8, steps=1, machine=LINK, **NET)["seconds"].value) / 1000
    first = refsgd.predict("bsp", workers=8, steps=1, machine=LINK, **NET)["seconds"].value
    return f"{1000 * steady:.0f} ms", f"{1000 * first:.0f} ms"


def q16():
    """Updates a second that one link allows, and the workers that reach it."""
    transfer = 4 * 10_000 / 10e6
    return f"{1 / transfer:.0f}", f"{(0.02 + 2 * 0.001 + 2 * transfer) / transfer:.1f}"


def q17():
    """Iteration of BSP with four servers."""
    runs = [refsgd.run("bsp", workers=8, servers=4, steps=steps, machine=LINK, evaluations=0, **NET).measured["seconds"]
            for steps in (5, 105)]
    return (f"{1000 * (runs[1] - runs[0]) / 100:.0f} ms",)


def q18():
    """Ring, and halving and doubling, for 100 MB on 16 peers."""
    return tuple(f"{1000 * price(16, 100e6, GBPS10).time.value:.1f} ms"
                 for price in (collectives.ring, collectives.halving_doubling))


def q19():
    """Bytes at which half of a ring's time is latency."""
    return (f"{16 * 50e-6 * 1.25e9 / 1e6:.0f} MB",)


def q21():
    """EASGD: the limit of the force for eight workers, and the paper's choice."""
    return f"{2 / 9:.3f}", f"{0.9 / 8:.4f}"


def q22():
    """Replica and centre after one exchange, and their sum."""
    replica, centre, alpha = 4, 0, 0.25
    force = alpha * (replica - centre)
    return f"{replica - force:g}", f"{centre + force:g}", f"{replica + centre:g}"


def q23():
    """Spectral gap of a ring of 16 and the rounds to a hundredth."""
    gap = graphs.spectral_gap(graphs.metropolis(graphs.GRAPHS["ring"](16)))
    assert math.isclose(1 - gap, gossip.ring_mixing(16).value)
    return f"{gap:.3f}", str(math.ceil(math.log(100) / -math.log(1 - gap)))


def q26():
    """Mean staleness of softsync."""
    return (f"{(8 - 1) / 4:.2f}",)


def q28():
    """Bound from below for an iteration with overlap."""
    return (f"{max(10 + 4 * 5 + 2 * 12, 4 * 12)} ms",)


def q29():
    """Bubble and speed-up of four stages with nine micro-batches; micro-batches for a tenth with eight stages."""
    bubble = pipeline.bubble(9, 4).value
    return f"{bubble:.0%}", f"{4 * (1 - bubble):.0f}", str(next(m for m in range(1, 999) if pipeline.bubble(m, 8).value < 0.1))


def q30():
    """Updates between the two passes of a batch at the first of four stages."""
    return (str(4 - 1 - 0),)


def q31():
    """The number of peers from which a dense ring sends less than a gather of 5 %."""
    def dense(n):
        return 8 * Fraction(n - 1, n)

    return (str(next(n for n in range(2, 99) if dense(n) < 8 * (n - 1) * Fraction(5, 100))),)


def q32():
    """Gigabytes of a peer under all-reduce and ZeRO's stages, without activations, buffers and the layer at hand."""
    count, peers, state = 1_500_000_000, 64, 2
    held = [2 + state, 2 + state / peers, 1 + (1 + state) / peers, (2 + state) / peers]
    assert memory.zero(count, peers, 1, 0, optimiser="adam").terms["parameters"] == 4 * count
    return tuple(f"{4 * count * vectors / 1e9:.2f} GB" for vectors in held)


def q33():
    """Delay of the healthy workers after a pause under SSP."""
    def ended(faults):
        run = refsgd.run("ssp", workers=4, steps=20, staleness=3, machine=refsgd.Machine(compute="fixed(0.03)"), faults=faults,
                         evaluations=0, **NET)
        return max(event.time for event in run.trace.of(Computed) if event.node == "worker0")

    return (f"{1000 * (ended(['pause worker 2 at step 5 for 0.2']) - ended([])):.0f} ms",)


def q34():
    """Transfer of ResNet-50 relative to a gradient, and the load of one server for 16 workers."""
    transfer = 4 * 25_557_032 / 1.25e9
    return f"{transfer / 0.16:.2f}", f"{16 * transfer / 0.16:.1f}"


NUMBERS = {int(name[1:]): question for name, question in globals().copy().items() if name[:1] == "q" and name[1:].isdigit()}

if __name__ == "__main__":
    for number, question in NUMBERS.items():
        print(number, *question(), sep="  ")
