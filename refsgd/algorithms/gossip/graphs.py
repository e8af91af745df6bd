"""Who talks to whom without a server, and with which weights.

A graph of n nodes is the list of its nodes' neighbours: ``graph[i]`` holds those that i sends to, ascending
and without i.  All but the one-peer exponential graph are undirected.  A mixing matrix W says how much of
node j's parameters node i takes: rows and columns sum to 1, so averaging keeps the mean, and the smaller its
second largest absolute eigenvalue, the sooner all agree.

References
----------
Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NIPS 2017: W on a ring.
Assran et al., "Stochastic gradient push for distributed deep learning", ICML 2019, appendix A: exponential
graphs. Ying et al., "Exponential graph is provably efficient for decentralized deep training", NeurIPS 2021.
Xiao, Boyd and Lall, "A scheme for robust distributed sensor fusion based on average consensus", IPSN 2005:
Metropolis weights.  Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004, section 4:
local-degree weights, 1 / max(d_i, d_j).
Steger and Wormald, "Generating random regular graphs quickly", 1999.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Graph = list[list[int]]
Matrix = npt.NDArray[np.float64]


def _check(n: int, least: int = 1) -> None:
    if n < least:
        raise ValueError(f"graph of {n} nodes; expected at least {least}")


def _from(n: int, neighbours: Callable[[int], set[int]]) -> Graph:
    return [sorted(neighbours(i) - {i}) for i in range(n)]


def ring(n: int) -> Graph:
    """Each node and the two beside it (one if n = 2).

    Parameters
    ----------
    n : int
        Number of nodes, at least 1.

    Returns
    -------
    list of list of int

    Examples
    --------
    >>> ring(4)
    [[1, 3], [0, 2], [1, 3], [0, 2]]
    """
    _check(n)
    return _from(n, lambda i: {(i - 1) % n, (i + 1) % n})


def torus(n: int, columns: int | None = None) -> Graph:
    """A grid whose rows and columns are rings: node i is in row i // columns; as square as possible by
    default.

    Parameters
    ----------
    n : int
        Number of nodes, at least 1.
    columns : int, optional
        Length of a row, a divisor of n.

    Returns
    -------
    list of list of int
    """
    _check(n)
    width = max(k for k in range(1, math.isqrt(n) + 1) if n % k == 0) if columns is None else columns
    if width < 1 or n % width:
        raise ValueError(f"torus of {n} nodes in {width} columns; expected a divisor of {n}")

    def beside(i: int) -> set[int]:
        row, column = divmod(i, width)
        left, right = row * width + (column - 1) % width, row * width + (column + 1) % width
        return {left, right, (i - width) % n, (i + width) % n}

    return _from(n, beside)


def complete(n: int) -> Graph:
    """Everybody with everybody.

    Parameters
    ----------
    n : int
        Number of nodes, at least 1.

    Returns
    -------
    list of list of int
    """
    _check(n)
    return _from(n, lambda i: set(range(n)))


def star(n: int) -> Graph:
    """Node 0 with all others.

    Parameters
    ----------
    n : int
        Number of nodes, at least 1.

    Returns
    -------
    list of list of int
    """
    _check(n)
    return _from(n, lambda i: {0} if i else set(range(n)))


def exponential(n: int) -> Graph:
    """Nodes 1, 2, 4, ... apart, both ways: about 2 log2 n neighbours, and everybody is log2 n steps away.

    Parameters
    ----------
    n : int
        Number of nodes, at least 1.

    Returns
    -------
    list of list of int

    Examples
    --------
    >>> exponential(8)[0]
    [1, 2, 4, 6, 7]
    """
    _check(n)
    hops = _hops(n)
    return _from(n, lambda i: {(i + hop) % n for hop in hops} | {(i - hop) % n for hop in hops})


def one_peer_exponential(n: int, t: int) -> Graph:
    """Directed, changing with the step: at step t everybody sends to the node 2^(t mod ceil(log2 n)) further
    on.

    With weights 1/2 a cycle of steps averages exactly if n is a power of two.

    Parameters
    ----------
    n : int
        Number of nodes, at least 1.
    t : int
        The step, >= 0.

    Returns
    -------
    list of list of int
        One neighbour for each node; none for n = 1.

    Examples
    --------
    >>> one_peer_exponential(4, 1)
    [[2], [3], [0], [1]]
    """
    _check(n)
    hops = _hops(n) or [0]
    return _from(n, lambda i: {(i + hops[t % len(hops)]) % n})


def _hops(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())]


def bipartite(n: int) -> Graph:
    """Complete bipartite: every even node with every odd one.

    Parameters
    ----------
    n : int
        Number of nodes, at least 2.

    Returns
    -------
    list of list of int
    """
    _check(n, 2)
    return _from(n, lambda i: {j for j in range(n) if (i + j) % 2})


def bipartite_ring(n: int) -> Graph:
    """A ring of even length, whose even and odd nodes alternate.

    Parameters
    ----------
    n : int
        Number of nodes, an even number of at least 2.

    Returns
    -------
    list of list of int
    """
    if n < 2 or n % 2:
        raise ValueError(f"bipartite ring of {n} nodes; expected an even number >= 2")
    return ring(n)


def random_regular(n: int, degree: int, seed: int = 0) -> Graph:
    """A connected graph in which every node has `degree` neighbours; a pure function of its arguments.

    Steger and Wormald's procedure: pair free ends at random, refusing loops and double edges; start again
    where that gets stuck or leaves the graph in pieces.

    Parameters
    ----------
    n : int
        Number of nodes, at least 1.
    degree : int
        Neighbours of each node, with n * degree even.
    seed : int
        Of the draw, >= 0.

    Returns
    -------
    list of list of int

    Raises
    ------
    ValueError
        If no connected graph of this degree exists.
    """
    _check(n)
    possible = 0 <= degree < n and n * degree % 2 == 0 and (degree >= 2 or n <= degree + 1)
    if not possible:
        raise ValueError(f"random regular graph of {n} nodes and degree {degree}; expected 2 <= degree < n "
                         "(or n = degree + 1) and n * degree even")
    rng = np.random.default_rng([n, degree, seed])
    dense = degree > n - 1 - degree  # then draw who is *not* a neighbour: a dense graph would seldom come out
    while True:
        near = _pair_free_ends(n, n - 1 - degree if dense else degree, rng)
        if near is None:
            continue
        graph = [sorted(set(range(n)) - s - {i} if dense else s) for i, s in enumerate(near)]
        if is_connected(graph):
            return graph


def _pair_free_ends(n: int, degree: int, rng: np.random.Generator) -> list[set[int]] | None:
    near: list[set[int]] = [set() for _ in range(n)]
    ends = [i for i in range(n) for _ in range(degree)]
    while ends:
        left: list[int] = []
        order = rng.permutation(len(ends))
        for a, b in zip(order[::2], order[1::2], strict=True):
            i, j = ends[a], ends[b]
            if i == j or j in near[i]:
                left += [i, j]
            else:
                near[i].add(j)
                near[j].add(i)
        free = set(left)
        if free and not any(i != j and j not in near[i] for i in free for j in free):
            return None
        ends = left
    return near


def is_connected(graph: Graph) -> bool:
    """Whether node 0 reaches every node along the edges.

    Parameters
    ----------
    graph : list of list of int
        The neighbours of each node.

    Returns
    -------
    bool
    """
    seen, todo = {0}, [0]
    while todo:
        new = set(graph[todo.pop()]) - seen
        seen |= new
        todo += sorted(new)
    return len(seen) == len(graph)


def uniform(graph: Graph) -> Matrix:
    """W with weight 1/(degree + 1) for each neighbour and for oneself; the graph must be regular.

    Parameters
    ----------
    graph : list of list of int
        The neighbours of each node.

    Returns
    -------
    ndarray, (n, n) float64
        ``W[i, j]`` is what i takes of j; doubly stochastic, symmetric if the graph is undirected.
    """
    degrees = {len(near) for near in graph}
    if len(degrees) != 1:
        raise ValueError(
            f"uniform weights on degrees {sorted(degrees)}; expected a regular graph (or use metropolis)")
    W = np.eye(len(graph))
    for i, near in enumerate(graph):
        W[near, i] = 1.0
    return np.asarray(W / (degrees.pop() + 1))


def metropolis(graph: Graph) -> Matrix:
    """W with weight 1 / (1 + max(degree_i, degree_j)) on each edge, the rest on the diagonal; any undirected
    graph.

    Parameters
    ----------
    graph : list of list of int
        The neighbours of each node; undirected.

    Returns
    -------
    ndarray, (n, n) float64
        Symmetric and doubly stochastic.
    """
    W = np.zeros((len(graph), len(graph)))
    for i, near in enumerate(graph):
        for j in near:
            if i not in graph[j]:
                raise ValueError(
                    f"metropolis weights: node {i} sends to {j} but not the reverse; expected an undirected "
                    "graph")
            W[i, j] = 1 / (1 + max(len(near), len(graph[j])))
    np.fill_diagonal(W, 1 - W.sum(axis=1))
    return W


def contraction(W: Matrix) -> float:
    """How much of the deviation from the mean a round of averaging can leave: the largest singular value of W
    - 11'/n.

    For symmetric W it is max(|lambda_2|, |lambda_n|), and it is reached.

    Parameters
    ----------
    W : ndarray, (n, n) float64
        Mixing matrix; rows and columns sum to 1.

    Returns
    -------
    float
        In [0, 1] for a doubly stochastic W.
    """
    n = len(W)
    return float(np.linalg.norm(W - np.full((n, n), 1 / n), 2))


def spectral_gap(W: Matrix) -> float:
    """1 - contraction(W): 1 for an exact average in one round, 0 where nothing is learnt.

    Parameters
    ----------
    W : ndarray, (n, n) float64
        Mixing matrix; rows and columns sum to 1.

    Returns
    -------
    float
        In [0, 1].

    Examples
    --------
    >>> round(spectral_gap(uniform(complete(5))), 12)
    1.0
    """
    return 1 - contraction(W)


#: by name, as options of algorithms give them: a function of the number of nodes
GRAPHS: dict[str, Callable[[int], Graph]] = {
    "ring": ring,
    "torus": torus,
    "complete": complete,
    "exponential": exponential,
    "bipartite": bipartite,
    "bipartite-ring": bipartite_ring,
    "star": star,
}
