"""Pretraining: a recipe and a corpus to a run folder and a model."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoderlab.batches.batch import Batch
from encoderlab.batches.loader import Format, Loader
from encoderlab.batches.pack import ElectraSegments, Framing, Row, SegmentPairs, SentencePairs
from encoderlab.batches.streams import ContiguousStreams, StreamFormat, XLNetStreams
from encoderlab.config import from_dict, read_file
from encoderlab.corpus.shards import MANIFEST, TOKENIZER, Corpus, file_hash, verify
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import folder as folders
from encoderlab.interchange.load import load
from encoderlab.model import Model
from encoderlab.models import flops
from encoderlab.models.base import ModelConfig, resized
from encoderlab.nn.positions import Disentangled
from encoderlab.objectives.base import Objective
from encoderlab.objectives.causal import Causal, CausalSettings
from encoderlab.objectives.distill import Distill, DistillSettings
from encoderlab.objectives.mlm import MLM, MLMSettings
from encoderlab.objectives.permutation import Permutation, PermutationSettings
from encoderlab.objectives.rtd import RTD, RTDSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.train import checkpoint
from encoderlab.train.continuing import continuing, same_ids, source_of, take
from encoderlab.train.distributed import join
from encoderlab.train.loop import Data, Outcome, load_weights, train
from encoderlab.train.recipe import Budget, Phase, Training

log = logging.getLogger("encoderlab")

ObjectiveSettings = MLMSettings | RTDSettings | PermutationSettings | CausalSettings | DistillSettings
VALIDATION_SEED = 20181011  # validation rows and masks are the same in every run, whatever its seed


@dataclass(frozen=True, kw_only=True)
class Recipe(Training):
    """Everything that determines a pretraining run, but for the corpus.

    Args:
        generator: the second network of replaced token detection.
        rows: how rows are made of text; each phase sets their length.
        duplicates: after so many epochs the same rows and masks come again (static masking with that duplication
            factor); None draws every epoch afresh.
        init_from: a model folder to continue from instead of starting fresh.
        fresh_generator: of ``init_from``, continue the discriminator alone.
    """

    name: str = ""
    model: ModelConfig
    generator: ModelConfig | None = None
    objective: ObjectiveSettings = MLMSettings()
    rows: Format = SegmentPairs()
    duplicates: int | None = None
    init_from: str | None = None
    fresh_generator: bool = False


def pretrain(
    recipe: Recipe,
    corpus: Path,
    out: Path,
    *,
    session: Budget | None = None,
    peak: Callable[[Recipe], float] | None = None,
) -> Outcome:
    """Train as ``recipe`` says on the corpus folder ``corpus``, in the run folder ``out``; run it again to resume.

    The result lies in ``out/model`` (``out/model/generator`` and ``out/model/discriminator`` for two networks).
    ``peak`` measures the operations per second of one device, of which the run then shows its share.

    Raises:
        ConfigError: the recipe makes no sense, or does not fit corpus or folder; found before any work.
        DataError: the corpus is too small, or a file of it has changed; all are hashed, about a second per GB.
    """
    check(recipe)
    text = Corpus(corpus)
    tokenizer = Tokenizer.load(text.tokenizer_path)
    resumed = any((out / "checkpoints").glob("step-*"))  # it holds all weights, so init_from may be gone by now
    recipe = fit(recipe, tokenizer, resumed=out if resumed else None)
    join(recipe.execution.device).agree(lambda: _verified(corpus))
    objective = build_objective(recipe, tokenizer, text, resumed=resumed)
    teacher = objective.teacher.config if isinstance(objective, Distill) else None
    data = corpus_data(recipe, objective, corpus, tokenizer)
    data = replace(data, operations=cache(lambda phase: operations(recipe, phase.length, teacher)))
    outcome = train(objective, recipe, data, out, session=session, peak=peak(recipe) if peak else None)
    if join(recipe.execution.device).main:
        if recipe.execution.parallel == "fsdp":  # this process has only shards; the checkpoint has it all
            objective = build_objective(recipe, tokenizer, text, resumed=True)
            load_weights(objective, outcome.checkpoint)
        save_models(objective, tokenizer, out)
    return outcome


def _verified(corpus: Path) -> float:
    """Once in a session, on one process: a changed token would be trained on, and nothing would show it."""
    verify(corpus)
    return 0.0


def save_models(objective: Objective, tokenizer: Tokenizer, out: Path) -> None:
    """Write the objective's models into ``out/model``."""
    for name, model in objective.models().items():
        model.tokenizer = tokenizer
        folders.save(model, out / "model" if name == "model" else out / "model" / name)


