"""Every all-reduce, every n from 1 to 17, lengths that do not divide: sums, bits, schedules, sequences."""

import inspect
from dataclasses import replace
from functools import partial
from functools import reduce as fold
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cluster.machine import Machine
from refsgd.collectives import ALLREDUCE, all_gather, barrier, broadcast, double_tree, reduce, reduce_scatter
from refsgd.collectives.double_tree import places
from refsgd.collectives.parts import BLOCK, HALVES, add, chunks, half, plus, single
from refsgd.effects import Node, Send
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Computed, Sent
from tests.collectives.groups import (
    SIZES,
    check_all_ranks_have_the_same_bits,
    check_chunks_are_in_place,
    check_each_part_counts_once,
    late,
    names,
    sums,
    together,
)
from tests.strategies import machines, seeds
from tests.wrong import changed

OPTIONS = [("ring", {}), ("rings", {"count": 1}), ("rings", {"count": 2}), ("rings", {"count": 5}),
           ("recursive-doubling", {}),
           ("halving-doubling", {}), ("tree", {}), ("double-tree", {"pieces": 1}),
           ("double-tree", {"pieces": 5}), ("root", {}),
           ("pscpu", {}), ("pscpu", {"slices": 1}), ("pscpu", {"slices": 20}), ("hierarchical", {}),
           ("hierarchical", {"group": 1}),
           ("hierarchical", {"group": 3}), ("hierarchical", {"group": 17}), ("torus", {}),
           ("torus", {"columns": 1})]
IDS = ["-".join([name, *map(str, options.values())]) for name, options in OPTIONS]
UNEVEN = Machine(compute="exponential(1)", latency=0.1)  #: ranks take turns in being late
every = pytest.mark.parametrize("name,options", OPTIONS, ids=IDS)
drawn = st.sampled_from(OPTIONS)
sizes = st.integers(1, 9)


@pytest.mark.parametrize("d", [0, 1, 1000, BLOCK, 2 * BLOCK + 3])
def test_adding_many_at_once_gives_the_bits_of_one_after_the_other(d):
    """Not those of another order, which the same test tells apart; the vectors stay as they are."""
    xs = list(np.random.default_rng(0).standard_normal((5, d)).astype(np.float32))
    before = [x.copy() for x in xs]
    assert add(*xs).tobytes() == fold(np.add, xs).tobytes() and all((a == b).all()
                                                                    for a, b in zip(xs, before))
    assert d < 1000 or add(*xs[::-1]).tobytes() != fold(np.add, xs).tobytes()


@pytest.mark.parametrize("sizes", [pytest.param((*range(1, 7), 8, 12), id="some"),
                                   pytest.param((7, 9, 10, 11, *range(13, 18)), marks=pytest.mark.slow, id="others")])
@every
def test_each_part_counts_once_and_lands_in_its_place(name, options, sizes):
    for n in sizes:
        for d in sorted({0, 1, n - 1, n, n + 1, 7 * n + 3}):
            check_each_part_counts_once(ALLREDUCE[name], n, d, **options)
            check_chunks_are_in_place(ALLREDUCE[name], n, d, **options)


@every
def test_one_rank_sends_nothing(name, options):
    run = check_each_part_counts_once(ALLREDUCE[name], 1, 5, **options)
    assert run.trace.messages == 0 and run.trace.seconds == 0


@every
def test_all_ranks_have_the_same_bits(name, options):
    for n in SIZES:
        check_all_ranks_have_the_same_bits(ALLREDUCE[name], n, **options)


@given(machine=machines, seed=seeds, choice=drawn, n=sizes)
def test_the_bits_do_not_depend_on_the_schedule(machine, seed, choice, n):
    name, options = choice
    first = check_all_ranks_have_the_same_bits(ALLREDUCE[name], n, **options)
    assert np.array_equal(check_all_ranks_have_the_same_bits(ALLREDUCE[name], n, 50, machine, seed,
                                                             **options), first)


@every
def test_the_bits_do_not_depend_on_who_comes_first(name, options):
    for n in (4, 7, 12):
        first = check_all_ranks_have_the_same_bits(ALLREDUCE[name], n, **options)
        for seed in range(3):
            assert np.array_equal(check_all_ranks_have_the_same_bits(ALLREDUCE[name], n, 50, UNEVEN, seed,
                                                                     **options), first)


def one_after_the_other(me, peers, x, plan):
    """Several collectives without a barrier between them."""
    results = []
    for name, options in plan:
        results.append(
            (yield from late(me, ALLREDUCE[name](me, peers, x * np.float32(len(results) + 1), **options))))
    return np.stack(results)


@given(machine=machines, seed=seeds, plan=st.lists(drawn, min_size=2, max_size=5), n=sizes,
       d=st.integers(0, 20))
