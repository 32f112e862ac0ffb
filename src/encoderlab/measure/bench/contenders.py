"""One training step each: ours, and that of ``transformers`` in its best settings: fused attention where the library
has it (sdpa), fused AdamW, and labels at the masked places only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from encoderlab.batches.batch import IGNORE, Batch
from encoderlab.batches.rows import Row
from encoderlab.errors import ConfigError, optional
from encoderlab.interchange import huggingface
from encoderlab.measure.bench.families import Case
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig
from encoderlab.nn.kernels.plain import draw
from encoderlab.nn.noise import Noise
from encoderlab.nn.recording import Recordings
from encoderlab.objectives.base import Objective
from encoderlab.objectives.distill import Distill, DistillSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.rtd import GENERATOR_SAMPLES, ReplacedTokenDetection, RTDSettings, uniform
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.train.engine import record_layers

LR, SEED = 1e-4, 0


def quiet_transformers() -> Any:
    """The library ``transformers`` without its messages.

    Raises:
        MissingDependency: it is not installed.
    """
    with optional("transformers", "hf", "comparing with transformers"):
        import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def objective_of(case: Case, vocabulary: Vocabulary) -> Objective:
    """The case's networks under our objective, with the same weights for every contender."""
    model = Model(case.model).initialize(SEED)
    second = Model(case.second).initialize(SEED + 1) if case.second is not None else None
    return case.objective.build(model, second, vocabulary, seed=SEED)


class Ours:
    """A step as our loop runs it."""

    def __init__(self, case: Case, vocabulary: Vocabulary) -> None:
        self.objective = objective_of(case, vocabulary).train()
        self.parameters = [p for p in self.objective.parameters() if p.requires_grad]
        self.recordings: list[Recordings] = []

    def record(self, batches: Iterable[Batch]) -> None:
        """Record the layers for these batches, as the training loop does on a GPU."""
        shapes = {(len(batch), batch.ids.shape[1]) for batch in batches}
        self.recordings = record_layers(self.objective, shapes)

    def batches(self, rows: list[list[Row]]) -> list[Batch]:
        """A batch of each part of the rows.

        Raises:
            ConfigError: in one batch a loss has nothing to predict.
        """
        made = [self.objective.make_batch(part, seed=SEED) for part in rows]
        if not all(count for batch in made for count in self.objective.counts(batch).values()):
            raise ConfigError("rows as short and as few as these have nothing to predict; give longer or more rows")
        return made

    def arranged(self, batch: Batch) -> Batch:
        return batch

    def loss(self, batch: Batch, step: int) -> Tensor:
        assert batch.rows is not None
        for recordings in self.recordings:
            recordings.ready = True
        terms, _ = self.objective(batch, noise=Noise(SEED, step, batch.rows))
        return sum((t.sum * (t.weight / t.count) for t in terms.values()), torch.zeros(()))


