"""What people do wrong, on the command line: one clear line, the right exit code, no traceback, nothing lost."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from encoderlab.cli import main

TEXT = "The first sentence of a paragraph. The second one follows it closely. A third one ends it.\n\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a small corpus, a small run and a fine-tuned model, made once."""
    folder = tmp_path_factory.mktemp("bad")
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()
    text = "".join(
        " ".join(f"{words[(n * k) % 10]} {words[(n + k) % 10]} number {n} is said to be {k}." for k in range(1, 9))
        + "\n\n"
        for n in range(300)
    )
    (folder / "text.txt").write_text(text)
    rows = [f"{words[n % 10]} {words[n % 7]} is {n},{'even' if n % 2 == 0 else 'odd'}" for n in range(60)]
    (folder / "labels.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    assert run(folder, "corpus build text.txt --out corpus --vocab-size 200 --validation 0.05") == 0
    small = "--set phases.0.rows=4 --set phases.0.length=32 --set evaluation.rows=8"
    assert run(folder, f"pretrain bert-tiny --corpus corpus --out run --steps 3 {small}") == 0
    assert run(folder, "finetune labels.csv --model run --out tuned --seeds 1 --epochs 1") == 0
    return folder


def run(folder: Path, command: str) -> int:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return main(command.split())
    finally:
        os.chdir(before)


def prepare(folder: Path) -> None:
    """Files that something is wrong with, and no output of an earlier command."""
    shutil.rmtree(folder / "o", ignore_errors=True)
    (folder / "empty.txt").write_text("")
    (folder / "blank.txt").write_text("\n \n\n")
    (folder / "nothing").mkdir(exist_ok=True)
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 500)
    (folder / "latin.txt").write_bytes("caf\xe9 ".encode("latin-1") * 50)
    (folder / "short.txt").write_text(TEXT)
    (folder / "cut.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 500)[:80])
    (folder / "bad.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    (folder / "occupied").mkdir(exist_ok=True)
    (folder / "occupied" / "thesis.doc").write_text("precious")
    (folder / "unseen.csv").write_text("text,label\nalpha is 2,neither\n")
    (folder / "one_label.csv").write_text("text,label\n" + "".join(f"alpha {n},same\n" for n in range(99)))
    (folder / "no_text.csv").write_text("height,width,depth\n1,2,3\n")
    (folder / "strange.yaml").write_text("optim: {lrr: 1}\n")


SMALL = "--set phases.0.rows=4 --set phases.0.length=32 --set evaluation.rows=8"
CASES = [
    ("corpus build nowhere.txt --out o", 3, "nowhere.txt"),
    ("corpus build empty.txt --out o", 3, "empty.txt"),
    ("corpus build blank.txt --out o", 3, "text"),
    ("corpus build nothing --out o", 3, "nothing"),
    ("corpus build binary.txt --out o", 3, "binary.txt"),
    ("corpus build latin.txt --out o --invalid-utf8 refuse", 3, "latin.txt"),
    ("corpus build cut.txt.gz --out o", 3, "cut.txt.gz"),
    ("corpus build bad.jsonl --out o", 3, "bad.jsonl"),
    ("corpus build text.txt --out o --vocab-size 100000", 2, "100000"),
    ("corpus build text.txt --out occupied --vocab-size 200", 2, "occupied"),
    ("corpus build text.txt --out o --tokenizer nowhere", 3, "nowhere"),
    ("corpus build text.txt --out o --tokenizer wordpeice", 3, "wordpeice"),
    ("corpus inspect run", 3, "run"),
    ("pretrain bert-tniy --corpus corpus --out o", 2, "did you mean 'bert-tiny'"),
    ("pretrain bert-tiny", 2, "--corpus"),
    ("pretrain bert-tiny --corpus nowhere --out o", 3, "nowhere"),
    (f"pretrain bert-tiny --corpus corpus --out occupied --steps 2 {SMALL}", 2, "occupied"),
    (f"pretrain bert-tiny --corpus corpus --out run --steps 3 {SMALL} --set optim.lr=1e-5", 2, "optim.lr"),
    ("pretrain bert-tiny --corpus corpus --out o --set optim.lrr=1", 2, "did you mean 'optim.lr'"),
    ("pretrain bert-tiny --corpus corpus --out o --set optim.lr=fast", 2, "optim.lr"),
    ("pretrain bert-tiny --corpus corpus --out o --config strange.yaml", 2, "strange.yaml"),
    ("pretrain bert-tiny --corpus corpus --out o --set model.encoder.heads=3", 2, "128"),
    ("pretrain bert-tiny --corpus corpus --out o --set phases.0.length=4096", 2, "512"),
    ("pretrain bert-tiny --corpus corpus --out o --steps 5 --tokens 7", 2, "one budget"),
    ("pretrain bert-tiny --corpus corpus --out o --steps 0", 2, "--steps is 0; give a number above 0"),
    (
        f"pretrain bert-tiny --corpus corpus --out diverged --steps 40 {SMALL} --set optim.lr=1e12 --set clip=null",
        6,
        "lr",
    ),
    ("finetune nowhere.csv --model run --out o", 2, "nowhere"),
    ("finetune sst-3 --model run --out o", 2, "did you mean"),
    ("finetune sst2 --model run --out o", 2, "--data"),
    ("finetune labels.csv --model nowhere --out o", 3, "nowhere"),
    ("finetune one_label.csv --model run --out o", 3, "only one label"),
    ("finetune no_text.csv --model run --out o", 3, "--text"),
    ("finetune labels.csv --model run --out o --pair second", 2, "second"),
    ("finetune labels.csv --model run --out o --protocol brt", 2, "did you mean 'bert'"),
    ("finetune labels.csv --model run --out o --grid lr", 2, "--grid lr"),
    ("evaluate tuned unseen.csv", 3, "neither"),
    ("evaluate run labels.csv", 2, "fine-tune"),
    ("predict tuned nowhere.csv", 3, "nowhere.csv"),
    ("predict nowhere text", 3, "nowhere"),
    ("fill-mask run nothing-hidden-here", 2, "[MASK]"),
    ("fill-mask tuned/runs/seed-1 a[MASK]b", 2, "head"),
    ("encode run", 2, "--file"),
    ("encode run --file empty.txt", 3, "empty.txt"),
    ("describe bert-huge", 2, "bert-huge"),
    ("report nowhere", 3, "nowhere: no such folder"),
    ("quickstart --budget soon", 2, "5m"),
]


@pytest.mark.parametrize(("command", "code", "words"), CASES, ids=[case[0][:60] for case in CASES])
def test_one_line_says_what_is_wrong(command, code, words, place, capfd):
    prepare(place)
    capfd.readouterr()
    assert run(place, command) == code, capfd.readouterr().err
    out, err = capfd.readouterr()
    line = err.splitlines()[-1]
    assert line.startswith("error: ") and words in line, line
    assert "Traceback" not in err and "Warning:" not in err
    assert (place / "occupied" / "thesis.doc").read_text() == "precious"
    assert not (place / "o").exists() or not any((place / "o").rglob("*.safetensors"))


def test_errors_are_json_where_json_is_asked_for(place, capfd):
    assert run(place, "fill-mask run nothing --json") == 2
    found = json.loads(capfd.readouterr().out)
    assert found["exit_code"] == 2 and "[MASK]" in found["error"]
