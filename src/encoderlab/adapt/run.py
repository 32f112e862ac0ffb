"""The stages of an adaptation, in a folder: each is done once, so the same command continues after an interruption.

=============  ======================================================================================================
``plan.json``  the settings; others are refused
``text/``      training and held-out documents, of the domain and of general text
``start/``     the model before training, with the chosen vocabulary
``corpus/``    domain and replayed text in that vocabulary
``run/``       pretraining, which resumes bit for bit
``model/``     the result
``stages/``    the results, a file per stage, with hashes of itself and of the files that the stage made
=============  ======================================================================================================

A stage whose files are damaged is named and done again; the model is then taken from the run again. Results of other
text are refused.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoderlab.adapt import measure
from encoderlab.adapt.recipe import for_passes, recipe_of
from encoderlab.adapt.text import SourceText, TextAmount, choose, chosen, read, split
from encoderlab.adapt.vocabulary import extend, family_of, retrain, rows, transplant
from encoderlab.batches.loader import Loader
from encoderlab.batches.streams import StreamFormat
from encoderlab.config import Bounded, Count, Positive, Rate, override, to_dict
from encoderlab.corpus.assemble import Selection
from encoderlab.corpus.build import BuildSettings, GivenTokenizer, build_corpus
from encoderlab.corpus.chunks import batched
from encoderlab.corpus.sealed import ORIGIN
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import read_json, sha256, write_json
from encoderlab.inference import tokenizer_of
from encoderlab.interchange import checksums
from encoderlab.interchange import folder as folders
from encoderlab.interchange.load import load_pair, model_folder
from encoderlab.interchange.places import commits, pin, resolve
from encoderlab.measure.pairs.reading import find
from encoderlab.measure.runs import read_run
from encoderlab.messages import Progress, Say
from encoderlab.model import Model, count_parameters
from encoderlab.objectives.distill import DistillSettings
from encoderlab.sealed import Damaged, digest, read_record, write_record
from encoderlab.train.checkpoint import STATE, put_aside
from encoderlab.train.checks import check
from encoderlab.train.corpus_data import row_framing
from encoderlab.train.distributed import join
from encoderlab.train.networks import bare_objective, fit
from encoderlab.train.optim import group_parameters
from encoderlab.train.pretraining import models_at, pretrain
from encoderlab.train.recipe import Recipe

log = logging.getLogger(__name__)

PLAN, RESULT = "plan.json", "adapt.json"
MOST_UNKNOWN = 0.05  # share of the domain's tokens; the model cannot learn unknown ones
FEWEST_BYTES = 1.5  # bytes per token, for byte-level vocabularies, in which nothing is unknown
VALIDATION = 0.02  # of the corpus, for stopping
SAMPLE = 8_000_000  # characters to train a vocabulary on
MOST_TOKENS = 1e12  # of any text
BATCH = 1 << 20  # characters that are tokenized at a time


@dataclass(frozen=True, kw_only=True)
class AdaptationPlan(Bounded):
    """The settings of an adaptation.

    Args:
        model: a folder or a name.
        text: files, folders, ``python:all``, or a built corpus.
        replay: general text of the same kinds; some is held out to measure what is forgotten.
        replay_share: its share of the training characters.
        vocabulary: ``keep``, ``extend:N`` or ``new``.
        passes: over the text, at most.
        pairs: minimal pairs to score.
        task: a labelled file to fine-tune on, before and after.
        seeds: number of seeds for the task.
        fields: of the recipe, by path.
    """

    model: str
    text: tuple[str, ...]
    replay: tuple[str, ...] = ()
    replay_share: Rate = 0.1
    vocabulary: str = "keep"
    passes: Positive = 3.0
    pairs: tuple[str, ...] = ()
    task: str | None = None
    seeds: Count = 3
    seed: int = 1
    fields: Mapping[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.added  # noqa: B018 (refused now if it cannot be read)

    @cached_property
    def added(self) -> int:
        """Number of words added to the vocabulary."""
        match = re.fullmatch(r"extend:([0-9]{1,9})", self.vocabulary)
        if match is not None and int(match[1]) > 0:
            return int(match[1])
        if self.vocabulary in ("keep", "new"):
            return 0
        raise ConfigError(f"--vocabulary {self.vocabulary!r}; give keep, new, or extend:2000")


class Adaptation:
    """An adaptation in the folder ``out``; all checks are made when it is created.

    ``copy_settings`` copies what a model folder says of the vectors of texts into another one.

    Raises:
        ConfigError, DataError: the model, its vocabulary, the text or the folder do not fit together.
    """

    def __init__(
        self, plan: AdaptationPlan, out: Path, say: Say, progress: Progress, copy_settings: Callable[[Path, Path], None]
    ) -> None:
        self.out, self.say, self.progress, self.copy_settings = out, say, progress, copy_settings
        self.named: dict[str, str] = {}  # the commits of the names of models that were given so far
        self.plan = plan = self._claim(plan)
        self.origin = digest(to_dict(plan))  # of everything made from here on
        self.place = self._given()
        self.model, self.generator = load_pair(self.place)
        self.tokenizer = tokenizer_of(self.model)
        self.texts: dict[str, SourceText] = {}  # of the domain, and general text if some is replayed
        self.taken: dict[str, np.ndarray] = {}  # how many characters of each document are trained on
        self.new: Tokenizer | None = None  # the changed vocabulary, if it was made for the checks
        self.warmup = 0.0  # of the recipe: steps, or below 1 a share of the budget
        self.written = False  # whether the text of the stage is there
        self._check()

    def _check(self) -> None:
        """Refuse everything that can be refused, before any work and before anything is written."""
        plan = self.plan
        recipe_of(self.model, self.generator, tokens=1, passes=1, seed=1)
        if plan.added and self.tokenizer.kind != "wordpiece":
            extend(self.tokenizer, (), 1)
        if plan.vocabulary == "new":
            family_of(self.tokenizer, self.model.config.family)
        if plan.vocabulary != "keep" and self.model.config.encoder.adaptive is not None:
            raise ConfigError("the words of an adaptive softmax are ordered by frequency; keep the model's vocabulary")
        if plan.pairs:
            measure.check_pairs(self.model, self.generator, [Path(place) for place in plan.pairs])
        if plan.task is not None:
            if not Path(plan.task).is_file():
                raise ConfigError(f"--task {plan.task}: no such file; give labelled texts")
            measure.labelled(Path(plan.task))
        self._check_recipe()
        self.texts["domain"] = text = SourceText(plan.text)
        text.check()
        self.taken["domain"] = choose(text.lots)
        self._check_readable(text)
        if plan.replay:
            self.texts["general"] = text = SourceText(plan.replay)
            text.check_general(replayed=bool(plan.replay_share))
            self.taken["general"] = choose(text.lots, self._wanted)
        for text in self.texts.values():
            self._say_invalid(text)
        if not self._record("text").exists():  # else an earlier session has checked the rest
            self.new = None if plan.vocabulary == "keep" else self._vocabulary()
            self._check_warmup()

    def _say_invalid(self, text: SourceText) -> None:
        """Report characters that were not UTF-8: the model would learn U+FFFD in their place."""
        if number := text.invalid.total():
            files = ", ".join(f"{name} ({count:,})" for name, count in text.invalid.most_common(5))
            more = f" and {len(text.invalid) - 5:,} more files" if len(text.invalid) > 5 else ""
            self.say(
                f"{number:,} characters were not valid UTF-8 and became U+FFFD, in {files}{more}; convert the file "
                "with iconv"
            )

    def _check_recipe(self) -> None:
        """Refuse fields that cannot work with the model, whatever the text."""
        if "init_from" in self.plan.fields:
            raise ConfigError("an adaptation starts from MODEL; leave init_from out")
        recipe = replace(self._recipe(self.model, self.generator, MOST_TOKENS), init_from=str(self.place))
        self.warmup = recipe.schedule.warmup
        if recipe.evaluation.pairs is not None:
            raise ConfigError("evaluation.pairs is not measured in an adaptation; give --pairs instead")
        check(recipe)
        join(recipe.execution.device)
        if not isinstance(recipe.objective, DistillSettings):  # its teacher is read in the training
            with torch.device("meta"):
                group_parameters(bare_objective(recipe), recipe.optim)
        if (self.out / "run" / "checkpoints").exists():
            return
        fit(recipe, self.tokenizer)

    def _check_warmup(self) -> None:
        """Refuse a warm-up of more steps than the text has."""
        if self.warmup < 1:  # a share
            return
        tokenizer, tokens = self.new or self.tokenizer, 0
        for kind in self.texts:
            for texts in batched(self._training(kind), BATCH):
                tokens += len(tokenizer.encode_corpus(texts).ids)
        self._recipe(self.model, self.generator, tokens)

    @property
    def _wanted(self) -> float:
        """The characters of general text to replay."""
        taken, share = self.taken["domain"], self.plan.replay_share
        return float(taken[taken > 0].sum()) * share / (1 - share)

    def _claim(self, plan: AdaptationPlan) -> AdaptationPlan:
        """The plan with the commit of a model of the Hub; the folder belongs to this plan from now on.

        Raises:
            ConfigError: the folder has another plan, or other files.
        """
        path = self.out / PLAN
        known = None
        try:
            known = read_record(path) if path.exists() else None
        except Damaged as error:
            self.say(f"{error}; the stages are compared with the settings given")
        if known is None:
            strangers = sorted(one.name for one in self.out.iterdir() if not one.name.startswith("."))
            if strangers and not self._record("text").exists():
                raise ConfigError(
                    f"{self.out}: is not empty and has no adaptation (found {strangers[0]!r}); choose another --out"
                )
            return replace(plan, model=pin(plan.model, self.out))
        self.named = known.get("models", {})
        repository, _, commit = known["plan"]["model"].rpartition("@")
        if repository and (plan.model == repository or self.named.get(plan.model) == commit):
            plan = replace(plan, model=known["plan"]["model"])
        asked = to_dict(plan)
        if changed := [name for name in asked if asked[name] != known["plan"].get(name)]:
            name = changed[0]
            raise ConfigError(
                f"{self.out}: has another adaptation ({name} was {known['plan'].get(name)!r}, now {asked[name]!r}); "
                "choose another --out, or give the same settings to resume"
            )
        return plan

    def _given(self) -> str:
        """The place of the model to adapt: its copy, once there is one."""
        kept = self.out / "given"
        if whole(kept):
            return str(kept)
        if kept.exists() and {path.name for path in kept.iterdir()} - {"generator"}:  # killed before the discriminator
            raise DataError(f"{kept}: its config.json is missing or damaged; restore it, or choose another --out")
        return self.plan.model

    def _check_readable(self, text: SourceText) -> None:
        """Refuse text in a script that the vocabulary does not cover.

        Raises:
            DataError: too many unknown tokens, or tokens of hardly more than one byte.
        """
        if self.plan.vocabulary == "new":
            return
        tokens = self.tokenizer.encode_corpus(text.sample)
        unknown = float((tokens.ids == self.tokenizer.special.unk).mean())
        size = sum(len(document.encode()) for document in text.sample) / max(len(tokens.ids), 1)
        if unknown > MOST_UNKNOWN or size < FEWEST_BYTES:
            many = f"{unknown:.1%} of its tokens are unknown to"
            what = many if unknown > MOST_UNKNOWN else f"its tokens have {size:.1f} bytes in"
            raise DataError(
                f"{text.name}: {what} the model's vocabulary, so it is in another script or kind of text; give "
                "--vocabulary new, or a model of its language"
            )
        if unknown > 0.001:
            self.say(f"{unknown:.2%} of the text's tokens are unknown to the vocabulary")

    # Stages

    def _record(self, name: str) -> Path:
        return self.out / "stages" / f"{name}.json"

    def stage(self, name: str, make: Callable[[], dict[str, Any]], *files: Path) -> dict[str, Any]:
        """The results of the stage ``name``: read if it is done, else computed and stored with the hashes of its
        ``files``.

        Raises:
            ConfigError: it was done with other settings or other text.
        """
        if (known := self._known(name)) is not None:
            return known
        self.say(f"stage: {name.replace('-', ' ')}")
        begin = time.perf_counter()
        result = make()
        result["seconds"] = time.perf_counter() - begin
        kept = {str(file.relative_to(self.out)): sha256(file) for file in files}
        write_record(self._record(name), {ORIGIN: self.origin, "files": kept, "found": result})
        return result

    def _known(self, name: str) -> dict[str, Any] | None:
        """The stored results of the stage; None if it must be done, or done again."""
        path = self._record(name)
        try:
            record = read_record(path)
            for file, expected in record["files"].items():
                if not (self.out / file).is_file():
                    raise Damaged(self.out / file, "missing")
                if sha256(self.out / file) != expected:
                    raise Damaged(self.out / file, "damaged (its checksum differs)")
        except FileNotFoundError:
            if (self.out / RESULT).exists():
                self.say(f"{path}: missing; the stage {name} is done again")
            return None
        except Damaged as error:
            self.say(f"{error}; the stage {name} is done again")
            return None
        if record[ORIGIN] != self.origin:
            raise ConfigError(f"{path}: was made with other settings or other text; choose another --out")
        return record["found"]  # type: ignore[no-any-return]

    def run(self) -> dict[str, Any]:
        """All stages; returns the content of ``adapt.json``.

        Raises:
            Stopped: a signal came during training; the same command continues.
        """
        plan = self.plan
        write_record(self.out / PLAN, {"plan": to_dict(plan), "models": self.named | commits()})
        if not whole(self.out / "given"):
            save(self.model, self.generator, self.out / "given", self._settings_of(self.place))
        texts = [self._place(f"{kind}{part}") for kind in self.texts for part in ("", "-held-out")]
        record: dict[str, Any] = {"text": self.stage("text", self._split, *texts)}
        self.written = True
        self.origin = digest([self.origin, [sha256(text) for text in texts]])
        record["vocabulary"] = self.stage("vocabulary", self._start)
        self.stage("corpus", self._build)
        record["before"] = self.measure("before", lambda: (self.model, self.generator))
        record["training"] = self.stage("training", self._train)
        self._take()
        record["after"] = self.measure("after", lambda: load_pair(self.out / "model"))
        record["gains"] = {kind: measure.gain(record["before"][kind], record["after"][kind]) for kind in self.texts}
        record["plan"] = to_dict(plan)
        record["parameters"] = count_parameters(load_pair(self.out / "model")[0].config)["total"]
        write_json(self.out / RESULT, record)
        return record

    def _place(self, name: str) -> Path:
        return self.out / "text" / f"{name}.jsonl"

    def _split(self) -> dict[str, Any]:
        counts: dict[str, TextAmount] = {}
        for kind, text in self.texts.items():
            amounts = split(text, self.taken[kind], self._place(kind), self._place(f"{kind}-held-out"))
            counts[kind], counts[f"{kind} held out"] = amounts
        if "general" in counts and counts["general"].characters < 0.9 * self._wanted:
            replayed = counts["general"].characters
            self.say(f"general text is short: {replayed:,} characters are replayed, not {self._wanted:,.0f}")
        return to_dict(counts)

    def _training(self, kind: str) -> Iterable[str]:
        """The documents to train on: as they were written, or will be."""
        return read(self._place(kind)) if self.written else chosen(self.texts[kind], self.taken[kind])

    def _texts(self) -> list[str]:
        """Domain and general text to train a vocabulary on, at most :data:`SAMPLE` characters."""
        texts, taken = [], 0
        for text in itertools.chain.from_iterable(map(self._training, self.texts)):
            texts.append(text)
            taken += len(text)
            if taken > SAMPLE:
                break
        return texts

    def _vocabulary(self) -> Tokenizer:
        """The changed vocabulary.

        Raises:
            ConfigError, DataError: the text is too little for one.
        """
        old = self.tokenizer
        if self.plan.added:
            new = extend(old, self._training("domain"), self.plan.added)
            if (added := new.vocab_size - old.vocab_size) < self.plan.added:
                self.say(f"the text has {added:,} frequent words that the vocabulary lacks, not {self.plan.added:,}")
            return new
        new = retrain(old, self._texts(), self.model.config.family)
        if new.vocab_size < old.vocab_size:
            self.say(f"the text supports a vocabulary of {new.vocab_size:,} tokens, fewer than {old.vocab_size:,}")
        return new

    def _start(self) -> dict[str, Any]:
        """The model with the chosen vocabulary."""
        plan, old, new = self.plan, self.tokenizer, self.tokenizer
        model, generator = self.model, self.generator
        facts: dict[str, Any] = {"kind": plan.vocabulary, "tokens": [old.vocab_size]}
        if plan.vocabulary != "keep":
            new = self.new or self._vocabulary()
            made = rows(old, new, self._texts(), neighbours=not plan.added)
            model = transplant(model, new, made)
            generator = None if generator is None else transplant(generator, new, made)
            facts |= {"kept": made.kept, "neighbours": made.neighbours, "pieces": made.pieces}
            if plan.added:
                facts["words"] = list(new.tokens[old.vocab_size : old.vocab_size + 30])
        facts["tokens"].append(new.vocab_size)
        save(model, generator, self.out / "start")
        return facts

    def _build(self) -> dict[str, Any]:
        """The training corpus."""
        kinds = self.texts if self.plan.replay_share else ("domain",)
        start, _ = load_pair(self.out / "start")
        place = self.out / "tokenizer"
        tokenizer_of(start).save(place)
        build_corpus(
            BuildSettings(
                sources=tuple(str(self._place(kind)) for kind in kinds),
                tokenizer=GivenTokenizer(path=str(place), family=None, lowercase=None),
                selection=Selection(validation=VALIDATION),
            ),
            self.out / "corpus",
            progress=self.progress,
        )
        if self.warmup >= 1:  # some documents may not have joined the corpus
            self.recipe()
        return {"tokens": Corpus(self.out / "corpus").num_tokens}

    def recipe(self) -> Recipe:
        """The recipe of the training, with the fields that the user set."""
        model, generator = load_pair(self.out / "start")
        corpus = Corpus(self.out / "corpus")
        recipe = self._recipe(model, generator, corpus.num_tokens)
        if not any(name.startswith("evaluation.") for name in self.plan.fields) and not self._validates(recipe):
            recipe = replace(recipe, evaluation=replace(recipe.evaluation, best=None, patience=None))
        return replace(recipe, init_from=str((self.out / "start").resolve()))

    def _validates(self, recipe: Recipe) -> bool:
        """Whether the held-out part of the corpus has a window of text, if rows follow each other in streams."""
        if not isinstance(recipe.format, StreamFormat):
            return True
        held_out = Corpus(self.out / "corpus", "validation")
        framing = row_framing(held_out.tokenizer())
        try:
            for phase in recipe.phases:
                Loader(held_out, recipe.format, phase.length, framing=framing, seed=1, batch_rows=2, epochs=1)
        except DataError:
            return False
        return True

    def _recipe(self, model: Model, generator: Model | None, tokens: float) -> Recipe:
        fields, passes = self.plan.fields, self.plan.passes
        recipe = recipe_of(model, generator, tokens=tokens, passes=passes, seed=self.plan.seed)
        if phases := {name: value for name, value in fields.items() if name.partition(".")[0] == "phases"}:
            recipe = for_passes(override(recipe, phases, where="--set"), tokens, passes)
        return override(recipe, fields, where="--set") if fields else recipe

    def _train(self) -> dict[str, Any]:
        recipe, corpus = self.recipe(), self.out / "corpus"
        check(recipe)
        if recipe.evaluation.best is None and "evaluation.best" not in self.plan.fields:
            self.say(f"the text is too short to validate on: training takes all {recipe.budget.amount:,.0f} steps")
        if not (self.out / "run" / "checkpoints").exists():
            fit(recipe, Corpus(corpus).tokenizer())
        outcome = pretrain(recipe, corpus, self.out / "run")
        record = read_run(self.out / "run")
        held = [(line["step"], line["loss"]) for line in record.valid]
        last = record.train[-1] if record.train else {}
        return {
            "steps": outcome.step,
            "planned": recipe.budget.amount,
            "tokens": outcome.tokens,
            "flops": last.get("flops"),
            "training_seconds": outcome.seconds,
            "held": held,
            "best": read_json(outcome.best / STATE)["step"] if outcome.best else outcome.step,
            "objective": recipe.objective.kind,
            "recipe": to_dict(recipe),
        }

    def _take(self) -> None:
        """Take the model from the run, unless it is there and intact."""
        folder = self.out / "model"
        pair = (folder / "discriminator").exists()
        if folder.exists():
            try:
                for part in [folder / "generator", folder / "discriminator"] if pair else [folder]:
                    if not folders.is_ours(part):
                        raise DataError(f"{part / 'config.json'}: missing or damaged")
                    checksums.verify(part, subfolders=True)
                return
            except DataError as error:
                self.say(f"{str(error).partition(';')[0]}; the model is taken from the run again")
        outcome = pretrain(self.recipe(), self.out / "corpus", self.out / "run")
        models = models_at(outcome.best or outcome.checkpoint)
        if folder.exists():
            put_aside(folder)
        settings = self._settings_of(self.out / "given")
        save(models.get("model") or models["discriminator"], models.get("generator"), folder, settings)

    def _settings_of(self, place: str | Path) -> Callable[[Path], None]:
        """A function that copies the settings of the vectors of the model at ``place`` into a folder."""
        return partial(self.copy_settings, model_folder(resolve(place)))

    def measure(self, when: str, models: Callable[[], tuple[Model, Model | None]]) -> dict[str, Any]:
        """All measures of the model before or after."""
        measured: dict[str, Any] = {}
        for kind in self.texts:
            texts = measure.pieces(read(self._place(f"{kind}-held-out")))
            measured[kind] = self.stage(f"{kind}-{when}", lambda texts=texts: measure.bits(*models(), texts))  # type: ignore[misc]
        if self.plan.pairs:
            places = [Path(place) for place in self.plan.pairs]
            measured["pairs"] = self._measured_on(
                find(places), f"pairs-{when}", lambda: measure.pairs(*models(), places)
            )
        if self.plan.task is not None:
            path = Path(self.plan.task)
            measured["task"] = self._measured_on(
                [path],
                f"task-{when}",
                lambda: measure.task(models()[0], path, self.out / "tasks" / when, self.plan.seeds),
            )
        return measured

    def _measured_on(self, files: Sequence[Path], name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A stage that measures on files which the user may change before the next session.

        Raises:
            ConfigError: it was measured on other content, which has nothing to be compared with.
        """
        data = digest([sha256(file) for file in files])
        result = self.stage(name, lambda: {**make(), "data": data})
        if result.pop("data", data) != data:  # earlier versions did not store it
            raise ConfigError(
                f"{self._record(name)}: was measured on other content of {', '.join(map(str, files[:3]))}; restore "
                "what it was, or choose another --out"
            )
        return result


def save(model: Model, generator: Model | None, folder: Path, also: Callable[[Path], None] | None = None) -> None:
    """Write a model, or a discriminator with its generator, as :func:`load_pair` reads it; ``also`` writes further
    files next to the model.
    """
    if generator is None:
        folders.save(model, folder, also=also)
        return
    generator.tokenizer = generator.tokenizer or model.tokenizer
    folders.save(generator, folder / "generator")
    folders.save(model, folder / "discriminator", also=also)


def whole(folder: Path) -> bool:
    """Whether :func:`save` was completed."""
    return folders.is_ours(folder) or folders.is_ours(folder / "discriminator")
