"""The importance of heads, against finite differences of a plain mask; models without some heads, against that mask."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from encoderlab.batches.permutation import Targets
from encoderlab.deploy.sentence_transformers import vectors_of
from encoderlab.errors import ConfigError, DataError
from encoderlab.inspection.heads import attentions, check_heads, importance, least_important, losses, without_heads
from encoderlab.inspection.language import batches_of, objective_of
from encoderlab.inspection.pruning import OnTask, OnText
from encoderlab.interchange import huggingface
from encoderlab.interchange.load import load
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.architecture import Sharing
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.positions import RelativeShift
from encoderlab.nn.scope import Local
from encoderlab.objectives.base import Objective
from encoderlab.objectives.causal import Causal, CausalSettings
from encoderlab.objectives.hybrid import Hybrid, HybridSettings
from encoderlab.objectives.mlm import MLM, MLMSettings
from encoderlab.objectives.permutation import Permutation, PermutationSettings
from encoderlab.objectives.rtd import ReplacedTokenDetection, RTDSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.examples import Text
from encoderlab.tasks.forms.batching import pack
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs.predict import Predictor
from tests.objectives.conftest import VOCAB, make_rows
from tests.objectives.small import build, reading_the_token_before, small
from tests.tasks.tiny import WORDS, tokenizer, write_vector_settings
from tests.tasks.tiny import model as tiny
from tests.terminal import answer, messages

VOCABULARY = Vocabulary(size=VOCAB, pad=0, mask=4, special=(0, 1, 2, 3, 4), counts=np.arange(VOCAB))
PERMUTATION = PermutationSettings(targets=Targets(count=4), memory=0, reuse=0)


def of(kind: Callable, settings: object, name: str, **changes: object) -> Callable[[], tuple[Objective, Encoder]]:
    def make() -> tuple[Objective, Encoder]:
        model = build(name)
        if changes:
            model = Model(resized(model.config, **changes)).initialize(0)
        model = model.double()
        return kind(model, settings, VOCABULARY), model.encoder

    return make


def detection(name: str) -> tuple[Objective, Encoder]:
    generator, model = build(f"{name}-generator").double(), build(name, seed=1).double()
    return ReplacedTokenDetection(generator, model, RTDSettings(sharing="none"), VOCABULARY), model.encoder


def hybrid() -> tuple[Objective, Encoder]:
    model = reading_the_token_before("roberta-tiny").double()
    return Hybrid(model, HybridSettings(causal=0.5), VOCABULARY), model.encoder


CASES: dict[str, Callable[[], tuple[Objective, Encoder]]] = {
    **{
        name: of(MLM, MLMSettings(), f"{name}-tiny")
        for name in ("bert", "roberta", "albert", "distilbert", "deberta", "deberta-v2", "modernbert")
    },
    "layers that share attention": of(MLM, MLMSettings(), "bert-tiny", sharing=Sharing(parts=("attention",))),
    "local": of(MLM, MLMSettings(), "modernbert-tiny", local=Local(reach=2)),
    "electra": lambda: detection("electra-tiny"),
    "convbert": lambda: detection("convbert-tiny"),
    "deberta-v3": lambda: detection("deberta-v3-tiny"),
    "xlnet": of(Permutation, PERMUTATION, "xlnet-tiny"),
    "transformer-xl": of(Causal, CausalSettings(), "transformer-xl-tiny"),
    "hybrid": hybrid,
}


def loss_with_mask(objective: Objective, modules: Sequence, masks: np.ndarray, batch, counts) -> float:
    """The share of a batch in the loss, where what head h of layer n gives is multiplied with ``masks[n, h]``."""

    def hook(number: int) -> Callable:
        def multiply(module, given, found):
            factors = torch.from_numpy(masks[number]).repeat_interleave(module.head_width)
            return found[0] * factors, found[1]

        return multiply

    handles = [module.register_forward_hook(hook(number)) for number, module in enumerate(modules)]
    with torch.no_grad():
        terms, _ = objective.eval()(batch)
    for handle in handles:
        handle.remove()
    return sum(float(term.sum) * term.weight / counts[name] for name, term in terms.items())


def differences(objective: Objective, encoder: Encoder, batches: Sequence, shape: tuple[int, ...]) -> np.ndarray:
    """The importance of heads by central differences, each batch one text."""
    modules, step = attentions(encoder), 1e-4
    every = [objective.counts(batch) for batch in batches]
    counts = {name: sum(own[name] for own in every) for name in every[0]}
    expected = np.zeros(shape)
    for batch in batches:
        for place in np.ndindex(*shape):
            ends = []
            for sign in (1, -1):
                masks = np.ones(shape)
                masks[place] += sign * step
                ends.append(loss_with_mask(objective, modules, masks, batch, counts))
            expected[place] += abs(ends[0] - ends[1]) / (2 * step)
    return expected


@pytest.fixture
def in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken in single precision elsewhere, such as the loss of detection, is taken in double."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_finite_differences_of_a_plain_mask(case: str, in_double_precision: None) -> None:
    objective, encoder = CASES[case]()
    rows = make_rows(2, 12)
    batches = [objective.make_batch([replace(row, number=1 + i)], seed=2) for i, row in enumerate(rows)]
    found = importance(objective, encoder, batches)
    layers = len({id(encoder.block(layer).attention) for layer in range(encoder.depth)})
    assert found.shape == (layers, encoder.config.attention_heads * (2 if case == "convbert" else 1))
    assert (found > 0).all() and all(parameter.grad is None for parameter in objective.parameters())
    np.testing.assert_allclose(found, differences(objective, encoder, batches, found.shape), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_rows_of_a_batch_count_one_by_one(name: str) -> None:
    """Padding beside them changes nothing."""
    objective, encoder = CASES[name]()
    rows = make_rows(3, 12)
    apart = [objective.make_batch([row], seed=2) for row in rows]
    one = [objective.make_batch(rows, seed=2)]
    np.testing.assert_allclose(importance(objective, encoder, one), importance(objective, encoder, apart), rtol=1e-9)


TEXTS = [Text(id=str(i), text=text, label=label) for i, (text, label) in enumerate((
    ("the cat sat on the mat .", "1"), ("a bad film", "0"), ("ann runs and bob sleeps in rome", "1"), ("fine", "0"),
))]  # fmt: skip


def fine_tuned(name: str) -> TaskObjective:
    task = suites.task("sst2")
    model = tiny(name)
    form = form_of(task, model, FORMS[task.form].settings_type(max_length=32))
    model, _ = with_head(model, form, seed=0)
    return TaskObjective(model.double(), form)


@pytest.mark.parametrize("name", ["bert-tiny", "deberta-v3-tiny", "xlnet-tiny", "electra-tiny"])
def test_examples_of_a_task_count_one_by_one(name: str, in_double_precision: None) -> None:
    """Also where they are packed side by side into one row; the mean of the sizes of their gradients."""
    objective = fine_tuned(name)
    items = objective.form.items(TEXTS, train=True)
    apart = [pack([item], pad=0, room=32) for item in items]
    packed = pack(items, pad=0, room=32)
    assert len(packed.ids) < len(items)
    found = importance(objective, objective.model.encoder, apart)
    np.testing.assert_allclose(importance(objective, objective.model.encoder, [packed]), found, rtol=1e-9)
    np.testing.assert_allclose(found, differences(objective, objective.model.encoder, apart, found.shape), rtol=1e-5)


# Pruning

PRUNED = {name: case for name, case in CASES.items() if name != "convbert"}


@pytest.mark.parametrize("case", PRUNED)
def test_a_model_without_heads_is_the_model_with_a_mask_of_zeros(case: str) -> None:
    objective, encoder = PRUNED[case]()
    model = next(m for m in objective.modules() if isinstance(m, Model) and m.encoder is encoder).eval()
    heads, modules = encoder.config.heads, attentions(encoder)
    kept = [[1, 3] if layer % 2 else [0, 2, 3][: heads // 2] for layer in range(len(modules))]
    smaller = without_heads(model, kept).double()
    assert smaller.config.encoder.heads == len(kept[0]) and smaller.config.encoder.key_width == encoder.config.key_width
    ids = torch.randint(5, VOCAB, (2, 11), generator=torch.Generator().manual_seed(0))
    masks = torch.zeros(len(modules), heads, dtype=torch.double)
    for layer, row in enumerate(kept):
        masks[layer, row] = 1

    def hook(number: int) -> Callable:
        return lambda module, given, found: (found[0] * masks[number].repeat_interleave(module.head_width), found[1])

    handles = [module.register_forward_hook(hook(number)) for number, module in enumerate(modules)]
    with torch.no_grad():
        wanted = encoder(ids).last
        for handle in handles:
            handle.remove()
        torch.testing.assert_close(smaller.encoder.eval()(ids).last, wanted, atol=1e-10, rtol=1e-10)
        assert not torch.allclose(encoder(ids).last, wanted, atol=1e-3)
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in model.parameters())


def test_shared_biases_of_positions_become_those_of_the_layers() -> None:
    config = resized(small("transformer-xl-tiny"), position=RelativeShift(shared_biases=True))
    model = Model(config).initialize(0).eval()
    same = without_heads(model, [list(range(4))] * 2)
    ids = torch.arange(5, 20)[None]
    torch.testing.assert_close(same.encoder.eval()(ids).last, model.encoder(ids).last)


PADDED = ["bert-tiny", "roberta-tiny", "deberta-v2-tiny", "albert-tiny", "distilbert-tiny", "xlnet-tiny"]


@pytest.mark.parametrize("name", PADDED)
def test_conversion_gives_heads_of_zeros(name: str, tmp_path: Path) -> None:
    """Hugging Face's classes have as many heads as fill the width; the results are the same."""
    model = build(name).eval()
    smaller = without_heads(model, [[0, 2, 3]] * len(attentions(model.encoder))).eval()
    notes = huggingface.save(smaller, tmp_path / "hf")
    assert any(note.startswith("1 pruned heads") for note in notes)
    back = load(tmp_path / "hf").eval()
    assert back.config.encoder.heads == 4 and back.config.encoder.head_width in (None, 4)
    ids = torch.arange(5, 20)[None]
    torch.testing.assert_close(back.encoder(ids).last, smaller.encoder(ids).last, atol=1e-5, rtol=1e-5)
    smaller.save(tmp_path / "ours")
    assert load(tmp_path / "ours").config == smaller.config


