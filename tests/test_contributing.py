"""The worked examples of CONTRIBUTING.md: their code runs, and the files and names that they point to exist."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import encoderlab
from encoderlab import models
from encoderlab.batches.rows import Row
from encoderlab.config import from_dict, to_dict
from encoderlab.measure.describe import facts
from encoderlab.model import Model, build
from encoderlab.models.base import Family, ModelConfig, resized
from encoderlab.nn.noise import Noise
from encoderlab.objectives.mlm import MLM, MLMSettings
from encoderlab.objectives.vocabulary import Vocabulary
from tests.tasks.tiny import model as tiny

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Worked examples\n")[1].split("\n## ")[0]


def code_of(section: str) -> str:
    """The Python block below a heading."""
    found = re.search(rf"^### {section}\n.*?^```python\n(.*?)^```", TEXT, re.S | re.M)
    assert found is not None, section
    return found[1]


@pytest.fixture
def gale(monkeypatch: pytest.MonkeyPatch) -> Family:
    """The family of the example, in the tables as if its module stood in ``models/``."""
    module = ModuleType("encoderlab.models.gale")
    exec(compile(code_of("A new family of known parts"), "models/gale.py", "exec"), module.__dict__)
    family: Family = module.FAMILY  # type: ignore[attr-defined]
    monkeypatch.setitem(models.FAMILIES, family.name, family)
    for name, config in family.sizes.items():
        monkeypatch.setitem(models.SIZES, name, config)
    return family


def test_a_size_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.bert, "SIZES", dict(models.bert.SIZES))
    exec(code_of("A new size of a known family"), {})
    config = models.bert.SIZES["bert-nano"]
    model = Model(resized(config, vocab=50)).initialize(0).eval()
    assert model.encoder(torch.arange(6)[None]).last.shape == (1, 6, 64)


def test_a_family_is_one_file(gale: Family) -> None:
    config = models.config("gale-tiny")
    assert from_dict(ModelConfig, json.loads(json.dumps(to_dict(config)))) == config
    told = facts("gale-tiny", config, length=128, rows=1)
    assert told["about"].startswith("Gale:") and told["flops"]["forward"].keys() >= {"positions", "convolution"}
    model = build("gale-tiny", **{"encoder.vocab": 60})
    ids = torch.arange(24).view(2, 12)
    doc = torch.zeros(2, 12, dtype=torch.int32)
    doc[1, 7:] = 1
    with torch.no_grad():
        packed = model.eval().encoder(ids, doc=doc).last
        torch.testing.assert_close(packed[1:, 7:], model.encoder(ids[1:, 7:]).last, atol=2e-5, rtol=1e-5)


def test_a_family_without_a_recipe_leaves_the_others_alone() -> None:
    code = code_of("A new family of known parts") + (
        "\nfrom encoderlab import models\nmodels.SIZES.update(SIZES)\n"
        "from encoderlab.recipes import RECIPES\nassert 'bert-tiny' in RECIPES and 'gale-tiny' not in RECIPES\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_family_trains(gale: Family) -> None:
    model = build("gale-tiny", **{"encoder.vocab": 60})
    objective = MLM(model, MLMSettings(), Vocabulary(size=60, pad=0, mask=4, special=(0, 1, 2, 3, 4))).train()
    rng = np.random.default_rng(0)
    plain = {"doc": np.zeros(12, np.int32), "segments": np.zeros(12, np.int8), "special": np.zeros(12, bool)}
    rows = [
        Row(ids=rng.integers(5, 60, 12), word_starts=np.ones(12, bool), labels={}, key=(0, 0, i), number=i, **plain)
        for i in range(4)
    ]
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for step in range(8):
        batch = objective.make_batch(rows, seed=1)
        term = objective(batch, noise=Noise(1, step, batch.rows))[0]["mlm"]
        losses.append(float(term.sum.detach()) / term.count)
        optimizer.zero_grad()
        (term.sum / term.count).backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.5


def test_a_form_is_one_file_and_one_word(tmp_path: Path) -> None:
    """In a copy of the sources: inferred, trained, scored and predicted from the command line."""
    copy = tmp_path / "encoderlab"
    shutil.copytree(Path(encoderlab.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "tasks/forms/ordinal.py").write_text(code_of("A new form of task"))
    table = copy / "tasks/forms/table.py"
    text = table.read_text()
    assert "RegressionForm, " in text
    word = "from encoderlab.tasks.forms.ordinal import OrdinalForm\nfrom encoderlab.tasks.forms.regression"
    text = text.replace("from encoderlab.tasks.forms.regression", word)
    table.write_text(text.replace("RegressionForm, ", "RegressionForm, OrdinalForm, "))
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    words = ("awful", "bad", "good", "fine")
    for path, repeats in ((train, 24), (dev, 4)):
        pairs = [(i, word, step) for i in range(repeats) for step, word in enumerate(words)]
        rows = [f"the film {'very ' * (i % 3)}is {word},{step}" for i, word, step in pairs]
        path.write_text("text,label\n" + "\n".join(rows) + "\n")
    tiny().save(tmp_path / "tiny")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def run(*words: object) -> dict:
        command = [sys.executable, "-m", "encoderlab", "--json", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    settings = ("--set", "optim.lr=3e-3", "--set", "form.max_length=24", "--set", "batch=8", "--epochs", "8")
    out = run(
        "finetune",
        train,
        "--dev",
        dev,
        "--form",
        "ordinal",
        "--model",
        "tiny",
        "--out",
        "run",
        "--seeds",
        "1",
        *settings,
    )
    (found,) = out["tasks"].values()
    assert found["metric"] == "closeness" and found["scores"]["dev"]["closeness"]["mean"] > 0.9
    assert found["recipe"]["form"]["kind"] == "ordinal"
    assert run("evaluate", "run", dev)["scores"] and run("predict", "run", "the film is good")["predictions"]


def test_paths_and_names_exist() -> None:
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.S)
    words = [word for word in re.findall(r"`([^`\s]+)`", prose) if not re.search("NAME|gale|ordinal", word)]
    paths = [word for word in words if word.endswith(".py") or "/" in word]
    for path in paths:
        base = ROOT if path.startswith(("src/", "tests/")) else ROOT / "src/encoderlab"
        assert (base / path).exists(), path
    names = [word for word in words if re.fullmatch(r"[a-z_]+(\.[a-z_]+)*\.[A-Za-z_]+", word) and word not in paths]
    assert len(paths) >= 10 and len(names) >= 10
    for name in names:
        module, _, attribute = f"encoderlab.{name}".rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
