"""Models by name, against a stand-in of the Hub: what is fetched, what is refused, what a run remembers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

import encoderlab
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.deploy.serve.service import Service
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import checksums, huggingface, lengths, places
from encoderlab.interchange.load import load, load_pair
from encoderlab.model import Model, build
from tests.hub import TOKEN, Handler, Hub, hub_of_this_process
from tests.interchange.tiny_models import same_weights
from tests.tasks.runs.test_apply import ready, saved
from tests.terminal import answer, messages

NAME = "lab/tiny"
FURTHER = ("export.json", "model.pt2", "sentence_bert_config.json", "2_Normalize/config.json", "onnx/model.onnx")
MODULES = {"": "Transformer", "1_Pooling": "Pooling"}
SIZE = {"encoder.layers": 1, "encoder.width": 16, "encoder.heads": 2, "encoder.ff_width": 32}


def tiny(seed: int = 0) -> Model:
    texts = ["the cat sat on the mat and the dog ran under the tree"] * 4
    return build("bert-tiny", seed=seed, tokenizer=Tokenizer.train("wordpiece", texts, 48), **SIZE).eval()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The stand-in with one model, as this process's Hub, with an empty cache and no token."""
    with hub_of_this_process(monkeypatch, tmp_path) as found:
        monkeypatch.setattr(places, "_COMMITS", {})
        monkeypatch.chdir(tmp_path)
        huggingface.save(tiny(), tmp_path / "made")
        found.add(NAME, tmp_path / "made")
        yield found


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another state of the model."""
    huggingface.save(tiny(seed=1), tmp_path / "other")
    return tmp_path / "other"


def refused(error: type[Exception], part: str, name: str = NAME) -> str:
    with pytest.raises(error) as caught:
        load(name)
    text = str(caught.value)
    assert part in text and text.startswith(name) and "\n" not in text
    return text


def test_a_name_is_the_model_of_the_hub(hub: Hub) -> None:
    assert same_weights(encoderlab.load(NAME), load("made"))
    assert load_pair(NAME)[1] is None and load(NAME).tokenizer is not None
    weights = [
        line
        for line in hub.asked
        if line == f"GET /{NAME}/resolve/{hub.repositories[NAME].revisions['main']}/model.safetensors"
    ]
    assert len(weights) == 1  # the others came from the cache


def test_only_data_is_fetched_and_safetensors_alone_of_the_weights(hub: Hub, tmp_path: Path) -> None:
    made = tmp_path / "made"
    for name in ("pytorch_model.bin", "modeling_tiny.py", "training_args.pt", "model.onnx", "onnx/model.onnx"):
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_bytes(b"not to be fetched")
    hub.add(NAME, made)
    load(NAME)
    fetched = {line.rsplit("/", 1)[1] for line in hub.asked if "/resolve/" in line}
    assert fetched == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "SHA256SUMS",
    }  # fmt: skip
    (made / "model.safetensors").unlink()
    hub.add(NAME, made)
    assert "pytorch_model.bin is a pickle, which is never fetched" in refused(DataError, "has no model.safetensors")
    assert not any(".bin" in line or ".py" in line for line in hub.asked)


def test_settings_of_sentence_transformers_come_along(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a server would read longer texts than the folder says, and would know no prompt."""
    kinds = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in MODULES.items()]
    settings = {
        "modules.json": kinds,
        "1_Pooling/config.json": {"pooling_mode_cls_token": True},
        "config_sentence_transformers.json": {"prompts": {"query": "the cat "}, "default_prompt_name": "query"},
        "sentence_xlm-roberta_config.json": {"max_seq_length": 7},
    }
    (tmp_path / "made" / "1_Pooling").mkdir()
    for name, value in settings.items():
        (tmp_path / "made" / name).write_text(json.dumps(value))
    hub.add(NAME, tmp_path / "made")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    found, _ = answer(capsys, "push", NAME, "me/copy")
    assert {*settings} < {*found["files"]}
    for format in ("encoderlab", "hf"):
        answer(capsys, "convert", NAME, format, "--to", format)
    for place in (NAME, "me/copy", "encoderlab", "hf"):
        service = Service.of(Path(place))
        assert (service.pooling, service.normalize, service.longest) == ("first", False, 7)
        assert service.prompts.before(None) == "the cat "
    dense = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    Path("hf/modules.json").write_text(json.dumps([*kinds, dense]))
    Path("hf/SHA256SUMS").unlink(missing_ok=True)
    assert "module Dense is not implemented; the new folder has neither" in answer(capsys, "convert", "hf", "plain")[1]
    assert not {*settings} & {*os.listdir("plain")}
    assert (Service.of(Path("plain")).pooling, lengths.of_tokenizer(Path("plain"))) == ("mean", 7)
    kinds[1]["path"] = "../elsewhere"
    Path("encoderlab/modules.json").write_text(json.dumps(kinds))
    Path("encoderlab/SHA256SUMS").unlink()
    assert "modules.json: is damaged" in messages(capsys, 3, "convert", "encoderlab", "other")


