"""A served model: from texts to works, and from batches of works to results. Independent of HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch

from encoderlab import inference
from encoderlab.batches.batch import Batch
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.deploy.serve.texts import Refused
from encoderlab.deploy.serve.why import Explanations
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import read_json
from encoderlab.inference import Pooling, Precision, limit, placed, reading_apart, tokenizer_of
from encoderlab.interchange import checksums
from encoderlab.interchange.finetuned import best_seed
from encoderlab.interchange.hub import PICKLES
from encoderlab.interchange.load import load
from encoderlab.messages import silent
from encoderlab.model import Model
from encoderlab.nn import kernels
from encoderlab.nn.int8 import Int8Weight
from encoderlab.tasks.data.examples import Choice, Question, TaggedWords, Text
from encoderlab.tasks.forms.batching import Item, TaskBatch, pack, to_numpy
from encoderlab.tasks.forms.regression import RegressionForm
from encoderlab.tasks.forms.texts import TextForm
from encoderlab.tasks.runs.apply import check_own_head, predictor_with
from encoderlab.tasks.runs.predict import Predictor

Side = Literal["Left", "Right"]
RESTORE = "restore it, or export the model again"


@dataclass(frozen=True)
class Works:
    """Works of one kind, with their tokens."""

    kind: str
    works: list[Any]
    tokens: list[int]


@dataclass(frozen=True)
class Prompts:
    """What is put before texts, by name; ``default`` names the one of requests without a name."""

    named: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def before(self, name: str | None) -> str:
        """The prompt of a request.

        Raises:
            Refused: the model has none of that name.
        """
        name = self.default if name is None else name
        if name is None:
            return ""
        if name not in self.named:
            known = (
                f"it has {', '.join(self.named)}" if self.named else "it has none; write the prompt before each text"
            )
            raise Refused(f"the model has no prompt called {name!r}: {known}")
        return self.named[name]


class Service:
    """A model with its tokenizer, and how states become the vector of a text.

    ``vectors`` and ``tokens`` need any model, ``masks`` one with an LM head, ``scores`` one with a task head.
    """

    def __init__(
        self,
        model: Model,
        predictor: Predictor | None,
        *,
        name: str,
        pooling: Pooling,
        normalize: bool,
        longest: int | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        self.model, self.predictor, self.name = reading_apart(model).eval(), predictor, name
        self.pooling, self.normalize, self.prompts = pooling, normalize, prompts or Prompts()
        self.tokenizer = tokenizer_of(model)
        most = limit(model) if predictor is None else predictor.form.settings.max_length
        self.longest = most if longest is None else min(most, longest)
        self.device = next(model.parameters()).device
        self.explanations = Explanations(self)
        kernels.keep_memory()

    @classmethod
    def of(cls, folder: Path, *, name: str | None = None, precision: Precision = "fp32") -> Self:
        """The model in a run folder, a model folder, a Hugging Face folder or an exported folder.

        An exported folder, or one of sentence-transformers, defines the pooling, the longest text and the prompts.

        Raises:
            DataError, ConfigError: the model cannot be served.
        """
        place = best_seed(folder, silent)
        kinds = {path.suffix for path in (place.iterdir() if place.is_dir() else [place])}
        if kinds & {*PICKLES} and ".safetensors" not in kinds:
            raise ConfigError(
                f"{place}: its weights are in a pickle, and a server reads safetensors alone; run: encoderlab convert "
                f"{place} OUT"
            )
        check_own_head(place)
        model = placed(reading_apart(load(place)), precision)
        predictor = None if model.task is None else predictor_with(model, place)
        pooling, normalize = pooling_of(place)
        return cls(
            model,
            predictor,
            name=name or folder.resolve().name,
            pooling=pooling,
            normalize=normalize,
            longest=longest_of(place, tokenizer_of(model)) if predictor is None else None,
            prompts=prompts_of(place) if predictor is None else None,
        )

    @property
    def in_int8(self) -> bool:
        """Whether the matrices of the model's layers have 8 bits."""
        return any(isinstance(part, Int8Weight) for part in self.model.modules())

    @property
    def form(self) -> str | None:
        """The form of the task that the model was fine-tuned for."""
        return None if self.predictor is None else self.predictor.form.task.form

    @property
    def columns(self) -> str | None:
        """The content of an example of that form (:attr:`encoderlab.tasks.forms.base.Form.columns`)."""
        return None if self.predictor is None else self.predictor.form.columns

    @property
    def ranks(self) -> bool:
        """Whether the model gives one number for two texts, or chooses between options."""
        return self.columns == "options" or (
            self.predictor is not None and isinstance(self.predictor.form, RegressionForm)
        )

    @property
    def labels(self) -> tuple[str, ...]:
        return self.model.config.labels

    @property
    def fills_masks(self) -> bool:
        return self.predictor is None and inference.fills_masks(self.model)

    @property
    def gives_vectors(self) -> bool:
        return self.predictor is None

    # Works

    def texts(
        self,
        kind: Literal["vectors", "tokens"],
        texts: Sequence[str | Sequence[int]],
        *,
        truncate: bool,
        side: Side,
        prompt: str = "",
    ) -> Works:
        """Framed texts, or ids of the model's own vocabulary, which are framed unless they already are. ``prompt`` is
        put before each text.

        Raises:
            Refused: one is too long and must not be cut, or an id is outside the vocabulary.
        """
        encoded = iter(self.tokenizer.encode_batch([prompt + text for text in texts if isinstance(text, str)]))
        room = self.tokenizer.spans(self.longest, max_length=self.longest).a
        framed = []
        for number, text in enumerate(texts):
            ids = next(encoded).ids if isinstance(text, str) else self._ids(text)
            if len(ids) > room and not truncate:
                raise Refused(
                    f"`inputs` must have at most {room} tokens. Given: {len(ids)} in text {number}; shorten it or set "
                    "truncate"
                )
            framed.append(self.tokenizer.frame(ids[-room:] if side == "Left" else ids, max_length=self.longest))
        return Works(kind, framed, [len(ids) for ids, _ in framed])

    def _ids(self, ids: Sequence[int]) -> np.ndarray:
        wrong = [index for index in ids if not 0 <= index < self.tokenizer.vocab_size]
        if wrong:
            raise Refused(f"token id {wrong[0]} is outside the vocabulary of {self.tokenizer.vocab_size} tokens")
        special = self.tokenizer.special
        return np.array([index for index in ids if index not in (special.cls, special.sep)], np.int64)

    def items(self, examples: Sequence[Any]) -> tuple[Works, list[Item]]:
        """The sequences of examples of the model's form."""
        assert self.predictor is not None
        items = self.predictor.form.items(examples)
        return Works("scores", list(items), [len(item) for item in items]), items

    def check_lengths(self, pairs: Sequence[Sequence[str]]) -> None:
        """
        Raises:
            Refused: a text (or a pair) is too long for the model, even in windows if it was trained with them.
        """
        assert self.predictor is not None and isinstance(self.predictor.form, TextForm)
        for texts in pairs:
            sizes = [len(encoding) for encoding in self.tokenizer.encode_batch(list(texts))]
            if sum(sizes) > (most := self.predictor.form.most(sizes)):
                raise Refused(
                    f"`inputs` must have at most {most} tokens. Given: {sum(sizes)}; shorten them or set truncate"
                )

    # Computing, in the one thread

    @torch.inference_mode()
    def compute(self, kind: str, works: Sequence[Any]) -> list[Any]:
        """The results of works of one kind: a vector (D,), states (n, D), guesses, the scores of an item, or an
        explanation."""
        if kind == "explain":
            with torch.inference_mode(False):
                return [self._refusing(self.explanations, asked) for asked in works]
        if kind == "scores":
            return self._scores(works)
        if kind == "masks":
            return [self._refusing(self._filled, *work) for work in works]
        results: list[Any] = [None] * len(works)
        for batch in inference.batches(self.tokenizer, works, sum(len(ids) for ids, _ in works) * len(works)):
            batch = batch.to(self.device)
            last = self._states(batch)
            real = batch.doc >= 0
            assert batch.on_host.rows is not None
            rows = batch.on_host.rows.tolist()
            if kind == "tokens":
                for row, states, of_row in zip(rows, last, real, strict=True):
                    results[row] = states[of_row].cpu().numpy()
            else:
                for row, vector in zip(rows, inference.pooled(last, real, self.pooling).cpu().numpy(), strict=True):
                    results[row] = vector
        return results

    def _refusing(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a function, or the refusal that it raises, so that results of other requests are not lost."""
        try:
            return make(*arguments)
        except (Refused, ConfigError) as refused:
            return Refused(str(refused))

    def _filled(self, text: str, top: int, targets: Sequence[str] | None) -> Any:
        return inference.fill_mask(self.model, text, top=top, targets=targets)

    def _states(self, batch: Batch) -> torch.Tensor:
        """The last layer's states, (B, L, D) float32."""
        return self.model.encoder(batch.ids, doc=batch.documents, segments=batch.segments).last.float()

    def _scores(self, items: Sequence[Item]) -> list[Any]:
        """The head's scores as they are; a request says what to make of them."""
        assert self.predictor is not None
        predictor, form = self.predictor, self.predictor.form
        batch = pack(items, pad=self.tokenizer.special.pad, room=form.settings.max_length, mode="dynamic")
        moved = batch.to(self.device)
        assert isinstance(moved, TaskBatch)
        states = predictor.objective.states(moved)
        if isinstance(form, TextForm):
            return list(to_numpy(form.all_scores(predictor.model, states, moved, None)))
        return form.outputs(predictor.model, states, moved)

    def warm_up(self) -> None:
        """Compute the shortest and the longest batch, so that memory is allocated and kernels are compiled."""
        for text, count in (("a", 1), ("a " * self.longest, 2)):
            if self.gives_vectors:
                works = self.texts("vectors", [text] * count, truncate=True, side="Right")
                self.compute(works.kind, works.works)
            elif self.predictor is not None:
                works, _ = self.items(self._examples(text, count))
                self.compute(works.kind, works.works)
        if self.fills_masks:
            mask = self.tokenizer.token(self.tokenizer.special.mask)
            self.compute("masks", [(f"{mask} a", 1, None)])

    def _examples(self, text: str, count: int) -> list[Any]:
        """Examples of the model's form."""
        assert self.predictor is not None
        if self.columns == "texts":
            pair = text if getattr(self.predictor.form.settings, "pairs", None) else None
            return [Text(id="", text=text, pair=pair)] * count
        if self.columns == "words":
            return [TaggedWords(id="", words=tuple(text.split()))] * count
        if self.columns == "options":
            return [Choice(id="", question="a", options=(text,) * count)]
        return [Question(id="", question="a", passage=text)]


def pooling_of(folder: Path) -> tuple[Pooling, bool]:
    """The pooling for the model in a folder, and whether vectors are scaled to length 1.

    Read from sentence-transformers' files if they exist, otherwise the mean, normalised.

    Raises:
        ConfigError: a pooling or module that is not implemented.
        DataError: a file of them is damaged or missing.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return "mean", True
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
        if not modules:
            raise ValueError
        place = next((module["path"] for module, kind in zip(modules, kinds, strict=True) if kind == "Pooling"), None)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path}: is damaged; restore it, or export the model again") from None
    if strange := set(kinds) - {"Transformer", "Pooling", "Normalize"}:
        raise ConfigError(f"{path}: module {sorted(strange)[0]} is not implemented; export the model without it")
    if place is None:
        return "mean", "Normalize" in kinds
    checksums.verify_file(folder, f"{place}/config.json")
    data = read_json(folder / str(place) / "config.json", RESTORE)
    if data.get("include_prompt") is False and any(prompts_of(folder).named.values()):
        raise ConfigError(
            f"{folder / place}: include_prompt false is not implemented; use a model that pools prompts too"
        )
    modes = {
        name.removeprefix("pooling_mode_")
        for name, value in data.items()
        if name.startswith("pooling_mode_") and value is True
    }
    known: dict[str, Pooling] = {"mean_tokens": "mean", "cls_token": "first", "lasttoken": "last"}
    newer: dict[str, Pooling] = {"mean": "mean", "cls": "first", "lasttoken": "last"}
    pooling = newer.get(str(data.get("pooling_mode"))) or (known.get(next(iter(modes))) if len(modes) == 1 else None)
    if pooling is None:
        found = data.get("pooling_mode") or ", ".join(sorted(modes)) or "none"
        raise ConfigError(f"{folder / place}: pooling {found} is not implemented; use mean, cls or lasttoken")
    return pooling, "Normalize" in kinds


def prompts_of(folder: Path) -> Prompts:
    """The prompts in sentence-transformers' files; without any, the model has none.

    Raises:
        DataError: they are no texts, or the one for every text is not among them.
    """
    path = folder / "config_sentence_transformers.json"
    if not path.is_file():
        return Prompts()
    data = read_json(path, RESTORE)
    named, default = data.get("prompts") or {}, data.get("default_prompt_name")
    if not isinstance(named, dict) or not all(isinstance(text, str) for text in named.values()):
        raise DataError(f"{path}: prompts is {named!r:.80}, expected texts by name; correct it")
    if default is not None and default not in named:
        raise DataError(f"{path}: default_prompt_name is {default!r}, expected one of {[*named]}; correct it")
    return Prompts(named, default)


def longest_of(folder: Path, tokenizer: Tokenizer) -> int | None:
    """The longest text in tokens by sentence-transformers' files, special tokens included; None if they name none.

    Raises:
        DataError: one of them is damaged.
        ConfigError: they ask for lower case, and the tokenizer distinguishes it.
    """
    for path in sorted(folder.glob("sentence_*_config.json")):  # of a family, in old folders
        data = read_json(path, RESTORE)
        if data.get("do_lower_case") and list(tokenizer.encode("The").ids) != list(tokenizer.encode("the").ids):
            raise ConfigError(
                f"{path}: do_lower_case is not implemented for a tokenizer that distinguishes case; set it to false, "
                "and send texts in lower case"
            )
        longest = data.get("max_seq_length")
        if longest is not None and (type(longest) is not int or longest < 2):
            raise DataError(f"{path}: max_seq_length {longest!r}, expected a number of tokens from 2; correct it")
        return longest
    return None
