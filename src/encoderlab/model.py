"""A model with encoder, heads and tokenizer, made by :func:`build` or read by :func:`load`."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from encoderlab import models
from encoderlab.config import override
from encoderlab.errors import ConfigError
from encoderlab.models.base import ModelConfig
from encoderlab.nn.encoder import Chosen, Encoder, States
from encoderlab.nn.heads import (
    AdaptiveLMHead,
    Classification,
    ClassificationHead,
    LMHead,
    PoolerHead,
    RTDHead,
    SpanHead,
    Tagging,
    TaggingHead,
    TaskHead,
    place_before,
)
from encoderlab.nn.init import initialize
from encoderlab.nn.noise import Noise
from encoderlab.nn.positions import at_places, counted, places
from encoderlab.nn.scope import checked_documents

if TYPE_CHECKING:
    from encoderlab.corpus.tokenizer import Tokenizer
    from encoderlab.inference import Guess
    from encoderlab.inspection.attention import Attended


class Model(nn.Module):
    """An encoder with the heads that its configuration names; absent heads are None, weights are not filled yet.

    Attributes: ``encoder``, ``pooler``, ``lm`` (tied to the encoder's word table), ``pair``, ``rtd``,
    ``mask_positions`` (table of the enhanced mask decoder), ``mask_vector`` (start of XLNet's query stream), ``task``,
    ``tokenizer``.

    Raises:
        ConfigError: parts that do not fit together, or sizes larger than any memory.
    """

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.config, self.tokenizer = config, tokenizer
        try:
            with torch.device("meta"):  # do not draw torch's own initial values
                self._make_parts(config)
        except (RuntimeError, TypeError, OverflowError):  # torch's errors for a size beyond 64 bits
            raise ConfigError("the sizes of the model make a tensor larger than any memory; reduce them") from None
        self.to_empty(device=torch.get_default_device())

    def _make_parts(self, config: ModelConfig) -> None:
        """Make the encoder and the heads; refuse heads that do not fit."""
        encoder = config.encoder
        if (config.mask_decoder or config.mask_vector) and encoder.conv is not None:
            raise ConfigError(
                "a query stream has no neighbours for a convolution; "
                "set encoder.conv to null, or mask_decoder to 0 and mask_vector to false"
            )
        if config.mask_vector and encoder.stem_conv is not None:
            raise ConfigError(
                "the stem convolution would read the tokens that a query stream predicts; "
                "set encoder.stem_conv to null, or mask_vector to false"
            )
        width, act, eps = encoder.width, encoder.activation, encoder.eps
        self.encoder = Encoder(encoder)
        self.pooler = PoolerHead(config.pooler, width) if config.pooler else None
        self.lm: LMHead | AdaptiveLMHead | None = None
        if config.lm is not None and encoder.adaptive is not None:
            self.lm = AdaptiveLMHead(encoder.adaptive, encoder.vocab, width, encoder.word_width)
        elif config.lm is not None:
            if not config.lm.transform and encoder.word_width != width:
                raise ConfigError(
                    f"an LM head without transform needs width {width} and embed_width {encoder.word_width} equal; "
                    "make them equal or set lm.transform"
                )
            self.lm = LMHead(config.lm, encoder.vocab, width, encoder.word_width, act, encoder.make_norm)
        self.pair = nn.Linear(width, 2) if config.pair else None
        self.rtd = RTDHead(config.rtd, width, act, eps) if config.rtd else None
        self.mask_positions = nn.Parameter(torch.empty(config.mask_decoder, width)) if config.mask_decoder else None
        self.mask_vector = nn.Parameter(torch.empty(1, width)) if config.mask_vector else None
        self.task: ClassificationHead | TaggingHead | SpanHead | None = None
        if isinstance(config.task, Classification):
            self.task = ClassificationHead(config.task, width, encoder.make_norm)
        elif isinstance(config.task, Tagging):
            self.task = TaggingHead(config.task, width, encoder.make_norm)
        elif config.task is not None:
            self.task = SpanHead(config.task, width, eps, encoder.make_norm)

    def forward(self, ids: Tensor, **settings: Any) -> States:
        """The encoder's states for token ids (B, L), which the heads read: see :meth:`Encoder.forward`.

        Checks ``doc`` on an accelerator too, and ``attention_mask``; the loops of this project call the encoder
        directly, which does not wait for a device.

        Raises:
            ConfigError: an ``attention_mask`` with other values than ones and zeros, or an error of
                :meth:`Encoder.forward`.
        """
        doc, mask = settings.get("doc"), settings.get("attention_mask")
        if not torch.compiler.is_compiling():
            if doc is not None and doc.ndim == 2 and doc.device.type != "cpu":
                checked_documents(doc)
            if mask is not None and not bool(((mask == 0) | (mask == 1)).all()):
                raise ConfigError("attention_mask has other values than 0 and 1; give 1 for tokens and 0 for padding")
        if mask is not None and self.tokenizer is not None and self.encoder.embeddings.offset:
            # The offset from which transformers counts positions in the converted model.
            settings.setdefault("positions", counted(ids, self.tokenizer.special.pad + 1))
        states: States = self.encoder(ids, **settings)
        return states

    def initialize(self, seed: int, *, within: str = "") -> Model:
        """Fill the weights whose names start with ``within`` (all by default) from ``seed``; returns the model."""
        initialize(self, self.encoder, seed, within=within)
        return self

    @property
    def words(self) -> Tensor:
        """The word table (V, E) that input and LM head share."""
        if self.encoder.embeddings.words is None:
            raise ConfigError("a model with adaptive embeddings has no single word table; use its adaptive head")
        return self.encoder.embeddings.words

    def token_logits(self, states: States, chosen: Chosen, noise: Noise | None = None) -> Tensor:
        """LM logits (S, V) at chosen places, through the enhanced mask decoder if the model has one."""
        assert isinstance(self.lm, LMHead)
        return self.lm(self.token_states(states, chosen, noise), self.words)

    def token_states(self, states: States, chosen: Chosen, noise: Noise | None = None) -> Tensor:
        """The states that the LM head reads at chosen places, (S, D), from ``states`` of all layers or of
        :attr:`lm_depth`.
        """
        if self.config.lm is not None and self.config.lm.next_token:
            chosen = chosen._replace(at=place_before(chosen.at, states.scope.doc))
        if self.mask_positions is not None:
            return self.decode_masks(states, chosen, noise)
        return self.encoder.last_at(states, chosen, noise)

    @property
    def lm_depth(self) -> int:
        """The number of layers that :meth:`token_states` needs at every place.

        One less than all if the last layer can be computed at the chosen places only.
        """
        splits = self.mask_positions is not None or self.encoder.splits_last_layer
        return self.encoder.depth - 1 if splits else self.encoder.depth

    def decode_masks(self, states: States, chosen: Chosen, noise: Noise | None = None) -> Tensor:
        """DeBERTa's enhanced mask decoder (He et al., 2021, section 3.2) at chosen places: (S, D).

        The last layer runs twice with keys and values from its own input X and queries X + absolute position. Only
        chosen rows are queries, so it costs S / (B L) of two layers. ``states`` needs only the first N - 1 layers.
        """
        assert self.mask_positions is not None
        encoder = self.encoder
        last = encoder.depth - 1
        source = states.layers[last]
        batch = source.shape[0]
        at, rows, slots = chosen
        positions = states.scope.positions
        if positions is None:  # not computed before
            positions = places(states.scope.doc, source.shape[1], source.device)
        position = self.mask_positions[positions.expand(batch, -1).gather(1, at)]
        queries = at_places(source, at) + position
        return encoder.query_stream(states, queries, at, layers=(last, last), noise=noise)[rows, slots]

    def with_config(self, config: ModelConfig) -> Model:
        """The model under another configuration of the same weights, which are shared, not copied."""
        with torch.device("meta"):
            model = Model(config, self.tokenizer)
        model.load_state_dict(self.state_dict(), assign=True)
        return model.train(self.training)

    def with_task(self, task: TaskHead, labels: Sequence[str], seed: int) -> Model:
        """A copy of this model with a new task head, filled from ``seed``, and without its pretraining heads.

        A prediction head starts from the transform of this model's LM head, if shapes are equal.

        Raises:
            ConfigError: the head reads the pooler, and this model has none.
        """
        family, encoder, pooler = self.config.family, self.config.encoder, self.config.pooler
        needs_pooler = isinstance(task, Classification) and task.summary == "pooler"
        if needs_pooler and pooler is None:
            raise ConfigError(f"family {family!r} has no pooler for summary 'pooler'; use summary 'dense' or 'raw'")
        config = ModelConfig(
            family=family, encoder=encoder, pooler=pooler if needs_pooler else None, task=task, labels=tuple(labels)
        )
        model = Model(config, self.tokenizer).initialize(seed, within="task.")
        kept = [name for name in model.state_dict() if not name.startswith("task.")]
        own = self.state_dict()
        model.load_state_dict({name: own[name] for name in kept}, strict=False)
        if model.task is not None and model.task.prediction is not None:
            target = model.task.prediction.state_dict()
            shapes = {name: own[f"lm.{name}"].shape for name in target if f"lm.{name}" in own}
            if shapes == {name: tensor.shape for name, tensor in target.items()}:
                model.task.prediction.load_state_dict({name: own[f"lm.{name}"] for name in target})
        return model

    def fill_mask(self, text: str, *, top: int = 5) -> list[list[Guess]]:
        """Candidates for each mask token of ``text``, see :func:`encoderlab.inference.fill_mask`."""
        from encoderlab import inference

        return inference.fill_mask(self, text, top=top)

    def encode(self, texts: Iterable[str], *, pooling: Literal["mean", "first", "last"] = "mean") -> np.ndarray:
        """One vector per text, (n, D), see :func:`encoderlab.inference.encode`."""
        from encoderlab import inference

        return inference.encode(self, texts, pooling=pooling)

    def attention(self, texts: Iterable[str], *, memory: int = 0) -> list[Attended]:
        """What every head reads in each text, an array (H, L, L) per layer: see
        :func:`encoderlab.inspection.attention.attention`.
        """
        from encoderlab.inspection import attention

        return attention.attention(self, texts, memory=memory)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder, see :func:`encoderlab.interchange.folder.save`."""
        from encoderlab.interchange import folder as folders

        folders.save(self, folder)


def build(name: str, *, seed: int = 0, tokenizer: Tokenizer | None = None, **settings: Any) -> Model:
    """A new model of a published architecture with weights from ``seed``.

    ``name`` is a key of ``encoderlab.models.SIZES``. ``settings`` change its configuration: ``build("bert-base",
    **{"encoder.layers": 6})``. The vocabulary size is that of ``tokenizer``, if given.

    Raises:
        ConfigError: an unknown name or setting.
    """
    if not isinstance(name, str):
        raise ConfigError(f"build got {name!r:.40}, expected the name of an architecture, such as 'bert-base'")
    config = models.config(name)
    if settings:
        config = override(config, settings)
    if tokenizer is not None:
        config = models.base.resized(config, vocab=tokenizer.vocab_size)
    return Model(config, tokenizer).initialize(seed)


def weights_hash(model: nn.Module) -> str:
    """SHA-256 of the weights by name: identifies a model, whatever file it came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def model_hash(model: nn.Module, config: ModelConfig, tokenizer: Tokenizer) -> str:
    """A hash of weights, configuration and tokenizer, which determine the results of a text."""
    parts = weights_hash(model), _set_fields(config), tokenizer.hash()
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _set_fields(value: Any) -> Any:
    """The fields of a configuration that differ from their defaults; those that later versions add change nothing."""
    if not dataclasses.is_dataclass(value):
        return value
    fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    return type(value).__name__, [(field.name, _set_fields(one)) for field, one in fields if one != field.default]


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Number of parameters by part, without allocating memory; shared weights count once.

    Parts of the encoder have dotted names (``encoder.embeddings``), their sum is ``encoder``; the heads have their
    names (``lm``, ``pooler``, ...). ``total`` is the sum of encoder and heads.
    """
    with torch.device("meta"):
        model = Model(config)
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = ".".join(name.split(".")[:2]) if name.startswith("encoder.") else name.split(".")[0]
        parts[part] = parts.get(part, 0) + parameter.numel()
    parts["encoder"] = sum(count for part, count in parts.items() if part.startswith("encoder."))
    parts["total"] = sum(count for part, count in parts.items() if "." not in part and part != "total")
    return parts