def test_an_exported_folder_is_read_although_not_all_of_it_is_fetched(hub: Hub, tmp_path: Path) -> None:
    made = tmp_path / "made"
    for name in FURTHER:
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text("{}")
    checksums.write(made)
    hub.add(NAME, made)
    folder = places.resolve(NAME)
    assert same_weights(load(NAME), tiny()) and not (folder / "model.pt2").exists()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="tokenizer.json: is missing, although it is listed"):
        load(folder)


def in_shards(made: Path, *files: str) -> list[str]:
    """Cut the weights of a folder into ``files``, with an index."""
    from safetensors.torch import load_file, save_file

    (made / "SHA256SUMS").unlink()
    tensors = load_file(made / "model.safetensors")
    (made / "model.safetensors").unlink()
    where = {name: files[number % len(files)] for number, name in enumerate(tensors)}
    for file in files:
        save_file({name: tensors[name] for name in tensors if where[name] == file}, made / file)
    (made / INDEX).write_text(json.dumps({"weight_map": where}))
    return sorted(files)


INDEX = "model.safetensors.index.json"
SHARDS = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]


@pytest.mark.parametrize("files", [SHARDS, ["first.safetensors", "second.safetensors"]])
def test_weights_in_shards(hub: Hub, tmp_path: Path, unrecorded: None, monkeypatch, files: list[str]) -> None:
    in_shards(tmp_path / "made", *files)
    (tmp_path / "made" / "model-00001-of-00009.safetensors").write_bytes(b"of an earlier upload")
    hub.add("lab/shards", tmp_path / "made")
    assert same_weights(load("lab/shards"), load("made"))
    fetched = {line.rsplit("/", 1)[1] for line in hub.asked if "/resolve/" in line and line.endswith(".safetensors")}
    assert fetched == set(files)  # those that the index names
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert same_weights(load("lab/shards"), load("made"))


def test_shards_that_are_missing_are_named(hub: Hub, tmp_path: Path, unrecorded: None, monkeypatch) -> None:
    made = tmp_path / "made"
    in_shards(made, *SHARDS)
    (made / SHARDS[1]).unlink()
    hub.add("lab/shards", made)
    refused(DataError, f"lacks {SHARDS[1]}, which its {INDEX} names", "lab/shards")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(DataError, "HF_HUB_OFFLINE forbids fetching it", "lab/shards")


@pytest.mark.parametrize(
    "index",
    ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../b.safetensors"}}',
     '{"weight_map": {"a": "b.bin"}}'],
)  # fmt: skip
def test_an_index_that_names_no_files_of_weights_is_named(hub: Hub, tmp_path: Path, index: str) -> None:
    made = tmp_path / "made"
    in_shards(made, *SHARDS)
    (made / INDEX).write_text(index)
    hub.add("lab/shards", made)
    refused(DataError, f"its {INDEX} does not say which files have the weights", "lab/shards")
    assert not any("b.bin" in line or "/b.safetensors" in line for line in hub.asked)


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: Hub, tmp_path: Path, other: Path) -> None:
    first = hub.repositories[NAME].revisions["main"]
    hub.add(NAME, other)
    hub.repositories[NAME].revisions["refs/pr/1"] = hub.repositories[NAME].revisions["v1"] = first
    assert same_weights(load(NAME), load(other))
    for revision in (first, "v1", "refs/pr/1"):
        assert same_weights(load(f"{NAME}@{revision}"), load("made"))
    refused(DataError, "has no such revision", f"{NAME}@v2")


