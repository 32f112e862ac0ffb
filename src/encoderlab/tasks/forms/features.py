"""Feature-based use: a small network is trained on a frozen encoder's activations, computed once and stored on disk.

Devlin et al., 2019, section 5.3: activations of one or several layers at the first sub-token of each word go through a
randomly initialised two-layer BiLSTM of width 768 and a classifier. Without the BiLSTM it is a linear probe. The vector
of a text to classify is the mean of its tokens. The encoder runs once per text, so a run costs as much as its small
network.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from encoderlab import mapped
from encoderlab.config import Bounded, Count, Natural
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import find_hashed, hashed_name, is_running
from encoderlab.interchange import folder as folders
from encoderlab.interchange.files import write_weights
from encoderlab.model import Model
from encoderlab.nn.encoder import Chosen, States
from encoderlab.nn.heads import Classification, ClassificationHead, Tagging, TaggingHead, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.nn.scope import Scope
from encoderlab.seeds import derive
from encoderlab.tasks.forms.batching import Encoded, Item, sorted_batches

HEAD_FILE = "head.safetensors"  # in a folder with only the trained part
Layers = Literal["embeddings", "second_to_last", "last", "weighted_last_four", "concatenated_last_four", "weighted_all"]


@dataclass(frozen=True, kw_only=True)
class Frozen(Bounded):
    """Which activations are read, and the network that is trained on them.

    ``lstm_layers`` 0 is a linear probe. ``dtype``: of the activations on disk.
    """

    layers: Layers = "concatenated_last_four"
    lstm_layers: Natural = 2
    lstm_width: Count = 768
    dtype: Literal["float16", "float32"] = "float16"

    def numbers(self, depth: int) -> tuple[int, ...]:
        """Indices into ``States.layers`` (0 is the embedding output) for an encoder of ``depth`` layers."""
        if "four" in self.layers and depth < 4:
            raise ConfigError(f"{self.layers} needs 4 layers, the model has {depth}; choose last or weighted_all")
        chosen = {
            "embeddings": (0,),
            "second_to_last": (depth - 1,),
            "last": (depth,),
            "weighted_last_four": tuple(range(depth - 3, depth + 1)),
            "concatenated_last_four": tuple(range(depth - 3, depth + 1)),
            "weighted_all": tuple(range(1, depth + 1)),
        }
        return chosen[self.layers]


class Store:
    """Activations on disk, (rows, layers, D), one file per list of examples; rows are numbered through all files."""

    def __init__(
        self, folder: Path, model: Model, settings: Frozen, model_hash: str, numbers: Sequence[int] | None = None
    ) -> None:
        self.folder, self.model, self.settings, self.model_hash = folder, model, settings, model_hash
        self.numbers = settings.numbers(model.encoder.depth) if numbers is None else tuple(numbers)
        self.parts: list[np.ndarray] = []
        self.starts = [0]

    def add(self, items: Sequence[Item], words: bool, room: int) -> int:
        """Store activations of ``items``: of every word's first token, or the mean of every sequence; returns the first
        row.

        ``room``: largest length of a sequence in tokens.
        """
        key = hashlib.sha256(json.dumps([self.model_hash, self.numbers, self.settings.dtype, words]).encode())
        for item in items:
            for sequence in item.sequences:
                key.update(sequence.ids.tobytes() + sequence.marks.get("word", np.zeros(0, np.int32)).tobytes())
        stem = key.hexdigest()[:32]
        path = find_hashed(self.folder, stem, ".npy") or self._compute(items, words, room, stem)
        self.parts.append(np.load(path, mmap_mode="r"))
        mapped.watch(path, path.stat().st_size)
        self.starts.append(self.starts[-1] + len(self.parts[-1]))
        return self.starts[-2]

    @torch.no_grad()
    def _compute(self, items: Sequence[Item], words: bool, room: int, stem: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        sizes = [int((item.sequences[0].marks["word"] >= 0).sum()) if words else 1 for item in items]
        first = np.cumsum([0, *sizes])
        shape = (int(first[-1]), len(self.numbers), self.model.config.encoder.width)
        self._remove_leftovers()
        part = self.folder / f".{stem}-{platform.node()}-{os.getpid()}.npy"  # several runs may begin at once
        kind = np.dtype(self.settings.dtype)
        row_bytes = math.prod(shape[1:]) * kind.itemsize
        model, device = self.model.eval(), next(self.model.parameters()).device
        assert model.tokenizer is not None
        try:
            with part.open("wb") as file:  # not mapped into memory: a full disk would end the process
                header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                begin = file.tell()
                for numbers, batch in sorted_batches(items, pad=model.tokenizer.special.pad, room=room):
                    moved = batch.to(device)
                    states = model.encoder(moved.ids, doc=moved.documents, segments=moved.segments)
                    layers = torch.stack([states.layers[i] for i in self.numbers], dim=2)  # (B, L, n, D)
                    for row, number in enumerate(numbers):
                        if words:
                            chosen = layers[row][moved.labels["word"][row] >= 0]
                        else:
                            chosen = layers[row][moved.doc[row] >= 0].mean(0, keepdim=True)
                        file.seek(begin + int(first[number]) * row_bytes)
                        file.write(chosen.float().cpu().numpy().astype(kind).tobytes())
            path = self.folder / hashed_name(stem, part)
            os.replace(part, path)
        except OSError as error:
            raise DataError(
                f"{self.folder}: the activations could not be written ({error.strerror}; "
                f"{shape[0] * row_bytes / 1e6:,.1f} MB are needed); make room and run again to resume"
            ) from None
        finally:
            part.unlink(missing_ok=True)
        return path

    def _remove_leftovers(self) -> None:
        """Delete the unfinished files of killed processes of this machine."""
        unfinished = re.compile(rf"\.[0-9a-f]+-{re.escape(platform.node())}-([0-9]+)\.npy")
        for path in list(self.folder.glob(".*.npy")):
            name = unfinished.fullmatch(path.name)
            if name is not None and not is_running(int(name[1])):
                path.unlink(missing_ok=True)

    def rows_of(self, items: Sequence[Item], words: bool, room: int) -> list[Item]:
        """The items with rows of the store instead of tokens; items without rows are left out.

        ``words`` and ``room`` as in :meth:`add`.
        """
        row = self.add(items, words, room)
        numbers = []
        for item in items:
            sequence = item.sequences[0]
            kept = sequence.marks["word"] >= 0 if words else np.arange(len(sequence)) == 0
            count = int(kept.sum())
            if count:
                ids = np.arange(row, row + count, dtype=np.int64)
                marks = {name: mark[kept] for name, mark in sequence.marks.items()}
                numbers.append(Item(item.example, (Encoded(ids, np.zeros(count, np.int8), sequence.labels, marks),)))
            row += count
        return numbers

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Activations (n, layers, D) float32 of the rows (n,)."""
        part = np.searchsorted(self.starts, rows, side="right") - 1
        states = np.empty((len(rows), *self.parts[0].shape[1:]), np.float32)
        for i in np.unique(part):
            states[part == i] = self.parts[i][rows[part == i] - self.starts[i]]
        return states


