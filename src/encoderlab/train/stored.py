"""The tensors of a checkpoint, written by any number of processes: each is read on request, whole or in part.

Files are safetensors as written by :class:`torch.distributed.checkpoint.HuggingFaceStorageWriter`: each process's
file has its parts of the tensors, and their places in the header. A file of a single process has whole tensors.
That library's default files are not used, because they store the places in a pickle, and reading a pickle can run code.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from encoderlab.errors import DataError
from encoderlab.interchange.files import is_utf8

CARRIED = "/"  # names with it, such as ``exp_avg/table.weight``, are not weights


class StoredTensors(Mapping[str, Tensor]):
    """The tensors in the safetensors files of ``folder``.

    Raises:
        DataError: a file is not safetensors, or parts of a tensor have different types.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        place = folder
        if not is_utf8(folder):  # which safetensors cannot open; it can open a link
            self._aside = tempfile.TemporaryDirectory(prefix="encoderlab-")
            place = Path(self._aside.name) / "checkpoint"
            place.symlink_to(folder.resolve())
        self._reader = _Reader(str(place))
        try:
            about = self._reader.headers.state_dict_metadata
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder}: cannot be read as safetensors ({error})") from None
        self.about: dict[str, TensorStorageMetadata] = dict(sorted(about.items()))  # type: ignore[arg-type]
        for index, part in self._reader.headers.storage_data.items():
            if part.dtype != (first := self.about[index.fqn].properties.dtype):
                kinds = " and ".join(str(kind).removeprefix("torch.") for kind in (first, part.dtype))
                raise DataError(f"{folder}: parts of {index.fqn} are {kinds}; restore the checkpoint")

    def __getitem__(self, name: str) -> Tensor:
        about = self.about[name]
        tensor = torch.empty(about.size, dtype=about.properties.dtype)
        self.read_into({name: tensor})
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.about)

    def __len__(self) -> int:
        return len(self.about)

    @property
    def weights(self) -> dict[str, TensorStorageMetadata]:
        """Shape and type of each of the objective's tensors."""
        return {name: about for name, about in self.about.items() if CARRIED not in name}

    def read_into(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors of these names into ``tensors``. Of a sharded tensor, only this process's part is read.

        Raises:
            DataError: a name is missing, or a shape or a type differs.
        """
        for name, tensor in tensors.items():
            if name not in self.about:
                raise DataError(f"{self.folder}: has no tensor {name}, so it is a checkpoint of another run")
            if tensor.shape != self.about[name].size:
                stored = tuple(self.about[name].size)
                raise DataError(f"{self.folder}: {name} is {stored} there and {tuple(tensor.shape)} in this model")
            if tensor.dtype != (kept := self.about[name].properties.dtype):  # conversion would change its numbers
                there, here = (str(kind).removeprefix("torch.") for kind in (kept, tensor.dtype))
                raise DataError(
                    f"{self.folder}: {name} is {there} there and {here} in this model; restore the checkpoint"
                )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no process group takes part: each process reads on its own
            try:
                dcp.load({n: t.detach() for n, t in tensors.items()}, storage_reader=self._reader, no_dist=True)
            except CheckpointException as error:
                reason = next(iter(error.failures.values()))[0]
                raise DataError(f"{self.folder}: cannot be read ({reason})") from None


class _Reader(HuggingFaceStorageReader):
    """Reads the headers of all files once."""

    @cached_property
    def headers(self) -> Metadata:
        return super().read_metadata()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self.headers