def test_xlnet_of_transformers_has_heads_that_share_the_width(tmp_path: Path) -> None:
    """Others would be written as a folder that ``transformers`` refuses; Transformer-XL's heads have any width."""
    wide = {name: Model(resized(small(name), head_width=5)) for name in ("xlnet-tiny", "transformer-xl-tiny")}
    with pytest.raises(DataError, match="cannot have 4 of width 5"):
        huggingface.save(wide["xlnet-tiny"].initialize(0), tmp_path / "no")
    bert = without_heads(Model(resized(small("bert-tiny"), head_width=5)).initialize(0), [[0, 2, 3]] * 2)
    with pytest.raises(DataError, match="divide the width 16 and cannot have 3 of width 5"):
        huggingface.save(bert, tmp_path / "no")
    huggingface.save(wide["transformer-xl-tiny"].initialize(0), tmp_path / "yes")
    assert load(tmp_path / "yes").config.encoder.key_width == 5


def test_every_layer_loses_its_least_important_heads() -> None:
    assert least_important(np.array([[3.0, 1, 2, 4], [1, 1, 1, 5]]), 2) == [[0, 3], [2, 3]]
    assert check_heads(small("bert-tiny"), 0.3) == 1 and check_heads(small("bert-tiny"), 0.7) == 3
    for share in (0, -1, 1, 0.1, 0.9, float("nan")):
        with pytest.raises(ConfigError, match=f"a share {share:g} of 4 heads .* give 0.25, 0.5, 0.75"):
            check_heads(small("bert-tiny"), share)
    with pytest.raises(ConfigError, match="family convbert cannot be removed"):
        check_heads(small("convbert-tiny"), 0.5)


