"""``encoderlab bench predict``: states of texts of mixed lengths, also by ``transformers`` and ONNX Runtime."""

from __future__ import annotations

import logging
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
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
class Setting:
    """What is measured: ``turns`` over ``texts`` paragraphs, after one that is not counted.

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


def run(case: Case, corpus: Path, setting: Setting) -> dict[str, Any]:
    """Tokens per second, and how often faster ours is than each contender.

    Ours sorts by length into batches of equal token counts; the others take batches of ``rows`` in the given order,
    padded to the longest, as their pipelines do. On a GPU where there is one, on which the states stay.
    """
    torch.set_num_threads(setting.threads)
    device = usual_device()
    model = Model(case.model).initialize(0).eval()
    source = Corpus(corpus)
    tokenizer = Tokenizer.load(source.tokenizer_path)
    case.check_ids(tokenizer.vocab_size)
    framed = paragraphs(source, tokenizer, setting.texts, case.model.encoder.max_length or 512)
    players: dict[str, Play] = {"ours": lambda: _ours(model, tokenizer, framed, device)}
    with tempfile.TemporaryDirectory() as place:
        calls, failed = _others(model, Path(place), setting, device)
        for name, call in calls.items():
            players[name] = partial(_padded, call, tokenizer, framed, setting.rows, device)
        model.to(device)
        seconds: dict[str, list[float]] = {name: [] for name in players}
        for turn in range(setting.turns + 1):
            for name, play in players.items():
                took = _seconds(play, setting.precision, device)
                if turn:
                    seconds[name].append(took)
    tokens = sum(len(ids) for ids, _ in framed)
    return {
        "case": case.name,
        "device": device_name(device),
        "precision": setting.precision,
        "texts": setting.texts,
        "tokens": tokens,
        "tokens_per_second": {name: tokens / statistics.median(values) for name, values in seconds.items()},
        "ratio": {
            name: statistics.median(theirs / ours for ours, theirs in zip(seconds["ours"], seconds[name], strict=True))
            for name in calls
        },
        "failed": failed,
    }


Call = Callable[[torch.Tensor, torch.Tensor], Any]
"""A contender on one batch: ids and attention mask, both (B, L)."""


def _others(
    model: Model, place: Path, setting: Setting, device: torch.device
) -> tuple[dict[str, Call], dict[str, str]]:
    """The other contenders with the weights of ``model``, and why one takes no part; files go to ``place``.

    Raises:
        MissingDependency: a library that is compared with is not installed.
    """
    calls: dict[str, Call] = {}
    failed: dict[str, str] = {}
    if not setting.against:
        return calls, failed
    theirs = _theirs(model, place)
    if "transformers" in setting.against:
        calls["transformers"] = lambda ids, mask: theirs(input_ids=ids, attention_mask=mask)
    if "onnxruntime" in setting.against:
        if device.type != "cpu" or setting.precision != "fp32":
            failed["onnxruntime"] = "is measured on a CPU in fp32 only"
        else:
            try:
                calls["onnxruntime"] = _onnx(theirs, place / "model.onnx", setting.threads)
            except MissingDependency:
                raise
            except EncoderlabError as error:
                failed["onnxruntime"] = str(error)
    theirs.to(device)  # which has been exported
    return calls, failed


def paragraphs(corpus: Corpus, tokenizer: Tokenizer, count: int, longest: int) -> Texts:
    """Texts of one to a dozen sentences from the corpus, up to ``longest`` tokens."""
    rng = np.random.default_rng(0)
    found: Texts = []
    while len(found) < count:
        document = corpus.document(int(rng.integers(corpus.num_documents)))
        starts = [*document.sentences.tolist(), len(document.ids)]
        first = int(rng.integers(len(starts) - 1))
        last = min(first + int(rng.integers(1, 13)), len(starts) - 1)
        ids = document.ids[starts[first] : starts[last]]
        if len(ids):
            found.append(tokenizer.frame(ids, max_length=longest))
    return found


@torch.inference_mode()
def _seconds(play: Play, mode: Precision, device: torch.device) -> float:
    """How long it takes until the device has done it."""
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
    for start in range(0, len(framed), rows):
        part = [torch.from_numpy(ids) for ids, _ in framed[start : start + rows]]
        ids = nn.utils.rnn.pad_sequence(part, batch_first=True, padding_value=tokenizer.special.pad)
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(x) for x in part], batch_first=True)
        call(ids.to(device), mask.to(device))


def _theirs(model: Model, place: Path) -> nn.Module:
    try:
        import transformers
    except ImportError:
        raise MissingDependency("transformers", "hf", "comparing with transformers") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    huggingface.save(model, place / "model")
    network: nn.Module = transformers.AutoModel.from_pretrained(place / "model")
    return network.eval()


def _onnx(network: nn.Module, path: Path, threads: int) -> Call:
    """The network in ONNX Runtime, with its own graph optimisation.

    Raises:
        EncoderlabError: torch cannot export it.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependency(error.name or "onnxruntime", "export", "comparing with ONNX Runtime") from None
    example = torch.ones(2, 16, dtype=torch.long)
    size = {0: torch.export.Dim("rows", min=2), 1: torch.export.Dim("length", min=2, max=512)}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                network,
                (example, example),
                path,
                input_names=["input_ids", "attention_mask"],
                dynamic_shapes={"input_ids": size, "attention_mask": size},
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
    return lambda ids, mask: session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
