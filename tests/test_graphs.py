"""Graphs and mixing matrices: what averaging needs of them, and what their spectra must be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.gossip import graphs
from refsgd.algorithms.gossip.graphs import (
    GRAPHS,
    contraction,
    is_connected,
    metropolis,
    one_peer_exponential,
    random_regular,
    spectral_gap,
    uniform,
)

NODES = range(1, 18)
FITS = [(name, n) for name in GRAPHS for n in NODES
        if not (name == "bipartite-ring" and n % 2) and not (name == "bipartite" and n < 2)]
REGULAR = [(name, n) for name, n in FITS if len({len(near) for near in GRAPHS[name](n)}) == 1]


def undirected(graph):
    return all(i in graph[j] for i, near in enumerate(graph) for j in near)


def doubly_stochastic(W):
    return np.allclose(W.sum(axis=0), 1, atol=1e-14) and np.allclose(W.sum(axis=1), 1,
                                                                     atol=1e-14) and np.all(W >= -1e-15)


@pytest.mark.parametrize("name,n", FITS)
def test_a_graph_is_connected_undirected_and_has_no_loops(name, n):
    graph = GRAPHS[name](n)
    assert len(graph) == n and is_connected(graph) and undirected(graph)
    assert all(near == sorted(set(near) - {i}) for i, near in enumerate(graph))


@pytest.mark.parametrize("name,n", FITS)
def test_metropolis_weights_keep_the_mean_and_reach_agreement(name, n):
    W = metropolis(GRAPHS[name](n))
    assert doubly_stochastic(W) and np.array_equal(W, W.T)
    assert 0 < spectral_gap(W) <= 1 + 1e-12
    near = np.array([[j in row for j in range(n)] for row in GRAPHS[name](n)])
    assert np.array_equal(W > 0,
                          near | (np.diag(W) > 0)[:, None] & np.eye(n, dtype=bool)), "weights only on edges"


@pytest.mark.parametrize("name,n", REGULAR)
def test_uniform_weights_keep_the_mean(name, n):
    graph = GRAPHS[name](n)
    W = uniform(graph)
    assert doubly_stochastic(W) and np.array_equal(W, W.T)
    assert np.allclose(W, metropolis(graph), atol=1e-14), "on a regular graph both weights are the same"


def test_degrees():
    assert {len(near) for near in graphs.ring(7)} == {2}
    assert {len(near) for near in graphs.torus(12)} == {4} and graphs.torus(12)[5] == [2, 3, 4, 8]
    assert {len(near) for near in graphs.complete(7)} == {6}
    assert [len(near) for near in graphs.star(5)] == [4, 1, 1, 1, 1]
    assert {len(near) for near in graphs.exponential(16)} == {7}  # 1, 2, 4 both ways, and 8
    assert graphs.bipartite(5) == [[1, 3], [0, 2, 4], [1, 3], [0, 2, 4], [1, 3]]


@pytest.mark.parametrize("n", range(4, 40))
def test_the_ring_with_weights_of_one_third_contracts_by_its_known_factor(n):
    assert contraction(uniform(graphs.ring(n))) == pytest.approx(1 / 3 + 2 / 3 * np.cos(2 * np.pi / n),
                                                                 abs=1e-12)


@pytest.mark.parametrize("n", range(2, 12))
def test_complete_graph_averages_exactly_and_the_torus_is_the_product_of_rings(n):
    assert spectral_gap(uniform(graphs.complete(n))) == pytest.approx(1, abs=1e-12)
    if n > 2:
        rows, columns = (np.cos(2 * np.pi * np.arange(k) / k) for k in (n, 5))
        eigenvalues = np.sort(((1 + 2 * rows[:, None] + 2 * columns) / 5).ravel())
        assert contraction(uniform(graphs.torus(5 * n, 5))) == pytest.approx(
            max(eigenvalues[-2], -eigenvalues[0]), abs=1e-12)


def test_the_gap_of_an_identity_is_zero():
    assert spectral_gap(np.eye(4)) == pytest.approx(0, abs=1e-12)


@given(name=st.sampled_from([*GRAPHS]), n=st.sampled_from([2, 4, 8, 12]), seed=st.integers(0, 2**16))
def test_averaging_keeps_the_mean_and_contracts_at_least_by_the_gap(name, n, seed):
    W = metropolis(GRAPHS[name](n))
    x = np.random.default_rng(seed).standard_normal((n, 3))
    after = W @ x
    assert np.allclose(after.mean(axis=0), x.mean(axis=0), atol=1e-12)
    deviation, left = (np.linalg.norm(v - v.mean(axis=0)) for v in (x, after))
    assert left <= contraction(W) * deviation + 1e-12


@pytest.mark.parametrize("n", range(2, 18))
def test_the_one_peer_graph_averages_exactly_in_log2_n_steps_only_for_powers_of_two(n):
    product = np.eye(n)
    for t in range((n - 1).bit_length()):
        W = uniform(one_peer_exponential(n, t))
        assert doubly_stochastic(W)
        product = W @ product
    assert (contraction(product) < 1e-12) == (n & (n - 1) == 0)


def test_the_direction_of_a_directed_graph():
    """Node 0 sends to 1: row 1 takes of column 0."""
    W = uniform(one_peer_exponential(3, 0))
    assert W[1, 0] == 0.5 and W[0, 1] == 0


@given(n=st.integers(1, 24), degree=st.integers(0, 23), seed=st.integers(0, 50))
def test_a_random_regular_graph_is_regular_connected_and_reproducible(n, degree, seed):
    try:
        graph = random_regular(n, degree, seed)
    except ValueError:
        assert degree >= n or n * degree % 2 or (degree < 2 and n > degree + 1)
        return
    assert {len(near) for near in graph} == {degree} and undirected(graph) and is_connected(graph)
    assert all(i not in near for i, near in enumerate(graph))
    assert graph == random_regular(n, degree, seed)


def test_random_regular_graphs_differ_with_the_seed():
    assert len({str(random_regular(10, 3, seed)) for seed in range(10)}) > 5


def test_a_graph_in_two_pieces_is_not_connected_and_averages_nothing_between_them():
    pieces = [[1], [0], [3], [2]]
    assert not is_connected(pieces)
    assert spectral_gap(uniform(pieces)) == pytest.approx(0, abs=1e-12)


def test_a_wrong_matrix_is_seen():
    """WRONG: every node takes 1/(own degree + 1) of its neighbours: rows sum to 1, columns do not, the
    mean drifts."""
    star = graphs.star(5)
    W = np.eye(5)
    for i, near in enumerate(star):
        W[i, near] = 1
    W /= W.sum(axis=1, keepdims=True)
    assert not doubly_stochastic(W)


@pytest.mark.parametrize("call,words", [
    (lambda: graphs.ring(0), "graph of 0 nodes; expected at least 1"),
    (lambda: graphs.torus(6, 4), "torus of 6 nodes in 4 columns; expected a divisor of 6"),
    (lambda: graphs.torus(6, 0), "torus of 6 nodes in 0 columns; expected a divisor of 6"),
    (lambda: graphs.bipartite_ring(5), "bipartite ring of 5 nodes; expected an even number"),
    (lambda: graphs.bipartite(1), "graph of 1 nodes; expected at least 2"),
    (lambda: random_regular(5, 3), "degree 3; expected"),
    (lambda: random_regular(4, 4), "degree 4; expected"),
    (lambda: random_regular(4, 1), "degree 1; expected"),
    (lambda: uniform(graphs.star(4)), r"degrees \[1, 3\]; expected a regular graph"),
    (lambda: metropolis(one_peer_exponential(3, 0)), "node 0 sends to 1 but not the reverse"),
])
def test_wrong_sizes_are_refused_in_one_line(call, words):
    with pytest.raises(ValueError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)