class FrozenEncoder(nn.Module):
    """Takes rows of a store instead of token ids: mixes layers, runs the BiLSTM, and returns :class:`States`."""

    depth = 0
    splits_last_layer = False

    def __init__(self, store: Store, settings: Frozen) -> None:
        super().__init__()
        self.store = store
        count, width = len(store.numbers), store.model.config.encoder.width
        self.mix = nn.Parameter(torch.zeros(count)) if settings.layers.startswith("weighted") else None
        self.scale = nn.Parameter(torch.ones(())) if self.mix is not None else None
        inner = width if self.mix is not None else count * width
        self.lstm = None
        if settings.lstm_layers:
            self.lstm = nn.LSTM(inner, settings.lstm_width, settings.lstm_layers, batch_first=True, bidirectional=True)
        self.width = 2 * settings.lstm_width if self.lstm is not None else inner

    def forward(
        self, ids: Tensor, *, doc: Tensor, segments: Tensor | None = None, noise: Noise | None = None
    ) -> States:
        """ids (B, L) rows of the store, doc (B, L) -> one layer (B, L, width). Sequences of a row are read
        separately.
        """
        real = doc >= 0
        weight = next(self.parameters(), ids)  # a linear probe of one layer has none
        vectors = torch.from_numpy(self.store.read(ids[real].cpu().numpy())).to(weight.device)
        if self.mix is not None and self.scale is not None:
            vectors = self.scale * torch.einsum("n,snd->sd", self.mix.softmax(0), vectors)
        else:
            vectors = vectors.flatten(1)
        if self.lstm is not None:
            docs = doc[real] + (doc.amax() + 1) * real.nonzero()[:, 0]  # a number of its own for each sequence
            lengths = torch.unique_consecutive(docs, return_counts=True)[1].tolist()
            texts = pack_sequence(vectors.split(lengths), enforce_sorted=False)
            read, _ = pad_packed_sequence(self.lstm(texts)[0], batch_first=True)
            vectors = torch.cat([x[:length] for x, length in zip(read, lengths, strict=True)])
        x = vectors.new_zeros(*ids.shape, vectors.shape[-1]).masked_scatter(real[..., None], vectors)
        return States((x,), Scope(doc=doc, visible=None, distances=None))

    @staticmethod
    def last_at(states: States, chosen: Chosen, noise: Noise | None = None) -> Tensor:
        """As :meth:`encoderlab.nn.encoder.Encoder.last_at`."""
        return states.last[chosen.rows, chosen.places]


class FrozenModel(nn.Module):
    """The part that is trained on a frozen encoder's activations, with the attributes of a model that forms read.

    These are tokenizer, configuration, encoder and task head. The head is ``head`` without its pretrained maps.
    """

    pooler = None

    def __init__(self, store: Store, settings: Frozen, head: TaskHead, labels: tuple[str, ...], seed: int) -> None:
        super().__init__()
        self.tokenizer = store.model.tokenizer
        torch.manual_seed(derive(seed, "frozen") >> 1)
        self.encoder = FrozenEncoder(store, settings)
        self.task: ClassificationHead | TaggingHead
        if isinstance(head, Classification):
            head = replace(head, summary="raw")
            self.task = ClassificationHead(head, self.encoder.width)
        else:
            assert isinstance(head, Tagging)
            head = replace(head, dense=False)
            self.task = TaggingHead(head, self.encoder.width)
        self.config = replace(store.model.config, task=head, labels=labels)

    def save(self, folder: Path) -> None:
        """Write the trained part; it can only predict from the activations in its run folder."""
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        folders.write_whole(folder, lambda aside: write_weights(aside / HEAD_FILE, weights))
