"""The layers of transformers that predict the next token, by their sizes; a sample is a sequence.

Operations are those of matrix multiplications, with all scores of attention although half are masked
(Narayanan et al. 2021).  Activations are those that passes without dropout keep (Korthikanti et al. 2022), of
a Llama without the scores, as Touvron et al. 2023 trained it.  Norms,
softmax and nonlinearities add few operations.
"""

from __future__ import annotations

import re
from math import prod

from refsgd.problems.shapes import LayerSizes

NAMES = ("transformer", "llama")
DEEPEST = 1000  #: layers


def layers(name: str) -> tuple[list[LayerSizes], str, int]:
    """The embedding, the blocks and the head of ``transformer:12,768,12,1024,50257``, what a sample is, and
    its tokens.

    A ``transformer`` is a GPT-2: learned positions, biases, layer norm, an MLP of two matrices, and the
    embedding again as the head.  A ``llama`` has rotary positions, no biases, RMS norm, a gated MLP, and a
    head of its own.
    """
    depth, width, heads, tokens, words, groups, hidden = _numbers(name)
    llama, keys, size = name.startswith("llama"), width // heads * groups, tokens * width
    norm: list[tuple[int, ...]] = [(width,)] * (1 if llama else 2)
    attention = [(width, width), (width, keys), (width, keys), (width, width)]
    mlp = [(width, hidden)] * (2 if llama else 1) + [(hidden, width)]
    matrices = [*attention, *mlp]
    biases = [] if llama else [(columns,) for _, columns in matrices]
    block = [*norm, *attention, *norm, *mlp, *biases]
    operations = 2 * tokens * sum(map(prod, matrices)) + 4 * tokens * size  # those of scores, too
    # what norms and matrices of the width read, and queries; keys and values; inside of the MLP; scores
    inner, scores = (4, 0) if llama else (2, heads * tokens**2)
    kept = 6 * size + 2 * tokens * keys + inner * tokens * hidden + scores
    positions, own = ([], [(width, words)]) if llama else ([(tokens, width)], [])
    logits = tokens * words
    return [LayerSizes.of("embedding", [(words, width), *positions], 0, 0, size),
            *(LayerSizes.of(f"block{i}", block, operations, kept, size) for i in range(1, depth + 1)),
            LayerSizes.of("head", [*norm, *own], 2 * width * logits, 2 * size + logits, logits)
            ], f"a sequence of {tokens:,} tokens", tokens


def _numbers(name: str) -> tuple[int, ...]:
    """The seven numbers of a name; of the last two, the defaults are as many heads of keys and values as of
    queries, and the hidden width of GPT-2 or Llama."""
    base = re.split("[:@]", name)[0]
    text = name.removeprefix(f"{base}:")
    if not re.fullmatch(r"[1-9]\d{0,8}(,[1-9]\d{0,8}){4,6}", text, re.ASCII):
        raise ValueError(f"net shapes:{name}; expected shapes:{base}:LAYERS,WIDTH,HEADS,SEQUENCE,VOCABULARY, "
                         "and maybe KEY_VALUE_HEADS,HIDDEN, such as shapes:transformer:12,768,12,1024,50257")
    depth, width, heads, tokens, words, *rest = map(int, text.split(","))
    usual = -(-(8 * width // 3) // 256) * 256 if base == "llama" else 4 * width
    groups, hidden = rest + [heads, usual][len(rest):]
    if depth > DEEPEST or width % heads or heads % groups:
        raise ValueError(f"net shapes:{name}: {depth} layers, width {width}, {heads} heads, {groups} of "
                         f"keys and values; expected at most {DEEPEST} layers, a width that is a "
                         "multiple of heads, and heads that are one of those of keys and values")
    return depth, width, heads, tokens, words, groups, hidden
