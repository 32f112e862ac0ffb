"""From a request for an explanation to the row and the number that are explained, and back to places in the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from encoderlab import inference
from encoderlab.deploy.graph import Graph, Use, use_of
from encoderlab.deploy.serve.explain import Explainer, Method, Target, TokenRow
from encoderlab.deploy.serve.texts import Refused
from encoderlab.interchange.heads import NUMBER
from encoderlab.tasks.data.examples import Question, TaggedWords
from encoderlab.tasks.data.plain_words import words_of
from encoderlab.tasks.forms.best_spans import Window

if TYPE_CHECKING:
    from encoderlab.deploy.serve.service import Service


@dataclass(frozen=True, kw_only=True)
class ExplanationRequest:
    """The request for an explanation.

    Args:
        texts: one or two; a passage comes after its question; for vectors, the second text is the one to compare with.
        target: label, tag or guess; None for the model's answer.
        at: a character of the word whose tag is explained; None for the first word with a tag other than the usual.
        steps: number of steps of integrated gradients.
        layer, head: of attention, from 0.
    """

    method: Method
    texts: tuple[str, ...]
    target: str | None = None
    at: int | None = None
    steps: int = 16
    layer: int = 0
    head: int = 0

    @property
    def cost(self) -> int:
        """Number of times that the row is computed."""
        if self.method == "words":
            return sum(len(words_of(text)) for text in self.texts) + 1
        return self.steps + 2 if self.method == "gradients" else 1


class Explanations:
    """Explanations by one service. Everything here runs in the thread that computes."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.tokenizer = service.tokenizer
        self._explainers: dict[str, Explainer] = {}

    def use(self, asked: ExplanationRequest) -> Use:
        """The graph that answers."""
        if self.service.form is not None:
            return use_of(self.service.model)
        return "fill-mask" if self.service.fills_masks and self.service.mask in asked.texts[0] else "states"

    def __call__(self, asked: ExplanationRequest) -> dict[str, Any]:
        """The answer to a request, as plain data.

        Raises:
            Refused: the request does not fit the model.
        """
        use = self.use(asked)
        self._check(asked, use)
        if use not in self._explainers:
            self._explainers[use] = Explainer(Graph(self.service.model, use), self.service.pooling)
        explainer = self._explainers[use]
        if asked.method != "attention" and explainer.graph.beam:
            raise Refused("the end of this model's answers depends on their start, so only attention can be shown")
        target = None
        if use == "tagging":
            row, target = self._tags(asked)
        elif use == "span":
            row, target = self._answer(asked)
        else:
            row = self._row(asked, use)
        shown: dict[str, Any] = {"method": asked.method, "tokens": self._tokens(row)}
        if asked.method == "attention":
            explained = explainer.attention(row, asked.layer, asked.head)
            return shown | {"layer": asked.layer + 1, "head": asked.head + 1} | explained
        if target is None:
            target = self._target(asked, use, explainer, row)
        shown |= {"target": target.name, "of": OF[use] if self.service.labels != NUMBER else "the number"}
        if asked.method == "gradients":
            return shown | explainer.gradients(row, target, asked.steps)
        words = [(part, begin, end) for part, text in enumerate(asked.texts) for _, begin, end in words_of(text)]
        if use == "states":
            words = [word for word in words if word[0] == 0]
        explained = explainer.words(row, target, words)
        effects = [
            {"text": asked.texts[part][begin:end], "part": part, "start": begin, "end": end, "effect": effect}
            for (part, begin, end), effect in zip(words, explained["effects"], strict=True)
        ]
        return shown | {"number": explained["number"], "words": effects}

    def _check(self, asked: ExplanationRequest, use: Use) -> None:
        count = len(asked.texts)
        if use == "states" and asked.method != "attention" and count != 2:
            raise Refused("a model of vectors explains why two texts are similar: give inputs [text, other text]")
        if use == "span" and count != 2:
            raise Refused("give inputs as {question, context}")
        if use in ("tagging", "fill-mask") and count != 1:
            raise Refused("give one text")
        if asked.target is not None and use in ("states", "span"):
            raise Refused("target names a label, a tag or a guess, and none of these is explained here; leave it out")
        if asked.at is not None and use != "tagging":
            raise Refused("at is a place in a text whose tags are explained, and none is here; leave it out")
        if not any(text.strip() for text in asked.texts):
            raise Refused("the text has no word")

    def _row(self, asked: ExplanationRequest, use: Use) -> TokenRow:
        """The texts as one row; for vectors only the first, after the usual prompt, whose tokens are not explained."""
        texts = asked.texts[:1] if use == "states" else asked.texts
        prompt = self.service.prompts.before(None) if use == "states" else ""
        encoded = [self.tokenizer.encode(prompt + text) for text in texts]
        longest, second = self.service.longest, encoded[1] if len(encoded) > 1 else None
        ids, segments = self.tokenizer.frame(encoded[0].ids, None if second is None else second.ids, longest)
        spans = self.tokenizer.spans(len(encoded[0]), None if second is None else len(second), max_length=longest)
        parts = [(0, spans.a_start, spans.a, encoded[0].offsets)]
        if second is not None:
            parts.append((1, spans.b_start, spans.b, second.offsets))
        row = TokenRow.of(ids, segments, parts, self.tokenizer)
        if not prompt:
            return row
        of_text = row.offsets[:, 1] > len(prompt)
        offsets = np.maximum(row.offsets - len(prompt), 0)
        return replace(row, part=np.where(of_text, row.part, -1), offsets=offsets)

    def _tags(self, asked: ExplanationRequest) -> tuple[TokenRow, Target]:
        """The row of a text for tagging, and the tag of one of its words."""
        predictor = self.service.predictor
        assert predictor is not None
        words = words_of(asked.texts[0])
        example = TaggedWords(id="", words=tuple(word for word, _, _ in words))
        items = predictor.form.items([example])[:1]
        joined = self.tokenizer.encode(" ".join(example.words))
        starts = np.cumsum([0, *(len(word) + 1 for word in example.words[:-1])])
        # Places in the words joined by spaces become places in the text.
        number = np.maximum(np.searchsorted(starts, np.maximum(joined.offsets[:, 1] - 1, 0), side="right") - 1, 0)
        shift = np.array([begin for _, begin, _ in words])[number] - starts[number]
        sequence = items[0].sequences[0]
        size = len(sequence) - 2
        where = np.maximum(joined.offsets + shift[:, None], 0)
        start = self.tokenizer.spans(size, max_length=len(sequence)).a_start
        row = TokenRow.of(sequence.ids, sequence.segments, [(0, start, min(size, len(where)), where)], self.tokenizer)
        marks = sequence.marks["word"]
        outputs = predictor.outputs(items)[0]
        labels, shown = self.service.labels, marks[marks >= 0]
        if not len(shown):
            raise Refused("the text has no word that the model reads")
        best = outputs.argmax(1)
        if asked.at is None:
            chosen = next((i for i, index in enumerate(best) if labels[index] != "O"), 0)
        else:
            inside = [i for i, word in enumerate(shown) if words[word][1] <= asked.at < words[word][2]]
            if not inside:
                raise Refused(f"at {asked.at}: there is no word that the model reads")
            chosen = inside[0]
        index = self._label(asked.target) if asked.target is not None else int(best[chosen])
        name = f"{labels[index]} of {words[shown[chosen]][0]!r}"
        return row, Target(name=name, index=index, places=(int(np.flatnonzero(marks == shown[chosen])[0]),))

    def _answer(self, asked: ExplanationRequest) -> tuple[TokenRow, Target]:
        """The window with the best answer, and the places of its first and last token."""
        predictor = self.service.predictor
        assert predictor is not None
        question = Question(id="q", question=asked.texts[0], passage=asked.texts[1])
        items = predictor.form.items([question])
        predictions = predictor.form.decode(items, predictor.outputs(items), [question])
        spans = [span for span in (predictions.nbest or {}).get("q", []) if span["text"]]
        if not spans:
            raise Refused("the model finds no answer in this passage")
        best = spans[0]
        for item in items:
            window = item.sequences[0]
            assert isinstance(window, Window)
            inside = (window.offsets[:, 0] >= best["start"]) & (window.offsets[:, 1] <= best["end"])
            inside &= window.offsets[:, 1] > window.offsets[:, 0]
            places = np.flatnonzero(inside)
            if len(places) and window.central[places[0]] and window.offsets[places[-1], 1] == best["end"]:
                break
        else:
            raise Refused("the answer is cut by the border of a window; give a shorter passage")
        asked_tokens = self.tokenizer.encode(asked.texts[0].strip())
        first = 0 if self.tokenizer.framing == "xlnet" else 1
        shift = len(asked.texts[0]) - len(asked.texts[0].lstrip())
        # In families whose passage comes first, the question follows it.
        behind = window.start < first + 1
        start = window.start + len(window.offsets) + 1 if behind else first
        size = min(len(asked_tokens), (len(window) if behind else window.start) - start - 1)
        parts = [(0, start, size, asked_tokens.offsets + shift), (1, window.start, len(window.offsets), window.offsets)]
        row = TokenRow.of(window.ids, window.segments, parts, self.tokenizer)
        ends = (window.start + int(places[0]), window.start + int(places[-1]))
        return row, Target(name=best["text"], places=ends)

    def _target(self, asked: ExplanationRequest, use: Use, explainer: Explainer, row: TokenRow) -> Target:
        """The target: the requested one, else the model's answer."""
        if use == "states":
            other = self._row(replace(asked, texts=asked.texts[1:]), use)
            with torch.inference_mode():
                outputs, real = explainer.outputs([other])
                vector = inference.pooled(outputs[0], real, explainer.pooling)[0].cpu().numpy()
            return Target(name="nearness of the two texts", vector=vector / max(float(np.linalg.norm(vector)), 1e-12))
        if use == "fill-mask":
            places = np.flatnonzero(row.ids == self.tokenizer.special.mask)
            if not len(places):
                raise Refused("the mask is cut off; write it nearer to the beginning")
            if asked.target is None:
                best = inference.fill_mask(self.service.model, asked.texts[0], top=1)[0][0]
                name, index = best.token_str, best.token
            else:
                name, index = asked.target, inference.single_token(self.tokenizer, asked.target)
            return Target(name=name, index=index, places=(int(places[0]),))
        if asked.target is not None:
            return Target(name=asked.target, index=self._label(asked.target))
        with torch.inference_mode():
            logits = explainer.outputs([row])[0][0][0]
        index = int(logits.argmax())
        return Target(name=self.service.labels[index], index=index)

    def _label(self, name: str) -> int:
        if name not in self.service.labels:
            raise Refused(f"target {name!r} is none of {', '.join(self.service.labels)[:200]}")
        return self.service.labels.index(name)

    def _tokens(self, row: TokenRow) -> list[dict[str, Any]]:
        special = row.part < 0
        return [
            {
                "text": self.tokenizer.token(int(index)),
                "part": None if alone else int(part),
                "start": None if alone else int(begin),
                "end": None if alone else int(end),
            }
            for index, part, (begin, end), alone in zip(row.ids, row.part, row.offsets, special, strict=True)
        ]


OF: dict[str, str] = {
    "states": "the cosine",
    "fill-mask": "the log-odds",
    "classification": "the log-odds",
    "tagging": "the log-odds",
    "span": "the sum of the log-odds of its start and its end",
}


def rounded(explanation: dict[str, Any]) -> dict[str, Any]:
    """An explanation as it is sent: each token with its share."""
    attributions: Sequence[float] | None = explanation.pop("attributions", None)
    if attributions is not None:
        explanation["tokens"] = [
            token | {"attribution": float(value)}
            for token, value in zip(explanation["tokens"], attributions, strict=True)
        ]
    return explanation
