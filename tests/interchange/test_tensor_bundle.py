from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.errors import DataError
from encoderlab.interchange import tensor_bundle
from encoderlab.interchange.tensor_bundle import Checkpoint, crc32c

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


def test_crc32c_of_published_vectors() -> None:
    """The examples of RFC 3720, section B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"123456789") == 0xE3069283


@settings(max_examples=20, deadline=None)
@given(length=st.integers(0, 3 * tensor_bundle._MIN_LANES_BYTES), seed=st.integers(0, 9))
def test_crc32c_in_lanes_equals_byte_by_byte(length: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(length)
    assert crc32c(data) == tensor_bundle._crc_bytes(data, 0xFFFFFFFF) ^ 0xFFFFFFFF


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
def test_a_flipped_bit_in_the_index_is_refused_or_harmless(shared: Path, position: int, bit: int) -> None:
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


def test_flipped_and_truncated_data_are_refused(folder: Path) -> None:
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
