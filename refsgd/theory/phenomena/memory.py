"""Memory for training: parameters, gradients, optimiser state, activations, buffers.

References
----------
Graur, "Evaluating and improving large-scale machine learning frameworks", MSc thesis, TU Delft, 2019,
sections 5.4.2 and 5.4.3: traffic per node, memory of forward-only runs.
Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020, section
3.
"""

from __future__ import annotations

from refsgd.theory.estimate import check_count
from refsgd.theory.prediction import DomainError, Prediction

STATE = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2}  # vectors of optimiser state


def _state(optimiser: str) -> int:
    if optimiser not in STATE:
        raise DomainError(f"optimiser {optimiser!r}; expected one of {', '.join(STATE)}")
    return STATE[optimiser]


def worker(parameters: int, activations_per_image: float, batch: int, *, optimiser: str = "sgd",
           forward_only: bool = False, itemsize: int = 4, buffers: float = 0.0) -> Prediction:
    """Bytes of a worker: parameters, gradient, optimiser state, batch x activations, exchange buffers."""
    d, b = check_count("parameters", parameters, 0), check_count("batch", batch, 0)
    if activations_per_image < 0 or buffers < 0:
        raise DomainError(
            f"activations {activations_per_image}, buffers {buffers} bytes; the formula assumes both >= 0")
    m = float(itemsize * d)
    terms = {"parameters": m, "buffers": float(buffers)}
    if not forward_only:
        terms |= {"gradient": m, "optimiser state": _state(optimiser) * m,
                  "activations": b * float(activations_per_image)}
    return Prediction(sum(terms.values()), "bytes", "exact", terms,
                      "M + M + state + b x activations + buffers", "Rajbhandari et al. 2020",
                      "nothing recomputed, no fragmentation, no framework")


def server(parameters: int, servers: int = 1, *, workers: int = 1, optimiser: str = "sgd",
           collects: bool = False, backups: bool = False, itemsize: int = 4) -> Prediction:
    """Bytes of one of K servers: M/K, its optimiser state, and gradients: one sum, or one for each worker.

    One sum is enough if gradients are added on arrival, as in TensorFlow's ``ConditionalAccumulator``, where
    the order of arrival changes the last bits of the sum.  Adding them in worker order, as BSP does here,
    needs all n in the worst order of arrival.  Receiving them one by one saves nothing: early ones wait in
    the mailbox of the server's process.
    """
    d, k = check_count("parameters", parameters, 0), check_count("servers", servers)
    n, m = check_count("workers", workers), itemsize * d / k
    terms = {"parameters": m, "optimiser state": _state(optimiser) * m,
             "gradients": (n if collects else 1) * m}
    if backups:
        terms["backups"] = n * m
    return Prediction(sum(terms.values()), "bytes", "exact", terms, "M/K (1 + state + gradients + backups)",
                      "Li et al. 2014", "even slices")