class Theirs:
    """The same step with ``transformers``, from the same weights, through a folder."""

    def __init__(self, case: Case, vocabulary: Vocabulary, *, compile: bool = False) -> None:
        self.case, self.transformers, self.pad = case, quiet_transformers(), vocabulary.pad
        objective = objective_of(case, vocabulary)
        models = objective.models() | ({"teacher": objective.teacher} if isinstance(objective, Distill) else {})
        networks = {name: self._load(model) for name, model in models.items()}
        self._join(networks, objective)
        self.networks = nn.ModuleDict(networks).train()
        if "teacher" in networks:
            networks["teacher"].eval().requires_grad_(False)
        self.parameters = [p for p in self.networks.parameters() if p.requires_grad]
        if compile:
            for network in networks.values():
                network.compile()

    def arranged(self, batch: Batch) -> Batch:
        """The batch as collators of ``transformers`` make it: ``labels`` also has the inputs of their models."""
        batch = apart(batch, self.pad)
        labels = {"attention_mask": (batch.doc >= 0).long()}
        if isinstance(self.case.objective, PermutationSettings):
            labels |= permuted(batch)
        else:
            labels["labels"] = labels_of(batch)
        return replace(batch, labels=batch.labels | labels)

    def loss(self, batch: Batch, step: int) -> Tensor:
        """The loss of a batch that was :meth:`arranged`."""
        settings = self.case.objective
        if isinstance(settings, RTDSettings):
            return self._detection(batch, step, settings)
        if isinstance(settings, DistillSettings):
            return self._distillation(batch, settings)
        if isinstance(settings, PermutationSettings):
            inputs = {name: batch.labels[name] for name in ("perm_mask", "target_mapping", "labels")}
            network = self.networks["model"]
            return network(input_ids=batch.ids, token_type_ids=batch.segments, use_mems=False, **inputs).loss
        inputs = self._inputs(batch) | {"labels": batch.labels["labels"]}
        if self.case.model.pair and "next_sentence" in batch.labels:
            inputs["next_sentence_label"] = batch.labels["next_sentence"]
        return self.networks["model"](**inputs).loss

    def _load(self, model: Model) -> nn.Module:
        kind = "AutoModelForMaskedLM"
        if model.config.family == "bert" and model.config.pair:
            kind = "AutoModelForPreTraining"
        elif model.rtd is not None:
            kind = "AutoModelForPreTraining" if model.config.family == "electra" else "AutoModel"
        elif model.mask_vector is not None:
            kind = "XLNetLMHeadModel"
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "model"
            huggingface.save(model, folder)
            loader = getattr(self.transformers, kind)
            attention = "sdpa" if model.config.family in SDPA else "eager"
            network: nn.Module = loader.from_pretrained(folder, attn_implementation=attention)
        if not model.config.encoder.types:  # its segment table, if any, has no counterpart in ours to train
            for name, parameter in network.named_parameters():
                parameter.requires_grad_("token_type_embeddings" not in name)
        return network

    def _join(self, networks: dict[str, nn.Module], objective: Objective) -> None:
        """Tie the embeddings of generator and discriminator; add the detection head where the library has none."""
        if not isinstance(objective, ReplacedTokenDetection):
            return
        generator: Any = networks["generator"]
        discriminator: Any = networks["discriminator"]
        body, other = discriminator.base_model, generator.base_model
        if objective.settings.sharing == "block":
            other.embeddings = body.embeddings
        else:
            other.embeddings.word_embeddings = body.embeddings.word_embeddings
        output = generator.get_output_embeddings()
        if hasattr(output, "weight") and output.weight.shape == body.embeddings.word_embeddings.weight.shape:
            output.weight = body.embeddings.word_embeddings.weight
        if self.case.model.family != "electra":
            assert objective.discriminator.rtd is not None
            networks["head"] = objective.discriminator.rtd

    def _inputs(self, batch: Batch, reader: ModelConfig | None = None) -> dict[str, Tensor]:
        """The inputs of the library's version of ``reader`` (by default the case's model)."""
        inputs = {"input_ids": batch.ids, "attention_mask": batch.labels["attention_mask"]}
        if (reader or self.case.model).encoder.types and batch.segments is not None:
            inputs["token_type_ids"] = batch.segments
        return inputs

    def _detection(self, batch: Batch, step: int, settings: RTDSettings) -> Tensor:
        labels = batch.labels["labels"]
        generated = self.networks["generator"](**self._inputs(batch), labels=labels)
        masked = labels >= 0
        with torch.no_grad():
            rows, places = masked.nonzero(as_tuple=True)
            assert batch.rows is not None
            if "begin" in batch.labels:
                places = places + batch.labels["begin"][rows]  # as numbered in the packed row
            points = uniform(Noise(SEED, step, batch.rows).layer(GENERATOR_SAMPLES)[rows], places)
            samples = draw(generated.logits[masked], points)
            corrupted = batch.labels["original"].clone()
            corrupted[masked] = samples
            replaced = (corrupted != batch.labels["original"]).long()
        inputs = self._inputs(batch) | {"input_ids": corrupted}
        if self.case.model.family == "electra":
            detected = self.networks["discriminator"](**inputs, labels=replaced).loss
        else:
            states = self.networks["discriminator"](**inputs).last_hidden_state
            first = states[:, :1].expand_as(states)
            logits = self.networks["head"](states, first)
            real = batch.doc >= 0
            detected = F.binary_cross_entropy_with_logits(logits[real].float(), replaced[real].float())
        return settings.generator_weight * generated.loss + settings.discriminator_weight * detected

    def _distillation(self, batch: Batch, settings: DistillSettings) -> Tensor:
        inputs, labels = self._inputs(batch), batch.labels["labels"]
        masked = labels >= 0
        student = self.networks["model"](**inputs, labels=labels, output_hidden_states=True)
        with torch.no_grad():
            teacher = self.networks["teacher"](**self._inputs(batch, self.case.second), output_hidden_states=True)
        t = settings.temperature
        ours, theirs = ((out.logits[masked].float() / t).log_softmax(-1) for out in (student, teacher))
        soft = t * t * F.kl_div(ours, theirs, log_target=True, reduction="batchmean")
        real = batch.doc >= 0
        close = F.cosine_similarity(student.hidden_states[-1][real], teacher.hidden_states[-1][real], dim=-1)
        weighted = settings.logits_weight * soft + settings.mlm_weight * student.loss
        return weighted + settings.cosine_weight * (1 - close).mean()


