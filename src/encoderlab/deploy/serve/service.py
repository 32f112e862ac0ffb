"""A served model: from texts to works, and from batches of works to results. Independent of HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch

from encoderlab import inference
from encoderlab.batches.batch import Batch
from encoderlab.deploy.sentence_transformers import Prompts, check_case, longest_of, pooling_of, prompts_of
from encoderlab.deploy.serve.texts import Refused
from encoderlab.deploy.serve.why import Explanations
from encoderlab.errors import ConfigError
from encoderlab.inference import Pooling, Precision, limit, placed, reading_apart, tokenizer_of
from encoderlab.interchange.finetuned import best_seed
from encoderlab.interchange.hub import PICKLES
from encoderlab.interchange.load import load, model_folder
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


@dataclass(frozen=True)
class Works:
    """Works of one kind, with their tokens."""

    kind: str
    works: list[Any]
    tokens: list[int]


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
        own = model_folder(place)
        pooling, normalize = pooling_of(own)
        if predictor is None:
            check_case(own, tokenizer_of(model))
        return cls(
            model,
            predictor,
            name=name or folder.resolve().name,
            pooling=pooling,
            normalize=normalize,
            longest=longest_of(own) if predictor is None else None,
            prompts=prompts_of(own) if predictor is None else None,
        )

    @property
    def in_int8(self) -> bool:
        """Whether the matrices of the model's layers have 8 bits."""
        return any(isinstance(part, Int8Weight) for part in self.model.modules())

    @property
    def form(self) -> str | None:
        """The form of the task that the model was fine-tuned for; None without fine-tuning."""
        return None if self.predictor is None else self.predictor.form.task.form

    @property
    def columns(self) -> str | None:
        """The content of an example of that form (:attr:`encoderlab.tasks.forms.base.Form.columns`), or None."""
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
    def mask(self) -> str:
        """The token that stands for a masked word."""
        return self.tokenizer.token(self.tokenizer.special.mask)

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
            Refused: one is too long and must not be cut, an id is outside the vocabulary, or a prompt stands before
                ids.
        """
        if prompt and not all(isinstance(text, str) for text in texts):
            raise Refused("the model's prompt stands before texts, not before token ids; send texts")
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
        """The sequences of examples of the model's form; those of options are works of their own, so that a request of
        many options is many batches."""
        assert self.predictor is not None
        items = works = self.predictor.form.items(examples)
        if self.columns == "options":
            works = [Item(item.example, (option,)) for item in items for option in item.sequences]
        return Works("scores", list(works), [len(work) for work in works]), items

    def cut(self, texts: Sequence[str], tokens: int) -> list[str]:
        """The first tokens of each text."""
        encoded = self.tokenizer.encode_batch(list(texts), limit=tokens)
        return [
            text if len(one) <= tokens else text[: one.offsets[tokens - 1, 1]]
            for text, one in zip(texts, encoded, strict=True)
        ]

    def check_lengths(self, pairs: Sequence[Sequence[str]]) -> None:
        """Refuse texts (or pairs) that are too long for the model.

        Raises:
            Refused: one is, even in windows if the model was trained with them.
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
            return list(to_numpy(form.all_logits(predictor.model, states, moved, None)))
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
            self.compute("masks", [(f"{self.mask} a", 1, None)])

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
