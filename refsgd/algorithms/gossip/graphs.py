"""Communication graphs and mixing matrices for algorithms without a server.

A graph of n nodes is the list of its nodes' neighbours: ``graph[i]`` holds the nodes to which i sends,
ascending and without i.  All but the one-peer exponential graph are undirected.  Entry W_ij of a mixing
matrix is the weight of node j's parameters in node i's average: rows and columns sum to 1, so averaging
conserves the mean.  The smaller the second largest absolute eigenvalue, the faster the nodes agree.

Parameters
----------
n : int
    Number of nodes, at least 1.
graph : list of list of int
    An undirected graph.
W : ndarray, (n, n) float64
    A mixing matrix.

Returns
-------
list of list of int
    The graph.

References
----------
Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NIPS 2017: W on a ring.
Assran et al., "Stochastic gradient push for distributed deep learning", ICML 2019, appendix A: exponential
graphs.  Ying et al., "Exponential graph is provably efficient for decentralized deep training", NeurIPS 2021.
Xiao, Boyd and Lall, "A scheme for robust distributed sensor fusion based on average consensus", IPSN 2005:
Metropolis weights.  Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004, section 4:
local-degree weights, 1 / max(d_i, d_j).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from refsgd.collectives.parts import factors

Graph = list[list[int]]
Matrix = npt.NDArray[np.float64]


def _from(n: int, neighbours: Callable[[int], set[int]], least: int = 1) -> Graph:
    if n < least:
        raise ValueError(f"graph of {n} nodes; expected at least {least}")
    return [sorted(neighbours(i) - {i}) for i in range(n)]


def ring(n: int) -> Graph:
    """Each node is connected with the next and the previous one.

    >>> ring(4)
    [[1, 3], [0, 2], [1, 3], [0, 2]]
    """
    return _from(n, lambda i: {(i - 1) % n, (i + 1) % n})


def torus(n: int) -> Graph:
    """A grid whose rows and columns are rings, as nearly square as possible; nodes are numbered row by row.
    """
    def beside(i: int) -> set[int]:
        width = factors(n)[1]
        row, column = divmod(i, width)
        left, right = row * width + (column - 1) % width, row * width + (column + 1) % width
        return {left, right, (i - width) % n, (i + width) % n}

    return _from(n, beside)


def complete(n: int) -> Graph:
    """Each node is connected with all others."""
    return _from(n, lambda i: set(range(n)))


def star(n: int) -> Graph:
    """Node 0 is connected with all others."""
    return _from(n, lambda i: {0} if i else set(range(n)))


def exponential(n: int) -> Graph:
    """Nodes 1, 2, 4, ... apart are connected: about 2 log2 n neighbours, and at most log2 n steps between
    nodes.

    >>> exponential(8)[0]
    [1, 2, 4, 6, 7]
    """
    return _from(n, lambda i: {(i + sign * hop) % n for hop in _hops(n) for sign in (1, -1)})


def one_peer_exponential(n: int, t: int) -> Graph:
    """Directed, changing with t: each node sends to the node 2^(t mod ceil(log2 n)) further on.

    With weights 1/2 a cycle of steps averages exactly if n is a power of two.

    Parameters
    ----------
    t : int
        The step, >= 0.

    Examples
    --------
    >>> one_peer_exponential(4, 1)
    [[2], [3], [0], [1]]
    """
    hops = _hops(n) or [0]
    return _from(n, lambda i: {(i + hops[t % len(hops)]) % n})


def _hops(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())]


def bipartite(n: int) -> Graph:
    """Complete bipartite, of at least 2 nodes: every even one is connected with every odd one."""
    return _from(n, lambda i: {j for j in range(n) if (i + j) % 2}, least=2)


def bipartite_ring(n: int) -> Graph:
    """A ring of an even number of nodes, at least 2: its even and odd nodes alternate."""
    if n % 2:
        raise ValueError(f"bipartite ring of {n} nodes; expected an even number >= 2")
    return ring(n)


def metropolis(graph: Graph) -> Matrix:
    """W with weight 1 / (1 + max(degree_i, degree_j)) on each edge, and the rest on the diagonal.

    On a regular graph a node and its neighbours weigh the same, 1 / (degree + 1).

    Returns
    -------
    ndarray, (n, n) float64
        Symmetric and doubly stochastic.
    """
    W = np.zeros((len(graph), len(graph)))
    for i, near in enumerate(graph):
        for j in near:
            if i not in graph[j]:
                raise ValueError(f"metropolis weights: node {i} sends to {j} but not the reverse; "
                                 "expected an undirected graph")
            W[i, j] = 1 / (1 + max(len(near), len(graph[j])))
    np.fill_diagonal(W, 1 - W.sum(axis=1))
    return W


def spectral_gap(W: Matrix) -> float:
    """One minus the largest singular value of W - 11'/n: 1 for an exact average in one round, 0 for none.

    One round of averaging multiplies the deviation from the mean by at most this singular value.  If W is
    symmetric, it is max(|lambda_2|, |lambda_n|), and it is reached.

    Returns
    -------
    float
        In [0, 1].

    Examples
    --------
    >>> round(spectral_gap(metropolis(complete(5))), 12)
    1.0
    """
    n = len(W)
    return 1 - float(np.linalg.norm(W - np.full((n, n), 1 / n), 2))


#: graphs by their name in options of algorithms; each is a function of the number of nodes
GRAPHS: dict[str, Callable[[int], Graph]] = {
    "ring": ring,
    "torus": torus,
    "complete": complete,
    "exponential": exponential,
    "bipartite": bipartite,
    "bipartite-ring": bipartite_ring,
    "star": star,
}


def graph_of(name: str, workers: int, known: Sequence[str] = tuple(GRAPHS)) -> Graph:
    """The graph of a name in `GRAPHS`, or an error that lists those `known`; a single worker has no
    neighbours in any graph."""
    if name not in GRAPHS:
        raise ValueError(f"graph {name!r}; expected one of {', '.join(known)}")
    if workers < 1:
        raise ValueError(f"workers {workers}; expected at least 1")
    return [[]] if workers == 1 else GRAPHS[name](workers)


def sides(graph: Graph) -> list[int] | None:
    """0 or 1 for each node, 0 for the first, so that neighbours differ; None if the graph has an odd cycle.

    >>> sides(ring(4)), sides(ring(3))
    ([0, 1, 0, 1], None)
    """
    side: dict[int, int] = {}
    for root in range(len(graph)):
        side.setdefault(root, 0)
        todo = [root]
        while todo:
            i = todo.pop()
            for j in graph[i]:
                if j not in side:
                    side[j] = 1 - side[i]
                    todo.append(j)
    if any(side[i] == side[j] for i, near in enumerate(graph) for j in near):
        return None
    return [side[i] for i in range(len(graph))]