def test_collectives_in_sequence_do_not_confuse_their_messages(machine, seed, plan, n, d):
    peers = names(n)
    xs = [np.arange(d, dtype=np.float32) + 100 * i for i in range(n)]
    run = simulate({p: Node(one_after_the_other(i, peers, xs[i], plan)) for i, p in enumerate(peers)},
                   machine, seed)
    want = np.stack([np.sum(xs, axis=0) * (k + 1) for k in range(len(plan))])
    assert all(np.array_equal(total, want) for total in sums(run))


def summed_and_spread(me, peers, x, roots, name, options):
    """A sum, and the vector of each root, without a barrier between them."""
    found = [(yield from ALLREDUCE[name](me, peers, x, **options))]
    for root in roots:
        found.append((yield from broadcast(me, peers, x, root)))
    return np.stack(found)


@every
def test_a_sum_is_not_taken_from_a_broadcast_that_follows(name, options):
    """The first root is one that may have its sum long before the others have theirs."""
    for n, seed in product((5, 6), range(5)):
        xs = [np.arange(4, dtype=np.float32) + 100 * i for i in range(n)]
        for roots, machine in product((range(1, n), range(n)[::-1]),
                                      (UNEVEN, replace(UNEVEN, bandwidth=100))):
            run = together(partial(summed_and_spread, roots=roots, name=name, options=options), xs, machine,
                           seed)
            assert all(np.array_equal(found, [sum(xs), *(xs[root] for root in roots)]) for found in sums(run))


@every
def test_additions_are_reductions_to_the_machine(name, options):
    run = together(ALLREDUCE[name], [np.arange(40.0)] * 6, **options)
    assert {e.work for e in run.trace.of(Computed)} == {"reduction"}


@pytest.mark.parametrize(("name", "options"), [
    ("rings", {"count": 2}), ("double-tree", {"pieces": 8}), ("pscpu", {"slices": 12}),
    ("hierarchical", {"group": 4}), ("torus", {"columns": 4})])
def test_defaults_are_those_of_the_page(name, options):
    """For 12 ranks: docs/collectives.md; the longer side of the rectangle that is nearest to a square
    comes first."""
    xs = [np.arange(60.0)] * 12
    assert sent(together(ALLREDUCE[name], xs)) == sent(together(ALLREDUCE[name], xs, **options))


def sent(run):
    """Who sent how many bytes to whom, in order."""
    return [(e.node, e.to, e.nbytes) for e in run.trace.of(Sent)]


def test_pscpu_speaks_to_its_roots_in_turn_from_the_next_rank_on():
    """Slices first, sums afterwards; no two ranks begin with the same root."""
    run = together(ALLREDUCE["pscpu"], [np.arange(5.0)] * 5)
    for i in range(5):
        assert [to for node, to, _ in sent(run)
                if node == f"peer{i}"] == [f"peer{(i + j) % 5}" for j in range(1, 5)] * 2


def test_root_and_pscpu_add_in_rank_order():
    xs = [np.float32([1e8, 1.0]) * np.float32(k) for k in (1, 0.3, -1, 0.7)]
    in_order = ((xs[0] + xs[1]) + xs[2]) + xs[3]
    for name in ("root", "pscpu"):
        assert np.array_equal(sums(together(ALLREDUCE[name], xs))[2], in_order)


@pytest.mark.parametrize("n", SIZES)
def test_reduce_scatter_and_all_gather(n):
    xs = [np.arange(2 * n + 1.0) * (i + 1) for i in range(n)]
    total = np.sum(xs, axis=0)
    parts = sums(together(reduce_scatter, xs))
    assert all(np.array_equal(part, total[cut])
               for part, cut in zip(parts, chunks(2 * n + 1, n), strict=True))
    assert all(np.array_equal(whole, total) for whole in sums(together(all_gather, parts)))


@pytest.mark.parametrize("n", SIZES)
def test_broadcast_and_reduce_from_any_root(n):
    xs = [np.full(3, 8.0**i) for i in range(n)]
    for root in range(n):
        run = together(broadcast, xs, root=root)
        assert all(np.array_equal(x, xs[root]) for x in sums(run)) and run.trace.messages == n - 1
        run = together(reduce, xs, root=root)
        assert np.array_equal(sums(run)[root], sum(xs)) and run.trace.messages == n - 1


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_round_k_of_the_barrier_says_so_to_the_rank_at_distance_two_to_the_k(n):
    rounds = range((n - 1).bit_length())
    for me in range(n):
        sent = [effect for effect in barrier(me, names(n)) if isinstance(effect, Send)]
        assert [(effect.to, effect.body.round)
                for effect in sent] == [(f"peer{(me + 2**k) % n}", k) for k in rounds]


