"""Graphs and mixing matrices: what averaging needs of them, and what their spectra must be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.gossip import graphs
from refsgd.algorithms.gossip.graphs import GRAPHS, metropolis, one_peer_exponential, sides, spectral_gap

NODES = range(1, 18)
FITS = [(name, n) for name in GRAPHS for n in NODES
        if not (name == "bipartite-ring" and n % 2) and not (name == "bipartite" and n < 2)]
REGULAR = [(name, n) for name, n in FITS if len({len(near) for near in GRAPHS[name](n)}) == 1]


def reached(graph):
    """The nodes that node 0 reaches along the edges."""
    seen, todo = {0}, [0]
    while todo:
        new = set(graph[todo.pop()]) - seen
        seen |= new
        todo += new
    return seen


def equal_weights(graph):
    """What a node sends is cut evenly over itself and its neighbours; W[i, j] is what i takes of j."""
    W = np.eye(len(graph))
    for i, near in enumerate(graph):
        W[near, i] = 1
    return W / W.sum(axis=0)


def undirected(graph):
    return all(i in graph[j] for i, near in enumerate(graph) for j in near)


def doubly_stochastic(W):
    return np.allclose(W.sum(axis=0), 1, atol=1e-14) and np.allclose(W.sum(axis=1), 1,
                                                                     atol=1e-14) and np.all(W >= -1e-15)


@pytest.mark.parametrize("name,n", FITS)
def test_a_graph_is_connected_undirected_and_has_no_loops(name, n):
    graph = GRAPHS[name](n)
    assert len(reached(graph)) == len(graph) == n and undirected(graph)
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
def test_on_a_regular_graph_metropolis_weights_are_equal_weights(name, n):
    graph = GRAPHS[name](n)
    assert np.allclose(metropolis(graph), equal_weights(graph), atol=1e-14)


@pytest.mark.parametrize("name,n", FITS)
def test_neighbours_are_on_different_sides_unless_the_graph_has_an_odd_cycle(name, n):
    """A graph has an odd cycle exactly if an odd walk leads back to its start: the diagonal of an odd power."""
    graph = GRAPHS[name](n)
    near, walks, odd = np.array([[j in row for j in range(n)] for row in graph], int), np.eye(n, dtype=int), False
    for length in range(1, n + 1):
        walks = np.minimum(walks @ near, 1)
        odd |= bool(length % 2 and walks.diagonal().any())
    side = sides(graph)
    assert (side is None) == odd
    assert side is None or (side[0] == 0 and all(side[i] != side[j] for i in range(n) for j in graph[i]))


def test_each_piece_of_a_graph_has_two_sides():
    assert sides([[1], [0], [3], [2]]) == [0, 1, 0, 1]


def test_degrees():
    assert {len(near) for near in graphs.ring(7)} == {2}
    assert {len(near) for near in graphs.torus(12)} == {4} and graphs.torus(12)[5] == [2, 3, 4, 8]
    assert {len(near) for near in graphs.complete(7)} == {6}
    assert [len(near) for near in graphs.star(5)] == [4, 1, 1, 1, 1]
    assert {len(near) for near in graphs.exponential(16)} == {7}  # 1, 2, 4 both ways, and 8
    assert graphs.bipartite(5) == [[1, 3], [0, 2, 4], [1, 3], [0, 2, 4], [1, 3]]


@pytest.mark.parametrize("n", range(4, 40))
def test_the_ring_with_weights_of_one_third_contracts_by_its_known_factor(n):
    left = 1 - spectral_gap(metropolis(graphs.ring(n)))
    assert left == pytest.approx(1 / 3 + 2 / 3 * np.cos(2 * np.pi / n), abs=1e-12)


@pytest.mark.parametrize("n", range(2, 12))
def test_complete_graph_averages_exactly_and_the_torus_is_the_product_of_rings(n):
    assert spectral_gap(metropolis(graphs.complete(n))) == pytest.approx(1, abs=1e-12)
    if n > 2:
        rows, columns = (np.cos(2 * np.pi * np.arange(k) / k) for k in (n, 5))
        eigenvalues = np.sort(((1 + 2 * rows[:, None] + 2 * columns) / 5).ravel())
        assert 1 - spectral_gap(metropolis(graphs.torus(5 * n))) == pytest.approx(
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
    assert left <= (1 - spectral_gap(W)) * deviation + 1e-12


@pytest.mark.parametrize("n", range(2, 18))
def test_the_one_peer_graph_averages_exactly_in_log2_n_steps_only_for_powers_of_two(n):
    product = np.eye(n)
    for t in range((n - 1).bit_length()):
        W = equal_weights(one_peer_exponential(n, t))
        assert doubly_stochastic(W)
        product = W @ product
    assert (1 - spectral_gap(product) < 1e-12) == (n & (n - 1) == 0)


def test_the_direction_of_a_directed_graph():
    """Node 0 sends to 1, and so not to 2."""
    assert one_peer_exponential(3, 0)[0] == [1]


def test_a_graph_in_two_pieces_is_not_connected_and_averages_nothing_between_them():
    pieces = [[1], [0], [3], [2]]
    assert reached(pieces) == {0, 1}
    assert spectral_gap(metropolis(pieces)) == pytest.approx(0, abs=1e-12)


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
    (lambda: graphs.bipartite_ring(5), "bipartite ring of 5 nodes; expected an even number"),
    (lambda: graphs.bipartite(1), "graph of 1 nodes; expected at least 2"),
    (lambda: metropolis(one_peer_exponential(3, 0)), "node 0 sends to 1 but not the reverse"),
])
def test_wrong_sizes_are_refused_in_one_line(call, words):
    with pytest.raises(ValueError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("n", [1, 3, 5, 9])
def test_a_bipartite_ring_has_an_even_number_of_nodes(n):
    """An odd ring has no two sides."""
    with pytest.raises(ValueError, match=f"bipartite ring of {n} nodes; expected an even number >= 2"):
        graphs.bipartite_ring(n)
    assert graphs.bipartite_ring(n + 1) == graphs.ring(n + 1) and sides(graphs.ring(n + 1)) is not None
    assert n == 1 or sides(graphs.ring(n)) is None


def test_each_even_node_is_connected_with_each_odd_one():
    assert graphs.bipartite(5) == [[1, 3], [0, 2, 4], [1, 3], [0, 2, 4], [1, 3]] and graphs.bipartite(2) == [[1], [0]]
    with pytest.raises(ValueError, match="graph of 1 nodes; expected at least 2"):
        graphs.bipartite(1)
