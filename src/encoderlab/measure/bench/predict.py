"""``encoderlab bench predict``: states of texts of mixed lengths, also by ``transformers`` and ONNX Runtime."""

from __future__ import annotations

import logging
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import EncoderlabError, MissingDependency
from encoderlab.inference import batch_tokens, batches, device_name, usual_device
from encoderlab.interchange import huggingface
from encoderlab.measure.bench.contenders import quiet_transformers
from encoderlab.measure.bench.families import Case
from encoderlab.model import Model
from encoderlab.nn import kernels
from encoderlab.train.precision import precision as precision_of
from encoderlab.train.precision import products
from encoderlab.train.recipe import Precision

Texts = list[tuple[np.ndarray, np.ndarray]]  # framed: ids and segments
Play = Callable[[], None]
"""Computes the states of all texts, by one contender."""


@dataclass(frozen=True, kw_only=True)
class PredictSetting:
    """One benchmark: ``turns`` passes over ``texts`` paragraphs, after a warm-up pass.

    Args:
        rows: texts in a batch of the other contenders.
        against: ``transformers``, ``onnxruntime``.
    """

    texts: int = 256
    rows: int = 32
    turns: int = 3
    threads: int = 2
    precision: Precision = "fp32"
    against: tuple[str, ...] = ()


def run(case: Case, corpus: Path, setting: PredictSetting) -> dict[str, Any]:
    """Tokens per second, and the ratio of ours to each contender.

    Ours sorts by length into batches of equal token counts; the others take batches of ``rows`` in the given order,
    padded to the longest, as their pipelines do. Runs on a GPU if there is one; the states stay there. Only contenders
    with the same states take part; ``difference`` has the largest difference of each (:data:`COMPARED`).
    """
    with PredictContest(case, corpus, setting) as ready:
        return ready.measured()