def through_a_barrier(me, peers, seen):
    yield from late(me, entering(me, seen))
    yield from barrier(me, peers)
    assert len(seen) == len(peers)


def entering(me, seen):
    seen.append(me)
    yield from ()


@given(machine=machines, seed=seeds, n=st.integers(1, 17))
def test_nobody_leaves_a_barrier_before_all_have_entered(machine, seed, n):
    seen, peers = [], names(n)
    simulate({p: Node(through_a_barrier(i, peers, seen)) for i, p in enumerate(peers)}, machine, seed)


@pytest.mark.parametrize("n", SIZES)
def test_a_rank_is_inside_one_of_the_two_trees_at_most(n):
    """Sanders, Speck and Traeff 2009; for odd n one rank is the exception."""
    inside = [sum(bool(place.children) for place in places(i, n)) for i in range(n)]
    assert max(inside) <= 1 + n % 2 and inside.count(2) <= 1
    for tree in (0, 1):
        parents = [places(i, n)[tree].parent for i in range(n)]
        assert parents.count(None) == 1
        assert all(i in places(p, n)[tree].children for i, p in enumerate(parents) if p is not None)
        assert max(len(places(i, n)[tree].children) for i in range(n)) <= 2


def hold_second_tree(places, n):
    """The second tree is the first one with rank i at n - 1 - i (n even) or at i + 1 (n odd), as NCCL
    numbers them."""
    moved = [n - 1 - i if n % 2 == 0 else (i + 1) % n for i in range(n)]
    for i in range(n):
        first, second = places(i, n)[0], places(moved[i], n)[1]
        assert second.parent == (None if first.parent is None else moved[first.parent])
        assert second.children == [moved[child] for child in first.children]


def test_the_second_tree_is_mirrored_or_shifted():
    for n in SIZES:
        hold_second_tree(places, n)


@pytest.mark.parametrize("wrong", ["(i + 1) % n", "n - 1 - i"])
def test_a_second_tree_that_is_never_mirrored_or_never_shifted_is_caught(wrong):
    with pytest.raises(AssertionError):
        for n in SIZES:
            hold_second_tree(changed(double_tree, "n - 1 - i if n % 2 == 0 else (i + 1) % n", wrong).places,
                             n)


def test_every_collective_says_how_long_it_takes_or_what_it_is():
    for name, collective in ALLREDUCE.items():
        assert list(inspect.signature(collective).parameters)[:3] == ["me", "peers", "x"], name
        assert collective.__doc__.startswith("The sum over ranks"), name


def test_long_vectors_on_a_slow_network_do_not_deadlock():
    machine = Machine(compute="exponential(1)", latency=1.0, bandwidth=100.0)
    for name in ALLREDUCE:
        check_all_ranks_have_the_same_bits(ALLREDUCE[name], 6, d=997, machine=machine)


@pytest.mark.parametrize("n, name, options, words", [
    (6, "torus", {"columns": 4}, "torus of 6 ranks in 4 columns; expected a divisor of 6"),
    (6, "torus", {"columns": 0}, "in 0 columns; expected a divisor"),
    (6, "torus", {"columns": -2}, "in -2 columns; expected a divisor"),
    (4, "hierarchical", {"group": 0}, "group 0; expected at least 1"),
    (4, "hierarchical", {"group": -1}, "group -1; expected at least 1"),
    (4, "pscpu", {"slices": 0}, "cut into 0 parts; expected at least 1"),
    (4, "pscpu", {"slices": -1}, "cut into -1 parts"), (4, "rings", {"count": 0}, "cut into 0 parts"),
    (4, "double-tree", {"pieces": 0}, "cut into 0 parts")])
def test_a_division_that_is_none_is_refused_in_one_line(n, name, options, words):
    with pytest.raises(ValueError, match=words) as refused:
        together(ALLREDUCE[name], [np.arange(8.0)] * n, **options)
    assert "\n" not in str(refused.value)


def test_halves_are_rounded_and_added_as_numpy_does_it():
    """All of them, and numbers on both sides of every edge between two of them."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    as_single = every.astype(np.float32)
    assert np.array_equal(single(every), as_single, equal_nan=True)
    with np.errstate(invalid="ignore"):
        ties = (as_single[:-1] + as_single[1:]) / 2
    for x in (as_single, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf)),
              np.float32([65504, 65519.99, 65520, 1e9, -1e38, np.inf, np.nan]), np.zeros(0, np.float32),
              np.random.default_rng(0).standard_normal(HALVES + 3).astype(np.float32)):
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = x.astype(np.float16)
            got = half(x)
        finite = ~np.isnan(x)
        assert got[finite].tobytes() == wanted[finite].tobytes() and np.isnan(got[~finite]).all()
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.array_equal(plus(every, every[::-1]), every + every[::-1], equal_nan=True)