def models_at(folder: Path) -> dict[str, Model]:
    """The models as the checkpoint ``folder`` of a run has them, by the names of :meth:`Objective.models`, with the
    tokenizer that lies in the run.

    Raises:
        DataError: the checkpoint is damaged, or not one of pretraining.
    """
    checkpoint.verify(folder)
    kept = read_file(folder / checkpoint.RECIPE)
    if "objective" not in kept:
        raise DataError(f"{folder}: is no checkpoint of pretraining; run the command that wrote it again to finish it")
    recipe = from_dict(Recipe, kept)
    settings, vocabulary = recipe.objective, _any_vocabulary(recipe)
    teacher = load(settings.teacher) if isinstance(settings, DistillSettings) else None
    objective = _objective(recipe, *_networks(recipe, None, resumed=True), teacher, vocabulary)
    load_weights(objective, folder)
    models = {name: model.eval() for name, model in objective.models().items()}
    place = folder.resolve().parents[1] / TOKENIZER
    if place.is_dir():
        tokenizer = Tokenizer.load(place)
        for model in models.values():
            folders.give_tokenizer(model, tokenizer, place)
    return models


def check(recipe: Recipe) -> None:
    """Refuse combinations that make no sense, by what the recipe says alone; no weights are made.

    Raises:
        ConfigError: with the reason and a remedy.
    """
    _check_generator(recipe)
    _check_streams(recipe)
    _check_decoders(recipe)
    if isinstance(recipe.rows, SegmentPairs) and not recipe.model.pair and isinstance(recipe.objective, MLMSettings):
        log.info("rows are pairs, but the model has no sentence-pair head: the pair label is not trained")
    _check_lengths(recipe)
    if not isinstance(recipe.objective, DistillSettings):  # whose other network is not known from the recipe alone
        with torch.device("meta"):
            model = Model(recipe.model)
            generator = None if recipe.generator is None else Model(recipe.generator)
            _objective(recipe, model, generator, None, _any_vocabulary(recipe))


def _check_generator(recipe: Recipe) -> None:
    needed = isinstance(recipe.objective, RTDSettings)
    if needed and recipe.generator is None:
        raise ConfigError(
            "replaced token detection needs a generator; "
            "take a recipe of electra, convbert or deberta-v3, or set generator"
        )
    if not needed and recipe.generator is not None:
        raise ConfigError(f"objective {recipe.objective.kind!r} trains one network; set generator to null")


def _check_streams(recipe: Recipe) -> None:
    """Shuffled rows and streams each serve some objectives and settings only."""
    objective, rows = recipe.objective, recipe.rows
    streams = isinstance(rows, StreamFormat)
    remembered = [name for name in ("memory", "evaluation_memory") if getattr(objective, name, None)]
    if remembered and not streams:
        kind = "contiguous_streams" if isinstance(objective, CausalSettings) else "xlnet_streams"
        raise ConfigError(
            f"memory of earlier rows means nothing for shuffled rows ({rows.kind}); set rows to {kind}, or "
            f"{' and '.join(f'objective.{name}' for name in remembered)} to 0"
        )
    if isinstance(objective, CausalSettings) and isinstance(rows, XLNetStreams):
        raise ConfigError("xlnet_streams hold reused and paired text, not a stream; set rows to contiguous_streams")
    if isinstance(rows, ContiguousStreams) and not isinstance(objective, CausalSettings):
        raise ConfigError(
            f"contiguous_streams serve the causal objective, not {objective.kind!r}; set rows to full_sentences"
        )
    if streams and (len({phase.rows for phase in recipe.phases}) > 1 or recipe.ramp is not None):
        raise ConfigError("streams keep one number of rows; give every phase the same rows and no ramp")
    for phase in recipe.phases:
        if isinstance(rows, XLNetStreams) and not 0 < rows.reuse < phase.length - 4:
            raise ConfigError(
                f"rows of {phase.length} tokens cannot reuse {rows.reuse}: a stream advances by what is reused, "
                f"and two texts with three special tokens follow it; set rows.reuse to {phase.length // 2}"
            )
    if isinstance(objective, PermutationSettings):
        reuse = rows.reuse if isinstance(rows, XLNetStreams) else 0
        if reuse != objective.reuse:
            raise ConfigError(
                f"the rows ({rows.kind}) reuse {reuse} tokens and the objective {objective.reuse}, but what is "
                f"remembered is what is reused; set objective.reuse to {reuse}"
            )
        for phase in recipe.phases:
            objective.targets.check(phase.length, reuse)
    if recipe.duplicates is not None and (streams or recipe.duplicates < 1):
        raise ConfigError(
            f"duplicates {recipe.duplicates} repeats shuffled rows and their masks after so many epochs; "
            "give at least 1, and null for streams"
        )


