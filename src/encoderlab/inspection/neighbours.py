"""The nearest words of a word in the embedding table."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from encoderlab.inference import tokenizer_of
from encoderlab.model import Model


@torch.inference_mode()
def nearest(model: Model, tokens: Sequence[str], *, count: int = 8) -> dict[str, list[tuple[str, float]]]:
    """For each token the ``count`` others with the largest cosine in the word table, best first; tokens that the
    vocabulary lacks are left out. Costs one product of the table per token.

    Raises:
        ConfigError: the model has no single word table, or no tokenizer.
    """
    tokenizer = tokenizer_of(model)
    table = torch.nn.functional.normalize(model.words.float()[: tokenizer.vocab_size], dim=-1)
    neighbours = {}
    for token in dict.fromkeys(tokens):
        index = tokenizer.id(token)
        if index is None:
            continue
        cosines = table @ table[index]
        cosines[index] = -torch.inf
        values, places = cosines.topk(min(count, len(cosines) - 1))
        neighbours[token] = [
            (tokenizer.token(place), value) for place, value in zip(places.tolist(), values.tolist(), strict=True)
        ]
    return neighbours
