from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.errors import DataError
from encoderlab.interchange import tensor_bundle
from encoderlab.interchange.tensor_bundle import Checkpoint

CASES = (
    "albert_pretraining",
    "bert_pretraining",
    "convbert_ratio2_k9_groups1_step",
    "convbert_ratio2_k9_groups2_onehead_generator_step",
    "electra_small_step",
    "transformer_xl_tf_untied_uv",
    "xlnet_finetune_forward",
    "xlnet_two_stream_memory_bi_data",
)


@pytest.fixture(scope="module")
def checksums() -> None:
    pytest.importorskip("google_crc32c", reason="checksums need the extra [tf]")


def test_without_the_package_sizes_are_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is said once."""
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    monkeypatch.setattr(tensor_bundle, "_checksum", functools.cache(tensor_bundle._checksum.__wrapped__))
    with caplog.at_level(logging.INFO, logger="encoderlab"):
        checkpoint = Checkpoint(folder)
        for name in list(checkpoint)[:3]:
            checkpoint.read(name)
    (record,) = caplog.records
    assert "pip install 'encoderlab[tf]'" in record.getMessage()
    path = folder / "model.ckpt.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="ends inside"):
        for name in checkpoint:
            checkpoint.read(name)


@pytest.mark.parametrize("case", CASES)
def test_weights_equal_the_golden_case(shared: Path, case: str) -> None:
    checkpoint = Checkpoint(shared / "golden/tf_checkpoints" / case)
    with np.load(shared / f"golden/{case}.npz") as arrays:
        weights = {name.removeprefix("weight/"): arrays[name] for name in arrays if name.startswith("weight/")}
    extra = {name for name in checkpoint if name not in weights}
    assert all(name == "global_step" or name.endswith(("/adam_m", "/adam_v")) for name in extra)
    assert json.loads(str(checkpoint.read("global_step"))) >= 0
    for name, weight in weights.items():
        read = checkpoint.read(name)
        assert read.dtype == weight.dtype
        np.testing.assert_array_equal(read, weight, err_msg=name)


@pytest.fixture
def folder(shared: Path, tmp_path: Path) -> Path:
    for file in (shared / "golden/tf_checkpoints/bert_pretraining").iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    return tmp_path


@pytest.mark.parametrize("given", ["", "model.ckpt", "model.ckpt.index", "model.ckpt.data-00000-of-00001"])
def test_named_by_prefix_file_or_folder(folder: Path, given: str) -> None:
    assert Checkpoint(folder / given).prefix == folder / "model.ckpt"


def test_the_latest_of_several(folder: Path) -> None:
    shutil.copyfile(folder / "model.ckpt.index", folder / "model.ckpt-100.index")
    with pytest.raises(DataError, match="several"):
        Checkpoint(folder)
    (folder / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-100"\n')
    assert Checkpoint(folder).prefix == folder / "model.ckpt-100"


def test_missing_names_and_files(folder: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'bert/pooler/dense/kernel'"):
        Checkpoint(folder).read("bert/pooler/dense/kernels")
    (folder / "model.ckpt.data-00000-of-00001").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        Checkpoint(folder).read("bert/pooler/dense/kernel")
    with pytest.raises(DataError, match="no such file"):
        Checkpoint(folder / "other.ckpt")
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \*\.index"):
        Checkpoint(folder / "empty")


@pytest.mark.parametrize("keep", [0, 20, 47, 48, 400, 3000, -1])
def test_a_truncated_index_is_refused(folder: Path, keep: int) -> None:
    path = folder / "model.ckpt.index"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="copy it again"):
        Checkpoint(folder)


@settings(max_examples=40, deadline=None)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_index_is_refused_or_harmless(
    shared: Path, checksums: None, position: int, bit: int
) -> None:
    """No flipped bit gives other tensors: it is refused, or lies in the unused bytes of the footer or the empty meta
    block.
    """
    source = shared / "golden/tf_checkpoints/albert_pretraining/model.ckpt.index"
    data = bytearray(source.read_bytes())
    data[position % len(data)] ^= 1 << bit
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "model.ckpt.index").write_bytes(data)
        try:
            entries = Checkpoint(Path(scratch)).entries
        except DataError as error:
            assert "\n" not in str(error)
        else:
            assert entries == Checkpoint(source).entries


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_without_checksums_a_flipped_bit_in_the_index_is_read_or_refused(shared: Path, position: int, bit: int) -> None:
    """It may give other tensors, but no error other than ours."""
    source = shared / "golden/tf_checkpoints/electra_small_step"
    data = bytearray((source / "model.ckpt.index").read_bytes())
    data[position % len(data)] ^= 1 << bit
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_bundle, "_checksum", lambda: None)
        (Path(scratch) / "model.ckpt.index").write_bytes(data)
        name = "model.ckpt.data-00000-of-00001"
        (Path(scratch) / name).symlink_to(source / name)
        with contextlib.suppress(DataError):
            checkpoint = Checkpoint(Path(scratch))
            for tensor in itertools.islice(checkpoint, position % 9, None, 9):
                checkpoint.read(tensor)


def test_flipped_and_truncated_data_are_refused(folder: Path, checksums: None) -> None:
    path = folder / "model.ckpt.data-00000-of-00001"
    checkpoint, name = Checkpoint(folder), "bert/pooler/dense/kernel"
    data, entry = bytearray(path.read_bytes()), checkpoint.entries[name]
    data[entry.offset + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="checksum"):
        checkpoint.read(name)
    path.write_bytes(data[: entry.offset + 5])
    with pytest.raises(DataError, match="ends inside"):
        checkpoint.read(name)