def _check_decoders(recipe: Recipe) -> None:
    for config in filter(None, (recipe.model, recipe.generator)):
        if config.mask_decoder and not isinstance(config.encoder.position, Disentangled):
            raise ConfigError(
                f"the enhanced mask decoder adds absolute positions to an encoder with relative ones, and this one has "
                f"{config.encoder.position.kind}; set mask_decoder to 0, or take a model of family deberta"
            )


def _check_lengths(recipe: Recipe) -> None:
    """Rows must fit the positions of every network."""
    rows = recipe.rows
    beyond = rows.longest - rows.length if isinstance(rows, ContiguousStreams) else 0
    longest = max(phase.length for phase in recipe.phases) + beyond
    for config in filter(None, (recipe.model, recipe.generator)):
        limit = config.encoder.max_length
        if limit is not None and longest > limit:
            raise ConfigError(
                f"rows of {longest} tokens exceed the model's {limit} positions; "
                f"shorten phases.length to {limit - beyond}"
            )
        if 0 < config.mask_decoder < longest:
            raise ConfigError(
                f"rows of {longest} tokens exceed the mask decoder's {config.mask_decoder} positions; "
                f"shorten phases.length to {config.mask_decoder}, or raise model.mask_decoder"
            )
    if rows.length not in (type(rows)().length, *(phase.length for phase in recipe.phases)):
        raise ConfigError(
            f"rows.length {rows.length} has no effect, because each phase sets the length of its rows; "
            "set phases.0.length"
        )


def _any_vocabulary(recipe: Recipe) -> Vocabulary:
    """One of the model's size, for an objective that makes no batches."""
    size = recipe.model.encoder.vocab
    return Vocabulary(size=size, pad=0, mask=1, special=(0, 1), counts=np.ones(size))


def fit(recipe: Recipe, tokenizer: Tokenizer, *, resumed: Path | None = None) -> Recipe:
    """The recipe with the vocabulary size of ``tokenizer``; cut-offs of an adaptive softmax that lie beyond it go.

    A recipe that continues a model takes up what its weights need, such as a larger word table; of a run that is
    ``resumed``, its own record says what that is.

    Raises:
        ConfigError: a table of segments is too short for the rows, or the model to continue has another architecture,
            tokenizer, or no generator.
    """
    check_segments(recipe, tokenizer, model=recipe.model, generator=recipe.generator)

    vocab = tokenizer.vocab_size
    generator = None if recipe.generator is None else resized(recipe.generator, vocab=vocab)
    recipe = replace(recipe, model=resized(recipe.model, vocab=vocab), generator=generator)
    if recipe.init_from is None:
        return recipe
    if resumed is not None:
        known = read_file(resumed / "recipe.json")
        given, other = (known.get(key) and from_dict(ModelConfig, known[key]) for key in ("model", "generator"))
        if given is None:
            return recipe  # another kind of run, which its folder will say
    else:
        source, second = source_of(recipe, tokenizer)
        given, other = source.config, second and second.config
    model = continuing(recipe.model, given, recipe.init_from)
    if recipe.generator is None:
        return replace(recipe, model=model)
    if recipe.fresh_generator or other is None:
        return replace(recipe, model=model, generator=resized(recipe.generator, vocab=model.encoder.vocab))
    return replace(recipe, model=model, generator=continuing(recipe.generator, other, recipe.init_from))


def check_segments(recipe: Recipe, tokenizer: Tokenizer, **networks: ModelConfig | None) -> None:
    """Refuse networks whose table of segments lacks those that the tokenizer's rows have."""
    rows, needed = recipe.rows, 1
    if isinstance(rows, XLNetStreams) or tokenizer.framing == "xlnet" and not isinstance(rows, ContiguousStreams):
        needed = 3  # A, B, and <cls>
    elif isinstance(rows, (SegmentPairs, SentencePairs, ElectraSegments)) and tokenizer.framing == "bert":
        needed = 2
    for name, config in networks.items():
        if config is not None and 0 < config.encoder.types < needed:
            raise ConfigError(
                f"rows ({rows.kind}) with a tokenizer of kind {tokenizer.framing} have {needed} segments, and the "
                f"{name} {config.encoder.types}; set encoder.types of the {name} to {needed}, or build the corpus with "
                "another tokenizer"
            )


