"""Chinese from raw text to a filled mask: words of a segmenter over the tokens of bert-base-chinese."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from encoderlab import recipes
from encoderlab.batches.corrupt import Corruptor
from encoderlab.batches.loader import Loader
from encoderlab.batches.pack import SingleDocuments
from encoderlab.corpus.build import BuildSettings, GivenTokenizer, build_corpus
from encoderlab.corpus.segment import load_segmenter
from encoderlab.corpus.shards import Corpus
from encoderlab.errors import MissingDependency
from encoderlab.interchange.load import load
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.train.corpus_data import row_framing
from encoderlab.train.pretraining import pretrain
from encoderlab.train.recipe import Budget, Evaluation, Execution, Phase

SENTENCE = "生活的真谛是[MASK]。"


@pytest.fixture(scope="module")
def text(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 60 documents of news and encyclopedia text, and one sentence that is known."""
    source = shared / "data" / "pretrain_zh" / "CLUECorpusSmall_sample.txt.gz"
    with gzip.open(source, "rt", encoding="utf-8") as file:
        documents = file.read(60_000).split("\n\n")[:60]
    place = tmp_path_factory.mktemp("chinese") / "text.txt"
    place.write_text("生活的真谛是什么。\n\n" + "\n\n".join(documents), encoding="utf-8")
    return place


def build(text: Path, shared: Path, out: Path, segmenter: str) -> Path:
    vocabulary = GivenTokenizer(path=str(shared / "data" / "vocab" / "bert-base-chinese" / "vocab.txt"), family="bert")
    build_corpus(BuildSettings(sources=(str(text),), tokenizer=vocabulary, segmenter=segmenter), out)
    return out


@pytest.fixture(scope="module")
def corpus(text: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("rjieba", reason="the segmenter of encoderlab[zh] is not installed")
    return build(text, shared, tmp_path_factory.mktemp("words") / "corpus", "rjieba")


def words(corpus: Path) -> list[list[str]]:
    """The words of each document as the corpus marks them."""
    text = Corpus(corpus)
    tokenizer = text.tokenizer()
    found = []
    for i in range(text.num_documents):
        document = text.document(i)
        tokens = np.array([tokenizer.token(int(token)) for token in document.ids], object)
        found.append(["".join(part) for part in np.split(tokens, np.flatnonzero(document.word_starts))[1:]])
    return found


def test_words_come_from_the_segmenter(corpus: Path) -> None:
    documents = words(corpus)
    known = [found for found in documents if "".join(found).startswith("生活的真谛")]
    assert known == [["生活", "的", "真谛", "是", "什么", "。"]]
    sizes = [len(word) for found in documents for word in found if not word.isascii()]
    assert 1.3 < float(np.mean(sizes)) < 2.0, "characters per word of running text"


@pytest.mark.parametrize("name", ["erlangshen-deberta-v2-mini", "bert-wwm-chinese-mini"])
def test_whole_words_are_masked(corpus: Path, name: str) -> None:
    settings = recipes.recipe(name).objective
    assert isinstance(settings, MLMSettings)
    tokenizer = Corpus(corpus).tokenizer()
    framing = row_framing(tokenizer)
    loader = Loader(Corpus(corpus), SingleDocuments(), 64, framing=framing, seed=1, batch_rows=8, epochs=1)
    corruptor = Corruptor(
        replace(settings.masking, most=None),
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.special.mask,
        special_ids=tokenizer.special.all_special,
    )
    partial = whole = longer = 0
    for rows in loader:
        for row, hidden in zip(rows, corruptor(rows, 1), strict=True):
            chosen = np.zeros(len(row), bool)
            chosen[hidden.positions] = True
            assert not (chosen & row.special).any()
            word = np.cumsum(row.word_starts | row.special)
            for number in np.unique(word[chosen]):
                inside = chosen[word == number]
                partial += int(not inside.all())
                whole += int(inside.all())
                longer += int(inside.all() and len(inside) > 1)
    assert partial == 0 and whole > 50 and longer > 20


@pytest.mark.parametrize("name", ["erlangshen-deberta-v2-mini", "bert-wwm-chinese-mini"])
def test_trains_and_fills_a_mask(corpus: Path, name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    recipe = replace(
        recipes.recipe(name),
        budget=Budget(amount=4),
        phases=(Phase(length=64, rows=8),),
        evaluation=Evaluation(every=100, rows=8),
        execution=Execution(device="cpu"),
        log_every=1,
    )
    pretrain(recipe, corpus, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, last = (line["losses"]["mlm"] for line in (lines[0], lines[3]))
    assert last < first < 1.05 * np.log(21128)
    (guesses,) = load(str(tmp_path / "run" / "model")).fill_mask(SENTENCE, top=5)
    assert len(guesses) == 5


def test_characters_on_request(text: Path, shared: Path, tmp_path: Path) -> None:
    """Then n-grams of words are n-grams of characters."""
    corpus = build(text, shared, tmp_path / "corpus", "characters")
    known = next(found for found in words(corpus) if "".join(found).startswith("生活的真谛"))
    assert known == list("生活的真谛是什么。")


def test_without_the_segmenter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(MissingDependency, match=r"pip install 'encoderlab\[zh\]'"):
        load_segmenter("rjieba")
