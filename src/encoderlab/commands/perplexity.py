"""``encoderlab perplexity``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from encoderlab.commands import terminal
from encoderlab.commands.settings import Count, CountOrZero
from encoderlab.errors import ConfigError

if TYPE_CHECKING:
    from encoderlab.corpus.shards import Corpus
    from encoderlab.model import Model

LONGEST = 1000  # tokens of context that the effective one is sought among


def perplexity(
    *models: Path,
    corpus: Path,
    split: str = "validation",
    window: Count = 64,
    memory: CountOrZero = 640,
    same_length: bool = False,
    clamp: CountOrZero = 0,
    streams: Count = 8,
    no_separator: bool = False,
    context: bool = False,
    positions: Count | None = None,
) -> dict[str, Any]:
    """Measure left-to-right language models on a corpus: perplexity, bits per token and per byte, effective context.

    The memory may be longer than in training. With tokens that are characters, bits per token are bits per character;
    bits per byte compare models with different tokenizers.

    Example: encoderlab perplexity runs/xl --corpus corpora/wiki --memory 1600

    Parameters
    ----------
    models
        Folders of models or runs, or names; several are compared on the same text.
    corpus
        Corpus folder, built with the models' tokenizer.
    split
        Split of the corpus: train or validation.
    window
        Tokens read at a time.
    memory
        Number of earlier states that a window sees; may be larger than in training.
    same_length
        Every token sees exactly as many earlier keys as the memory has states.
    clamp
        Largest distance between tokens; larger ones count as this one. 0 for no limit.
    streams
        Number of streams read in parallel, each from its own part of the text.
    no_separator
        Do not put the end-of-document token between documents.
    context
        Also measure the relative effective context length (100 to 1,000 tokens) among these models.
    positions
        Number of tokens at which it is measured; each costs up to 1,000 tokens. Default: 200.
    """
    from encoderlab.corpus.manifest import verify
    from encoderlab.corpus.shards import Corpus
    from encoderlab.inference import usual_device
    from encoderlab.interchange.load import load
    from encoderlab.measure.evaluate_lm import LMProtocol, context_losses, evaluate_lm, relative_effective_context
    from encoderlab.train.continuing import same_ids

    if not models:
        raise ConfigError("no model to measure; give at least one model folder")
    if positions is not None and not context:
        raise ConfigError("--positions is for the effective context; give --context too")
    if twice := next((path for path in models if models.count(path) > 1), None):
        raise ConfigError(f"{twice}: is given twice; name each model once")
    if same_length and not memory:
        raise ConfigError("--same-length counts the states of the memory, and --memory is 0; leave --same-length out")
    text = Corpus(corpus, split)
    verify(corpus, split)
    device = usual_device()
    loaded = {str(path): load(path).to(device) for path in models}
    tokenizer = text.tokenizer()
    for name, model in loaded.items():
        same_ids(model, tokenizer, name)
        _check(name, model, window, memory, clamp, context)
    separator = not no_separator and tokenizer.special.eod is not None
    protocol = LMProtocol(
        window=window, memory=memory, same_length=same_length, clamp=clamp, streams=streams, separator=separator
    )
    places = _places(text, positions or 200) if context else []
    scores = {name: evaluate_lm(model, text, protocol) for name, model in loaded.items()}
    measured: dict[str, dict[str, Any]] = {
        name: {
            "perplexity": score.perplexity,
            "bits_per_token": score.bits_per_token,
            "bits_per_byte": score.bits_per_byte,
            "tokens": score.tokens,
        }
        for name, score in scores.items()
    }
    if context:
        losses = {name: context_losses(model, text, places, separator=separator) for name, model in loaded.items()}
        for name, length in relative_effective_context(losses, most=LONGEST).items():
            measured[name]["effective_context"] = length
    columns = ["model", "perplexity", "bits/token", "bits/byte"] + (["effective context"] if context else [])
    rows = [
        [name, f"{s['perplexity']:,.2f}", f"{s['bits_per_token']:.3f}", f"{s['bits_per_byte']:.3f}"]
        + ([s["effective_context"]] if context else [])
        for name, s in measured.items()
    ]
    terminal.table(f"{split} of {corpus}, {text.num_tokens:,} tokens", columns, rows)
    return {"split": split, "protocol": vars(protocol), "models": measured}


def _check(name: str, model: Model, window: int, memory: int, clamp: int, context: bool) -> None:
    """Refuse, before any model is measured, one that cannot be, or not in this way."""
    from encoderlab.nn.positions import RelativeShift

    encoder = model.config.encoder
    longest = encoder.max_length
    if not encoder.causal:
        raise ConfigError(f"{name}: sees later tokens; give a left-to-right model, such as transformer-xl-mini")
    if model.lm is None:
        raise ConfigError(f"{name}: has no LM head, which predicts tokens; give a pretrained model")
    if memory and not encoder.position.takes_memory:
        raise ConfigError(f"{name}: --memory {memory} needs relative positions, which it lacks; give --memory 0")
    if clamp and not isinstance(encoder.position, RelativeShift):
        raise ConfigError(f"{name}: --clamp {clamp} limits sinusoidal distances, which it lacks; leave it out")
    if longest is not None and window > longest:
        raise ConfigError(f"{name}: --window {window} is longer than its {longest} positions; give at most {longest}")
    if context and longest is not None and longest < LONGEST:
        raise ConfigError(f"{name}: --context needs {LONGEST:,} positions, and it has {longest}; leave it out")


def _places(text: Corpus, positions: int) -> list[int]:
    """``positions`` places of the text at equal distances, each with :data:`LONGEST` tokens before it.

    Raises:
        ConfigError: the text is too short.
    """
    import numpy as np

    if text.num_tokens < LONGEST + positions:
        raise ConfigError(
            f"{text.split} of {text.path} has {text.num_tokens} tokens; {positions} positions need more than 1,000"
        )
    return np.linspace(LONGEST, max(text.num_tokens - 2, LONGEST), positions).astype(int).tolist()