@pytest.mark.parametrize(
    ("name", "kind", "error", "part"),
    [
        ("lab/none", {}, DataError, "no such model, or it is private; check the name, or log in with: hf auth login"),
        ("lab/private", {"private": True}, DataError, "or it is private"),
        ("lab/gated", {"gated": True}, ConfigError, "is gated; accept its terms at http"),
        ("lab/a..b", {}, ConfigError, "is not a model name"),
    ],
)
def test_what_the_hub_does_not_give(hub: Hub, monkeypatch, name, kind, error, part) -> None:
    if kind:
        hub.add(name, Path("made"), **kind)
    refused(error, part, name)
    if kind:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        assert same_weights(load(name), load("made"))


def test_a_model_of_an_unknown_type_is_refused_before_its_weights_are_fetched(hub: Hub) -> None:
    config = Path("made/config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "gpt2"}))
    hub.add("lab/gpt", Path("made"))
    refused(DataError, "model_type 'gpt2' is not implemented; known are bert", "lab/gpt")
    assert not any(line.endswith("model.safetensors") for line in hub.asked)


def test_a_download_that_breaks_off_goes_on(hub: Hub) -> None:
    hub.cut = 2
    assert same_weights(load(NAME), load("made"))
    assert sum("GET" in line and line.endswith("model.safetensors") for line in hub.asked) == 3


def test_a_download_that_never_ends_leaves_no_model(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.damage = lambda name, data: data[:-8] if name == "model.safetensors" else data
    refused(DataError, "model.safetensors could not be fetched from the Hub")
    hub.damage = lambda name, data: data
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(DataError, "HF_HUB_OFFLINE forbids fetching it")  # half a model is none
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert same_weights(load(NAME), load("made"))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_with_another_checksum_is_deleted(hub: Hub, name: str) -> None:
    hub.damage = lambda file, data: data[:-1] + bytes([data[-1] ^ 1]) if file == name else data
    refused(DataError, f"{name} arrived damaged")
    hub.damage = lambda file, data: data
    assert same_weights(load(NAME), load("made"))


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_that_has_changed_in_the_cache_is_refused(
    hub: Hub, monkeypatch, unrecorded: None, name, offline
) -> None:
    path = places.resolve(NAME) / name
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.resolve().write_bytes(data)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(DataError, match=f"{name}: has changed since it was fetched .*; delete {path.resolve()} to"):
        load(NAME)
    path.resolve().unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert same_weights(load(NAME), load("made"))


def test_without_network_the_cache_is_read_and_a_line_says_so(hub: Hub, monkeypatch, caplog) -> None:
    hub.status = 503
    refused(DataError, "could not be fetched from the Hub (")
    hub.status = None
    model = load(NAME)
    hub.status = 503
    assert same_weights(load(NAME), model)
    assert "the Hub cannot be reached" in caplog.text and f"the copy of {NAME} at " in caplog.text
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    assert same_weights(load(NAME), model)
    refused(DataError, "check the network and HF_ENDPOINT", "lab/other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert same_weights(load(NAME), model)


def test_a_network_that_asks_for_a_login_is_no_network(hub: Hub, monkeypatch, caplog) -> None:
    """Its page comes instead of the Hub's answer."""
    model = load(NAME)
    monkeypatch.setattr(Handler, "about", lambda *given: b"<html>Welcome to our hotel</html>")
    assert same_weights(load(NAME), model) and "the Hub cannot be reached" in caplog.text


def test_a_cache_that_cannot_be_written_is_named(hub: Hub, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "taken"))
    said = refused(DataError, "config.json could not be written to the cache of models (Not a directory: ")
    assert said.endswith(f"{tmp_path / 'taken'}); make room there, or set HF_HOME to another folder")


def test_a_folder_of_that_name_wins(hub: Hub, tmp_path: Path, other: Path, caplog, monkeypatch) -> None:
    shutil.copytree(other, tmp_path / NAME)
    places._say_folder_wins.cache_clear()
    with caplog.at_level("INFO", "encoderlab"):
        assert same_weights(load(NAME), load(other))
    assert f"{NAME}: the folder of that name is read, not the model of the Hugging Face Hub" in caplog.text
    assert not hub.asked
    caplog.clear()
    tiny().save(tmp_path / "runs" / "own")  # no line about what nobody could mean otherwise
    with caplog.at_level("INFO", "encoderlab"):
        load("runs/own")
    assert "the folder of that name" not in caplog.text
    assert same_weights(load(f"{NAME}@main"), load("made"))
    with pytest.raises(
        DataError, match="lab/nothing: no such file or folder.*on the Hugging Face Hub write lab/nothing@main"
    ):
        load("lab/nothing")
    assert not any("nothing" in line for line in hub.asked)


def test_models_that_come_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places, "PRETRAINED", tmp_path / "pretrained")
    with pytest.raises(DataError, match="no model of that name is installed .none comes with encoderlab"):
        load("small-en")
    tiny().save(tmp_path / "pretrained" / "small-en")
    assert same_weights(encoderlab.load("small-en"), load(tmp_path / "pretrained" / "small-en"))
    with pytest.raises(DataError, match="small-zh: no such file.*those that come with encoderlab are small-en"):
        load("small-zh")
    tiny(seed=1).save(tmp_path / "small-en")
    places._say_folder_wins.cache_clear()
    with caplog.at_level("INFO", "encoderlab"):
        assert same_weights(load("small-en"), load(tmp_path / "small-en"))
    assert "small-en: the folder of that name is read, not the model that comes with encoderlab" in caplog.text


def test_the_wheel_holds_the_models_of_the_package(tmp_path: Path) -> None:
    """The build takes every file in the package's folder, whatever its kind."""
    hatchling = pytest.importorskip("hatchling.builders.wheel")
    root = Path(places.__file__).parents[3]
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "src/encoderlab/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, tmp_path / name)
    model = tmp_path / "src" / "encoderlab" / "pretrained" / "small-en"
    tiny().save(model)
    held = {file.distribution_path for file in hatchling.WheelBuilder(str(tmp_path)).recurse_included_files()}
    assert {f"encoderlab/pretrained/small-en/{path.name}" for path in model.iterdir()} <= held


def test_every_verb_takes_a_name(hub: Hub, tmp_path: Path, capsys) -> None:
    assert answer(capsys, "encode", NAME, "the cat")[0]["texts"] == 1
    assert answer(capsys, "fill-mask", NAME, "the [MASK]")[0]["model"] == NAME
    assert answer(capsys, "describe", NAME)[0]["name"] == NAME
    assert answer(capsys, "convert", NAME, tmp_path / "ours")[0]["to"] == "encoderlab"
    assert same_weights(load(tmp_path / "ours"), load("made"))
    (tmp_path / "pairs.txt").write_text("the cat sat\nsat the cat\n")
    assert answer(capsys, "minimal-pairs", NAME, "pairs.txt")[0]["pairs"] == 1
    assert "has no task head" in messages(capsys, 2, "predict", NAME, "the cat")
    assert "no such model" in messages(capsys, 3, "encode", "lab/none", "the cat")


ROWS = "text,label\n" + "".join(f"the {'cat' if i % 2 else 'dog'} {i},{i % 2}\n" for i in range(40))


def test_a_run_remembers_the_commit_it_began_with(hub: Hub, tmp_path: Path, other: Path, capsys) -> None:
    first = hub.repositories[NAME].revisions["main"]
    words = "the cat sat on mat and dog ran under tree".split()
    texts = [" ".join(words[(7 * i + 3 * j + i * j) % len(words)] for j in range(30)) for i in range(60)]
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    corpus = ["corpus", "build", "text.txt", "--out", "corpus", "--tokenizer", NAME]
    answer(capsys, *corpus)
    run = ["pretrain", "bert-tiny", "--corpus", "corpus", "--out", "run", "--steps", "2", "--init-from", NAME]
    run += [word for key, value in SIZE.items() for word in ("--set", f"model.{key}={value}")]
    run += ["--set", "phases=[{length: 16, rows: 4}]", "--set", "checkpoints.steps=1"]
    answer(capsys, *run)
    assert json.loads((tmp_path / "run/recipe.json").read_text())["init_from"] == f"{NAME}@{first}"
    assert json.loads((tmp_path / "run/provenance.json").read_text())["sessions"][0]["models"][NAME] == first
    weights = load("run")
    (tmp_path / "reviews.csv").write_text(ROWS)
    tune = ["finetune", "reviews.csv", "--model", NAME, "--out", "tuned", "--seeds", "1", "--epochs", "1"]
    answer(capsys, *tune)
    hub.add(NAME, other)
    shutil.rmtree(tmp_path / "run/checkpoints")
    shutil.rmtree(tmp_path / "run/model")
    _, said = answer(capsys, *run)  # from the start, and of the same commit
    assert same_weights(load("run"), weights)
    _, said = answer(capsys, *tune)  # finished: read, and not another run's
    assert f"is read at {first}, the commit that tuned began with" in said
    elsewhere = [f"{NAME}@{hub.repositories[NAME].revisions['main']}" if word == NAME else word for word in run]
    assert "another recipe" in messages(capsys, 2, *elsewhere)
    shutil.rmtree(tmp_path / "cache")
    hub.status = 503
    answer(capsys, *run)  # a run that has checkpoints needs no model of the Hub


def test_push(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    model = tiny(seed=2)
    model.save("model")
    assert "uploading needs a token" in messages(capsys, 2, "push", "model", "me/new")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "expected the model's name on the Hub as org/name" in messages(capsys, 2, "push", "model", "new")
    assert hub.asked == []
    found, _ = answer(capsys, "push", "model", "me/new", "--private")
    assert found["commit"].startswith(hub.endpoint) and hub.repositories["me/new"].private
    assert same_weights(load("me/new"), model)
    files = hub.repositories["me/new"].commits[hub.repositories["me/new"].revisions["main"]]
    assert {*found["files"], ".gitattributes"} == set(files)
    assert files["README.md"].startswith(b"---\nlibrary_name: transformers\npipeline_tag: fill-mask\n---\n")
    huggingface_model = huggingface.load(Path(huggingface_hub.snapshot_download("me/new")))
    assert torch.equal(huggingface_model.words, model.words)
    for part in ("generator", "discriminator"):
        model.save(Path("pair", part))
    assert "run: encoderlab convert pair OUT, and push" in messages(capsys, 2, "push", "pair", "me/pair")
    (tmp_path / "model" / "README.md").write_text("# My own card\n")
    answer(capsys, "push", "model", "me/open")
    repository = hub.repositories["me/open"]
    assert repository.commits[repository.revisions["main"]]["README.md"] == b"# My own card\n"
    assert not repository.private
    load("me/open")  # with the checksum of that card
    asked = len(hub.asked)
    assert "is public, so nothing was uploaded" in messages(capsys, 2, "push", "model", "me/open", "--private")
    assert not any("commit" in line or "lfs" in line for line in hub.asked[asked:])
    hub.refuses = "them"
    assert "the Hub refuses the upload" in messages(capsys, 2, "push", "model", "them/new")
    hub.status = 500
    assert "could not be uploaded to the Hub" in messages(capsys, 3, "push", "model", "me/new")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids uploading" in messages(capsys, 2, "push", "model", "me/new")


def test_what_the_hub_does_not_get_of_a_task_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The pushed model has no threshold, so it may give other labels than the folder."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    saved(ready("single")[0], Path("model"))
    said = answer(capsys, "push", "model", "me/tuned")[1]
    assert "transformers cannot store its task" in said and "model/task.json" in said


def test_environment_of_a_process(hub: Hub, tmp_path: Path) -> None:
    """The library's own variables are read: HF_ENDPOINT, HF_HOME, HF_TOKEN."""
    hub.repositories[NAME].private = True
    environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
    words = [sys.executable, "-c", f"from encoderlab.interchange.places import resolve; print(resolve({NAME!r}))"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert same_weights(load(done.stdout.strip()), load("made"))
    assert done.stdout.startswith(str(tmp_path / "home"))