def permuted(batch: Batch) -> dict[str, Tensor]:
    """A batch of permutation modelling as XLNet of ``transformers`` reads it: the mask of hidden tokens (B, L, L), one
    row of the unit matrix per target (B, T, L), and the targets (B, T), IGNORE in empty slots.
    """
    labels, itself = batch.labels, torch.eye(batch.ids.shape[1])
    taken = labels["positions"] >= 0
    return {
        "perm_mask": (labels["query_rank"][:, :, None] <= labels["key_rank"][:, None, :]).float(),
        "target_mapping": itself[labels["positions"].clamp(min=0)] * taken[..., None],
        "labels": labels["targets"].masked_fill(~taken, IGNORE),
    }


def labels_of(batch: Batch) -> Tensor:
    """The targets at their places, (B, L), IGNORE elsewhere."""
    labels = torch.full_like(batch.ids, IGNORE)
    rows, slots = (batch.labels["positions"] >= 0).nonzero(as_tuple=True)
    labels[rows, batch.labels["positions"][rows, slots]] = batch.labels["targets"][rows, slots]
    return labels


def apart(batch: Batch, pad: int) -> Batch:
    """Packed documents, each padded in its own row, as in batches without packing.

    ``labels["begin"]`` (B,) is the place of a document in its packed row, whose number it keeps.
    """
    row, place = (batch.doc >= 0).nonzero(as_tuple=True)
    number = row * (int(batch.doc.max()) + 1) + batch.doc[row, place]
    lengths = number.unique_consecutive(return_counts=True)[1]
    if len(lengths) == len(batch):
        return batch

    def rows(x: Tensor, fill: int) -> Tensor:
        return pad_sequence(x[row, place].split(lengths.tolist()), batch_first=True, padding_value=fill)

    targets = rows(labels_of(batch), IGNORE)
    masked, positions = (targets != IGNORE).nonzero(as_tuple=True)
    counts = masked.bincount(minlength=len(lengths)).tolist()
    first = lengths.cumsum(0) - lengths
    labels = {
        "positions": pad_sequence(positions.split(counts), batch_first=True, padding_value=-1),
        "targets": pad_sequence(targets[masked, positions].split(counts), batch_first=True, padding_value=IGNORE),
        "begin": place[first],
    }
    if "original" in batch.labels:
        labels["original"] = rows(batch.labels["original"], pad)
    return Batch(
        ids=rows(batch.ids, pad),
        doc=rows(batch.doc, -1),
        segments=None if batch.segments is None else rows(batch.segments, 0),
        labels=labels,
        rows=None if batch.rows is None else batch.rows[row[first]],
    )


SDPA = (
    "bert",
    "roberta",
    "albert",
    "distilbert",
    "electra",
    "modernbert",
)  # the families whose attention transformers can fuse