def test_a_model_that_predicts_both_ways_is_measured_both_ways(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("the cat sat on the mat and the dog runs under it .\n" * 60)
    plain = tiny("roberta-tiny")
    assert plain.config.lm is not None and plain.tokenizer is not None
    config = replace(plain.config, lm=replace(plain.config.lm, next_token=True))
    model = Model(config, plain.tokenizer).initialize(0)
    objective = objective_of(model)
    batches = batches_of(objective, model, str(file), 4)
    assert losses(objective, batches).keys() == {"loss", "mlm", "lm"}
    first = [batch.slice(0, 1) for batch in batches]
    assert losses(objective, first).keys() == {"loss", "mlm"}  # not lm 0.0
    pairs = Model(replace(tiny("bert-tiny").config, lm=config.lm, pair=True), plain.tokenizer).initialize(0)
    assert isinstance(objective_of(pairs), MLM)  # rows from left to right have no summary of a pair


def test_a_left_to_right_model_is_measured_on_rows_as_in_its_training(tmp_path: Path) -> None:
    """Documents follow each other, each with an end-of-document token, and without tokens around a row."""
    texts = ["the cat sat on the mat and the dog runs .", "ann and bob sleeps very well ?"] * 40
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    network = tiny("transformer-xl-tiny")
    for eod, text in ((None, tokenizer()), (tokenizer("xlnet").special.eod, tokenizer("xlnet"))):
        model = Model(resized(network.config, vocab=text.vocab_size), text).initialize(0)
        line = [i for one in texts for i in (*text.encode(one).ids, *([] if eod is None else [eod]))]
        (batch,) = batches_of(objective_of(model), model, str(tmp_path / "texts.txt"), 5)
        assert batch.ids.flatten().tolist() == line[: 128 * 5]
        assert batch.labels["targets"].flatten().tolist() == line[1 : 128 * 5 + 1]


def test_rows_are_no_longer_than_the_positions_of_a_mask_decoder(tmp_path: Path) -> None:
    """Of the model, or of the generator of a discriminator."""
    (tmp_path / "texts.txt").write_text("the cat sat on the mat and the dog runs under it .\n" * 60)
    network = tiny("deberta-v2-tiny")
    decoder = Model(replace(network.config, mask_decoder=24), network.tokenizer).initialize(0)
    detector = tiny("deberta-v3-tiny")
    for model, generator in ((decoder, None), (detector, decoder)):
        objective = objective_of(model, generator)
        batches = batches_of(objective, model, str(tmp_path / "texts.txt"), 4)
        assert batches[0].ids.shape == (4, 24) and np.isfinite(losses(objective, batches)["loss"])


@pytest.mark.parametrize("rows", [2, 3, 17, 20, 33])
def test_one_half_of_the_rows_chooses_heads_and_the_other_one_is_scored(tmp_path: Path, rows: int) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog runs under it .\n" * 60 * rows)
    measured = OnText.of(tiny("roberta-tiny"), None, str(tmp_path / "text.txt"), rows)
    sizes = [sum(map(len, half)) for half in (measured.chosen_by, measured.held_out)]
    assert sum(sizes) == rows and sizes[0] - sizes[1] in (0, 1, 2)
    assert measured.importance().all() and measured.scores(measured.model)["mlm"] > 0


def test_copies_of_a_text_are_in_one_half(tmp_path: Path) -> None:
    model = tiny("bert-tiny")
    task = suites.task("sst2")
    model, _ = with_head(model, form_of(task, model, FORMS[task.form].settings_type(max_length=32)), seed=0)
    examples = [replace(text, id=f"{n} {text.id}") for n in range(3) for text in TEXTS]
    measured = OnTask(Predictor.of(model, task), task, examples)
    halves = [{example.text for example in measured._half(half)} for half in (0, 1)]
    assert not halves[0] & halves[1] and halves[0] | halves[1] == {text.text for text in TEXTS}
    assert [len(measured._half(half)) for half in (0, 1)] == [6, 6]
    assert measured.importance().all() and 0 <= measured.scores(measured.model)["accuracy"] <= 1


def test_the_verb_prunes_what_was_pretrained_and_what_was_fine_tuned(tmp_path: Path, capsys) -> None:
    lines = ["the red cat sat on the mat and the big dog runs in rome .", "ann and bob sleeps very well ?"]
    (tmp_path / "text.txt").write_text("\n".join(lines * 60) + "\n")
    tiny().save(tmp_path / "lm")
    write_vector_settings(tmp_path / "lm")
    words = ("prune", tmp_path / "lm", tmp_path / "half", "--heads", 0.5, "--on", tmp_path / "text.txt")
    found, _ = answer(capsys, *words)
    assert found["heads"] == {"before": 2, "after": 1} and found["scores"]["before"].keys() == {"loss", "mlm"}
    assert found["scores"]["before"] != found["scores"]["after"]
    assert found["parameters"]["after"] < found["parameters"]["before"]
    assert load(tmp_path / "half").config.encoder.heads == 1
    assert vectors_of(tmp_path / "half") == vectors_of(tmp_path / "lm")
    assert json.loads((tmp_path / "half/pruning.json").read_text())["removed"] == found["removed"]
    assert "| mlm |" in (tmp_path / "half/pruning.md").read_text()
    assert "choose another folder" in messages(capsys, 2, *words)
    for option, value in (("--split", "test"), ("--data", tmp_path)):
        told = messages(capsys, 2, *words[:2], tmp_path / "x", *words[3:], option, value)
        assert f"{option} is for benchmarks, and the model has no task head" in told
    (tmp_path / "texts").mkdir()
    missing = "no such file; give a corpus, or a file"
    for name, message in (("none", missing), ("texts", "is a folder; give a file")):
        other = (*words[:2], tmp_path / "x", *words[3:-1], tmp_path / name)
        assert f"{tmp_path / name}: {message}" in messages(capsys, 3, *other)
    assert missing in messages(capsys, 3, *other[:-1], "the cats are here " * 99)  # too long for the name of a file
    rows = "".join(f"the {one} cat,{'good' if n % 3 else 'bad'}\n" for n, one in enumerate(WORDS * 2))
    for name in ("reviews.csv", "dev.csv"):
        (tmp_path / name).write_text("text,label\n" + rows)
    answer(
        capsys, "finetune", tmp_path / "reviews.csv", "--model", tmp_path / "lm", "--out", tmp_path / "tuned",
        "--dev", tmp_path / "dev.csv", "--seeds", 1, "--epochs", 1,
    )  # fmt: skip
    words = ("prune", tmp_path / "tuned", tmp_path / "light", "--heads", 0.5, "--on", tmp_path / "reviews.csv")
    found, _ = answer(capsys, *words)
    assert {"loss", "accuracy"} <= found["scores"]["before"].keys()
    # Which half an example is in depends on its text, not on the order of the rows, in which labels may alternate.
    distinct, losses = rows.splitlines()[: len(WORDS)], []
    for number, order in enumerate((distinct, distinct[::-1])):
        (tmp_path / "few.csv").write_text("\n".join(["text,label", *order]) + "\n")
        again, _ = answer(capsys, *words[:2], tmp_path / f"again{number}", *words[3:-1], tmp_path / "few.csv")
        losses.append(again["scores"]["before"]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    (tmp_path / "one.csv").write_text("text,label\n" + "the cat,good\n" * 5)
    assert "its 5 labelled examples have one text" in messages(
        capsys, 3, *words[:2], tmp_path / "x", *words[3:-1], tmp_path / "one.csv"
    )
    scores, _ = answer(capsys, "evaluate", tmp_path / "light", tmp_path / "reviews.csv")
    assert scores["examples"] == 2 * len(WORDS)
    assert "no such file" in messages(capsys, 2, *words[:2], tmp_path / "x", "--heads", 0.5, "--on", "none.csv")
    assert "removes none or all" in messages(capsys, 2, *words[:2], tmp_path / "x", "--heads", 0.01, "--on", "a.csv")
    assert not (tmp_path / "x").exists()
