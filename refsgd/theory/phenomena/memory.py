"""Memory for training: parameters, gradients, optimiser state, activations, buffers.

Graur 2019, sections 5.4.2 and 5.4.3, has the traffic of a node and the memory of forward-only runs.
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
           forward_only: bool = False, buffers: float = 0.0,
           working: float = 0.0) -> Prediction:
    """Bytes of a worker: parameters, gradient, optimiser state, batch x activations, exchange buffers.

    `working` counts the vectors that an update or a sum creates in addition, as every function does that
    returns a new array instead of changing one.
    """
    d, b = check_count("parameters", parameters, 0), check_count("batch", batch, 0)
    if activations_per_image < 0 or buffers < 0:
        raise DomainError(
            f"activations {activations_per_image}, buffers {buffers} bytes; the formula assumes both >= 0")
    m = 4.0 * d
    terms = {"parameters": m, "buffers": float(buffers)}
    if not forward_only:
        terms |= {"gradient": m, "optimiser state": _state(optimiser) * m,
                  "activations": b * float(activations_per_image), "working copies": working * m}
    return Prediction(sum(terms.values()), "bytes", "exact", terms,
                      "M + M + state + b x activations + buffers + working copies", "Rajbhandari et al. 2020",
                      "nothing recomputed, no fragmentation, no framework")


def server(parameters: int, servers: int = 1, *, workers: int = 1, optimiser: str = "sgd",
           collects: bool = False, working: float = 0.0) -> Prediction:
    """Bytes of one of K servers: M/K, its optimiser state, and gradients: one sum, or one for each worker.

    One sum is enough if gradients are added on arrival, as in TensorFlow's ``ConditionalAccumulator``, where
    the order of arrival changes the last bits.  Adding them in worker order, as BSP does here, needs all n in
    the worst order; receiving them one by one saves nothing, since early ones wait in the server's mailbox.
    """
    d, k = check_count("parameters", parameters, 0), check_count("servers", servers)
    n, m = check_count("workers", workers), 4 * d / k
    terms = {"parameters": m, "optimiser state": _state(optimiser) * m,
             "gradients": (n if collects else 1) * m, "working copies": working * m}
    return Prediction(sum(terms.values()), "bytes", "exact", terms,
                      "M/K (1 + state + gradients + working copies)", "Li et al. 2014",
                      "equal parts")


def zero(parameters: int, workers: int, stage: int, largest_layer: int, *,
         optimiser: str = "sgd") -> Prediction:
    """Bytes of the fullest peer of ZeRO without activations; what is divided is divided by n.

    Stages 2 and 3 also hold two vectors of one layer: its gradient and the sum that arrives, or its
    parameters and its gradient.
    """
    d, n = check_count("parameters", parameters, 0), check_count("workers", workers)
    if stage not in (1, 2, 3):
        raise DomainError(f"stage {stage}; expected 1, 2 or 3")
    m, shard = 4.0 * d, 4.0 * -(-d // n)
    terms = {"parameters": shard if stage == 3 else m, "gradient": m if stage == 1 else shard,
             "optimiser state": _state(optimiser) * shard,
             "largest layer": 2.0 * (stage > 1) * 4 * check_count("largest_layer", largest_layer, 0)}
    return Prediction(sum(terms.values()), "bytes", "exact", terms,
                      "parameters + gradient + state, divided by n as the stage says, + 2 largest layer",
                      "Rajbhandari et al. 2020", "no activations, no fragmentation, no framework")


def stage(parameters: int, activations: float, batches: int = 1, *, versions: int = 1, optimiser: str = "sgd",
          working: float = 0.0) -> Prediction:
    """Bytes of a stage of a pipeline: M_k for each version of its parameters (GPipe has one, PipeDream one
    for each batch in flight), activations of each batch in flight."""
    d, n = check_count("parameters", parameters, 0), check_count("batches", batches)
    m = 4.0 * d
    terms = {"parameters": m, "stashed versions": (check_count("versions", versions) - 1) * m,
             "gradient": m, "optimiser state": _state(optimiser) * m,
             "activations": n * float(activations), "working copies": working * m}
    return Prediction(sum(terms.values()), "bytes", "exact", terms,
                      "M_k (versions + gradient + state + working copies) + batches in flight x activations",
                      "Huang et al. 2019; Narayanan et al. 2019", "nothing recomputed")