class PredictContest:
    """The contenders of one comparison, after a pass over all texts that is not counted."""

    def __init__(self, case: Case, corpus: Path, setting: PredictSetting) -> None:
        torch.set_num_threads(setting.threads)
        self.case, self.setting, self.device = case, setting, usual_device()
        model = Model(case.model).initialize(0).eval()
        source = Corpus(corpus)
        tokenizer = source.tokenizer()
        case.check_ids(tokenizer.vocab_size)
        framed = paragraphs(source, tokenizer, setting.texts, case.model.encoder.max_length or 512)
        self.tokens = sum(len(ids) for ids, _ in framed)
        self.players: dict[str, Play] = {"ours": partial(_ours, model, tokenizer, framed, self.device)}
        self.others = Contenders(model, framed)
        with ExitStack() as stack:
            if setting.against:
                self.others.add(Path(stack.enter_context(tempfile.TemporaryDirectory())), setting, self.device)
            for name, call in self.others.calls.items():
                self.players[name] = partial(_padded, call, tokenizer, framed, setting.rows, self.device)
            model.to(self.device)
            for play in self.players.values():
                _seconds(play, setting.precision, self.device)
            self.stack = stack.pop_all()

    def __enter__(self) -> PredictContest:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def measured(self) -> dict[str, Any]:
        """The numbers of :func:`run`."""
        seconds: dict[str, list[float]] = {name: [] for name in self.players}
        for _ in range(self.setting.turns):
            for name, play in self.players.items():
                seconds[name].append(_seconds(play, self.setting.precision, self.device))
        return {
            "case": self.case.name,
            "device": device_name(self.device),
            "precision": self.setting.precision,
            "texts": self.setting.texts,
            "tokens": self.tokens,
            "tokens_per_second": {name: self.tokens / statistics.median(values) for name, values in seconds.items()},
            "ratio": {
                name: statistics.median(
                    theirs / ours for ours, theirs in zip(seconds["ours"], seconds[name], strict=True)
                )
                for name in self.others.calls
            },
            "difference": self.others.difference,
            "failed": self.others.failed,
        }


Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A contender on one batch: ids, attention mask and segments, all (B, L), to states (B, L, D)."""

COMPARED = (2, 3, 129, 130, 512)
"""Lengths at which the states of a contender are compared with ours: graphs that were traced at one length have been
wrong at others. Next to a row of each length is one half as long, padded, because a graph may ignore the mask."""
LARGEST_DIFFERENCE = 1e-3


class Contenders:
    """The other contenders with the weights of ``model``: their calls, the difference of their states from ours, and
    why one is refused. ``framed`` are the texts that all of them read.
    """

    def __init__(self, model: Model, framed: Texts) -> None:
        self.model, self.framed = model, framed
        self.longest = model.config.encoder.max_length or 512
        self.calls: dict[str, Call] = {}
        self.difference: dict[str, float] = {}
        self.failed: dict[str, str] = {}

    def add(self, place: Path, setting: PredictSetting, device: torch.device) -> None:
        """Add the setting's contenders; their files go to ``place``.

        Raises:
            MissingDependency: a library to compare with is not installed.
        """
        theirs = _Theirs(self.model, place)
        if "transformers" in setting.against:
            self._admit("transformers", theirs)
        if "onnxruntime" in setting.against:
            if device.type != "cpu" or setting.precision != "fp32":
                self.failed["onnxruntime"] = "is measured on a CPU in fp32 only"
            else:
                try:
                    self._admit("onnxruntime", _onnx(theirs, place / "model.onnx", setting.threads, self.longest))
                except MissingDependency:
                    raise
                except EncoderlabError as error:
                    self.failed["onnxruntime"] = str(error)
        theirs.to(device)  # which has been exported

    @torch.inference_mode()
    def _admit(self, name: str, call: Call) -> None:
        """Add a contender if its states equal ours."""
        ids, segments = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*self.framed, strict=True))
        difference = 0.0
        for length in (min(length, self.longest) for length in COMPARED):
            rows, of_rows = ids[:length].expand(2, -1), segments[:length].long().expand(2, -1)
            mask = torch.ones_like(rows)
            mask[1, (length + 1) // 2 :] = 0
            ours = self.model(rows, attention_mask=mask, segments=of_rows).last
            apart = (call(rows, mask, of_rows) - ours)[mask.bool()].abs().max()
            difference = max(difference, float(apart.nan_to_num(torch.inf)))
        self.difference[name] = difference
        if difference > LARGEST_DIFFERENCE:
            self.failed[name] = f"its states differ from ours by {difference:.2g}, more than {LARGEST_DIFFERENCE:g}"
        else:
            self.calls[name] = call


def paragraphs(corpus: Corpus, tokenizer: Tokenizer, count: int, longest: int) -> Texts:
    """Texts of one to a dozen sentences from the corpus, up to ``longest`` tokens."""
    rng = np.random.default_rng(0)
    texts: Texts = []
    while len(texts) < count:
        document = corpus.document(int(rng.integers(corpus.num_documents)))
        starts = [*document.sentences.tolist(), len(document.ids)]
        first = int(rng.integers(len(starts) - 1))
        last = min(first + int(rng.integers(1, 13)), len(starts) - 1)
        ids = document.ids[starts[first] : starts[last]]
        if len(ids):
            texts.append(tokenizer.frame(ids, max_length=longest))
    return texts


@torch.inference_mode()
def _seconds(play: Play, mode: Precision, device: torch.device) -> float:
    """Seconds of a call until the device has finished."""
    kernels.keep_memory()  # as encode does; the others run in the same process and have it too
    started = time.perf_counter()
    with products(mode, device), precision_of(mode, device):
        play()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _ours(model: Model, tokenizer: Tokenizer, framed: Texts, device: torch.device) -> None:
    for batch in batches(tokenizer, framed, batch_tokens(device)):
        batch = batch.to(device)
        model.encoder(batch.ids, doc=batch.documents, segments=batch.segments)


def _padded(call: Call, tokenizer: Tokenizer, framed: Texts, rows: int, device: torch.device) -> None:
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    for start in range(0, len(framed), rows):
        part = [torch.from_numpy(ids) for ids, _ in framed[start : start + rows]]
        segments = [torch.from_numpy(of_text).long() for _, of_text in framed[start : start + rows]]
        batch = pad(part, padding_value=tokenizer.special.pad), pad([torch.ones_like(x) for x in part]), pad(segments)
        call(*(tensor.to(device) for tensor in batch))


class _Theirs(nn.Module):
    """The encoder of ``transformers`` with the weights of a model, through a folder."""

    def __init__(self, model: Model, place: Path) -> None:
        super().__init__()
        transformers = quiet_transformers()
        huggingface.save(model, place / "model")
        self.network = transformers.AutoModel.from_pretrained(place / "model").eval()
        encoder = model.config.encoder
        self.reads_segments = encoder.types > 1 or encoder.position.segments

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        more = {"token_type_ids": segments} if self.reads_segments else {}
        states: torch.Tensor = self.network(input_ids=ids, attention_mask=mask, **more).last_hidden_state
        return states


def _onnx(network: nn.Module, path: Path, threads: int, longest: int) -> Call:
    """A network of ids, mask and segments in ONNX Runtime, with its own graph optimisation, for rows of 2 to
    ``longest`` tokens.

    Raises:
        EncoderlabError: torch cannot export it.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependency(error.name or "onnxruntime", "export", "comparing with ONNX Runtime") from None
    # Three tensors: the same tensor given twice would become one input.
    ids, mask, segments = (make(2, 16, dtype=torch.long) for make in (torch.ones, torch.ones, torch.zeros))
    size = {0: torch.export.Dim("rows"), 1: torch.export.Dim("length", min=2, max=longest)}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Not by torch.onnx.export alone, which silently traces again if the graph depends on the example's length.
            graph = torch.export.export(network, (ids, mask, segments), dynamic_shapes=(size, size, size))
            torch.onnx.export(
                graph,
                (),
                path,
                input_names=["ids", "mask", "segments"],
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # of many kinds
            plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # without its colours
            reason = f"{type(error).__name__}: {plain}".splitlines()[0]
            raise EncoderlabError(f"torch cannot export {type(network).__name__} to ONNX ({reason[:120]})") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options)
    names = {entry.name for entry in session.get_inputs()}  # a graph that reads no segments has no such input

    def call(*batch: torch.Tensor) -> torch.Tensor:
        inputs = zip(("ids", "mask", "segments"), batch, strict=True)
        (states,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs if name in names})
        return torch.from_numpy(states)

    return call