def build_objective(recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus, *, resumed: bool = False) -> Objective:
    """The networks of a recipe that was :func:`fit`, under its objective: fresh from the seed or from ``init_from``,
    which a ``resumed`` run does not read again.
    """
    settings, teacher = recipe.objective, None
    if isinstance(settings, DistillSettings):
        if not settings.teacher:
            raise ConfigError("distillation needs a teacher; give a model folder: --set objective.teacher=FOLDER")
        teacher = same_ids(load(settings.teacher), tokenizer, settings.teacher)
        check_segments(recipe, tokenizer, teacher=teacher.config)
    model, generator = _networks(recipe, tokenizer, resumed=resumed)
    return _objective(recipe, model, generator, teacher, Vocabulary.of(tokenizer, corpus.counts()))


def _objective(
    recipe: Recipe, model: Model, generator: Model | None, teacher: Model | None, vocabulary: Vocabulary
) -> Objective:
    settings = recipe.objective
    if isinstance(settings, RTDSettings):
        assert generator is not None
        return RTD(generator, model, settings, vocabulary, continued=recipe.init_from is not None)
    if isinstance(settings, DistillSettings):
        assert teacher is not None
        if recipe.init_from is not None:  # what it brings is not the teacher's to replace
            settings = replace(settings, student_from=())
        return Distill(model, teacher, settings, vocabulary, seed=recipe.seed)
    if isinstance(settings, CausalSettings):
        return Causal(model, settings, vocabulary)
    if isinstance(settings, PermutationSettings):
        return Permutation(model, settings, vocabulary)
    return MLM(model, settings, vocabulary)


def _networks(recipe: Recipe, tokenizer: Tokenizer | None, *, resumed: bool) -> tuple[Model, Model | None]:
    """The model and, for replaced token detection, its generator."""
    model, generator = Model(recipe.model, tokenizer).initialize(recipe.seed), None
    if recipe.generator is not None:
        generator = Model(recipe.generator, tokenizer).initialize(recipe.seed + 1)
    if recipe.init_from is not None and not resumed:
        assert tokenizer is not None
        source, second = source_of(recipe, tokenizer)
        take(model, source, recipe.init_from)
        if generator is not None and second is not None and not recipe.fresh_generator:
            take(generator, second, recipe.init_from)
    return model, generator


def operations(recipe: Recipe, length: int, teacher: ModelConfig | None = None) -> float:
    """Floating-point operations of training per token of full rows of ``length``, by the convention of
    :mod:`encoderlab.models.flops`: all networks, a vocabulary head where tokens are predicted, of a last layer that
    only the predicted tokens need what is computed, and the forward pass of a distillation's ``teacher`` where it is
    given.
    """
    settings = recipe.objective
    if isinstance(settings, CausalSettings):
        return flops.training(recipe.model, length, predicted=1.0, memory=settings.memory)
    if isinstance(settings, PermutationSettings):
        share = settings.targets.count / length
        return flops.training(recipe.model, length, predicted=share, memory=settings.memory)
    rate = settings.masking.rate
    if isinstance(settings, RTDSettings):
        assert recipe.generator is not None
        shares = {"replaced": 0.0, "replaced_masked": 0.0, "original_masked": rate, "original_all": 1.0}
        discriminator = flops.training(recipe.model, length, predicted=shares[settings.predict])
        return discriminator + _masked(recipe.generator, length, rate)
    if isinstance(settings, MLMSettings):
        return _masked(recipe.model, length, rate)
    compared, masked = compared_share(settings), rate if settings.mlm_weight else 0.0
    total = flops.training(recipe.model, length, predicted=compared + masked)  # each has a vocabulary head of its own
    if teacher is not None:
        total += sum(flops.forward(teacher, length, predicted=compared).values())
    return total


def compared_share(settings: ObjectiveSettings) -> float:
    """The share of tokens at which a distillation compares logits with the teacher's; 0 for other objectives."""
    if not isinstance(settings, DistillSettings) or not settings.logits_weight:
        return 0.0
    return 1.0 if settings.at == "real" else settings.masking.rate


def _masked(config: ModelConfig, length: int, rate: float) -> float:
    """Operations per token of training on the masked tokens alone."""
    spared = flops.spared(config, length, predicted=rate)
    return flops.training(config, length, predicted=rate) - (1 + flops.BACKWARD) * spared


# Data ----------------------------------------------------------------------------------------------------------------


def row_framing(tokenizer: Tokenizer) -> Framing:
    """The special tokens that the packers put around text."""
    special = tokenizer.special
    return Framing(kind=tokenizer.framing, cls=special.cls, sep=special.sep, eod=special.eod)


def corpus_data(recipe: Recipe, objective: Objective, path: Path, tokenizer: Tokenizer) -> Data:
    """Batches of the corpus's training split for the loop, and of its validation split."""
    splits = _Splits(recipe, objective, path, row_framing(tokenizer))
    for phase in recipe.phases:
        splits.training(phase, phase.rows, None)  # what the text is too short for is refused now
    if (problem := splits.why_no_validation()) and splits.world.main:
        log.warning("no validation: %s; build the corpus with a larger validation share", problem)
    hashes = {"corpus": file_hash(path / MANIFEST), "tokenizer": tokenizer.hash()}
    if isinstance(objective, Distill):
        hashes["teacher"] = weights_hash(objective.teacher)
    return Data(
        source=splits.training,
        validation=None if problem else splits.validation,
        hashes=hashes,
        bytes_per_token=splits.text.num_bytes / max(splits.text.num_tokens, 1),
        tokenizer=tokenizer,
    )


class _Splits:
    """The training and validation splits of the corpus at ``path``, as batches for an objective."""

    def __init__(self, recipe: Recipe, objective: Objective, path: Path, framing: Framing) -> None:
        self.recipe, self.objective, self.path, self.framing = recipe, objective, path, framing
        self.text, self.held_out = Corpus(path), Corpus(path, split="validation")
        self.world = join(recipe.execution.device)

    def training(self, phase: Phase, rows: int, state: dict[str, int] | None) -> LoaderSource:
        """This process's share of batches of ``rows`` rows, from where ``state`` is, or from the start."""
        loader = Loader(
            self.text,
            self._form(phase),
            framing=self.framing,
            seed=self.recipe.seed,
            batch_rows=rows,
            rank=self.world.rank,
            world=self.world.size,
            state=state,
            transform=partial(self._batch, seed=self.recipe.seed),
            duplicates=self.recipe.duplicates,
        )
        return LoaderSource(loader)

    def validation(self, phase: Phase) -> Iterator[Batch]:
        """The same batches each time, until they hold the rows that an evaluation takes."""
        done = 0
        for batch in self._validation_loader(phase):
            yield batch
            done += len(batch)
            if done >= self.recipe.evaluation.rows:
                return

    def why_no_validation(self) -> str | None:
        """What keeps the validation split from being used, found before the first evaluation rather than by it."""
        split = f"the validation split of {self.path}"
        if self.held_out.num_documents < 2:
            return f"{split} has {self.held_out.num_documents} documents of the 2 that it takes"
        for phase in self.recipe.phases:
            try:
                source = LoaderSource(self._validation_loader(phase))
                next(source)
                source.close()
            except (DataError, StopIteration) as error:
                return f"{split} gives no rows of {phase.length} tokens ({error})"
        return None

    def _validation_loader(self, phase: Phase) -> Loader:
        rows = min(phase.rows, VALIDATION_BATCH)
        while True:
            try:
                return Loader(
                    self.held_out,
                    self._form(phase),
                    framing=self.framing,
                    seed=VALIDATION_SEED,
                    batch_rows=rows,
                    transform=partial(self._batch, seed=VALIDATION_SEED),
                    epochs=1,
                )
            except DataError:
                if not isinstance(self.recipe.rows, StreamFormat) or rows <= 2:
                    raise
                rows = max(2, rows // 4 * 2)  # a short split has fewer streams, in pairs for XLNet

    def _form(self, phase: Phase) -> Format:
        return replace(self.recipe.rows, length=phase.length)

    def _batch(self, rows: list[Row], seed: int) -> Batch:
        batch = self.objective.make_batch(rows, seed=seed)
        return batch.pin() if self.world.device.type == "cuda" else batch  # a copy from other memory waits for the GPU


VALIDATION_BATCH = 32  # rows


def weights_hash(model: Model) -> str:
    """A SHA-256 of all weights, whatever file they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(folders.weights(model).items()):
        digest.update(name.encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class LoaderSource:
    """A :class:`Loader` as the loop wants it: one batch at a time, and the place after the last one given out."""

    def __init__(self, loader: Loader) -> None:
        self.loader, self.batches = loader, iter(loader)

    def __next__(self) -> Batch:
        batch: Batch = next(self.batches)
        return batch

    def state(self) -> dict[str, int]:
        return self.loader.state()

    def close(self) -> None:
        close: Any = getattr(self.batches, "close", None)
        if close is not None:
            close()
