from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from encoderlab.batches.corrupt import Masking
from encoderlab.errors import ConfigError
from encoderlab.interchange.folder import weights
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.embeddings import Adaptive
from encoderlab.nn.heads import LM
from encoderlab.nn.noise import Noise
from encoderlab.nn.norms import RootMeanSquare
from encoderlab.nn.positions import Absolute, Rotary
from encoderlab.objectives.mlm import predicted
from encoderlab.objectives.rtd import ReplacedTokenDetection, RTDSettings
from tests.objectives.conftest import make_rows
from tests.objectives.small import build, small

FAMILIES = ["electra-tiny", "convbert-tiny", "deberta-v3-tiny"]


def make(name: str, vocabulary, **settings) -> ReplacedTokenDetection:
    masking = Masking(rate=0.3, mask=0.85, random=0.0)
    return ReplacedTokenDetection(
        build(f"{name}-generator", 1), build(name), RTDSettings(masking=masking, **settings), vocabulary
    )


def losses(objective: ReplacedTokenDetection, rows, **settings):
    batch = objective.make_batch(rows, seed=1)
    return batch, objective(batch, noise=Noise(1, 1, batch.rows))[0]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("sharing", ["block", "tables", "none", "disentangled"])
def test_only_shared_embeddings_join_the_networks(name: str, sharing: str, rows, vocabulary) -> None:
    objective = make(name, vocabulary, sharing=sharing)
    _, terms = losses(objective, rows)
    terms["rtd"].sum.backward()
    shared = {id(p) for p in objective.discriminator.parameters()}
    for label, parameter in objective.generator.named_parameters():
        own = id(parameter) not in shared
        if own:
            assert parameter.grad is None, label
    words = objective.discriminator.encoder.embeddings.words
    assert words.grad is not None and words.grad.abs().sum() > 0
    assert (objective.generator.encoder.embeddings.words is words) is (sharing in ("block", "tables"))
    assert (objective.generator.encoder.embeddings.norm is objective.discriminator.encoder.embeddings.norm) is (
        sharing == "block"
    )


def test_disentangled_table_is_the_generators_plus_a_difference(rows, vocabulary) -> None:
    objective = make("deberta-v3-tiny", vocabulary, sharing="disentangled")
    generator, discriminator = objective.generator, objective.discriminator
    assert discriminator.words.abs().sum() == 0
    ids = torch.arange(40)[None]
    torch.testing.assert_close(discriminator.encoder.embeddings.look_up(ids), generator.encoder.embeddings.look_up(ids))
    discriminator.words.data.normal_()
    saved = weights(discriminator)["encoder.embeddings.words"]
    torch.testing.assert_close(saved, discriminator.words + generator.words)
    before = discriminator.encoder.embeddings.look_up(ids).detach()
    saved = Model(small("deberta-v3-tiny")).initialize(3)
    saved.load_state_dict(weights(discriminator))
    again = ReplacedTokenDetection(
        generator, saved, objective.settings, vocabulary, continued=True
    )  # as a run continued from a folder
    torch.testing.assert_close(again.discriminator.encoder.embeddings.look_up(ids), before)
    _, terms = losses(objective, rows)
    terms["mlm"].sum.backward()
    assert discriminator.words.grad is None and generator.words.grad is not None


def test_disentangled_positions_are_the_generators_plus_a_difference(rows, vocabulary) -> None:
    """As in the original code, where positions are added to the input."""
    objective = make("electra-tiny", vocabulary, sharing="disentangled")
    generator, discriminator = (model.encoder.embeddings for model in (objective.generator, objective.discriminator))
    generator.types, generator.norm, generator.map = discriminator.types, discriminator.norm, discriminator.map
    ids = torch.arange(12)[None]
    torch.testing.assert_close(*(each(ids, ids, None, None) for each in (generator, discriminator)))
    discriminator.positions.data.normal_()
    saved = weights(objective.discriminator)["encoder.embeddings.positions"]
    torch.testing.assert_close(saved, discriminator.positions + generator.positions)
    _, terms = losses(objective, rows)
    terms["rtd"].sum.backward()
    assert generator.positions.grad is None and discriminator.positions.grad.abs().sum() > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_labels_say_what_differs(name: str, rows, vocabulary) -> None:
    """A guess that hits the original counts as original, and every change is at a masked place."""
    objective = make(name, vocabulary)
    batch = objective.make_batch(rows, seed=1)
    positions = batch.labels["positions"]
    row, slot = (positions >= 0).nonzero(as_tuple=True)
    place, target = positions[row, slot], batch.labels["targets"][row, slot]
    generate = objective._generate
    objective._generate = lambda *a: (generate(*a)[0], target)  # a perfect generator
    terms, _ = objective(batch, noise=Noise(1, 1, batch.rows))
    assert int(terms["replaced"].hits) == 0
    states = objective.discriminator.encoder(
        batch.labels["original"], doc=batch.doc, segments=batch.segments, noise=Noise(1, 1, batch.rows).branch(1)
    )
    real = (batch.doc >= 0).nonzero(as_tuple=True)
    logits = objective._detect(batch, states, *real)
    torch.testing.assert_close(terms["rtd"].sum, torch.nn.functional.softplus(logits).sum())
    objective._generate = lambda *a: (generate(*a)[0], (target + 1) % 40)
    terms, _ = objective(batch, noise=Noise(1, 1, batch.rows))
    assert int(terms["replaced"].hits) == len(place) == terms["mlm"].count
    assert terms["rtd"].count == batch.num_tokens == objective.counts(batch)["rtd"]


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_samples_follow_the_distribution(temperature: float, vocabulary) -> None:
    objective = make("electra-tiny", vocabulary, temperature=temperature)
    generator = objective.generator
    generator.lm.dense.weight.data.zero_()  # every place has the same logits
    batch = objective.make_batch(make_rows(200, 12), seed=1)
    chosen, target = predicted(batch)
    logits = generator.lm(torch.zeros(1, 16), generator.words)[0].detach()
    expected = (logits / temperature).softmax(0)
    counts: Counter[int] = Counter()
    total = 0
    for step in range(20):
        samples = objective._generate(batch, chosen, target, Noise(1, step, batch.rows))[1]
        counts.update(samples.tolist())
        total += len(samples)
    chi = sum((counts[i] - total * p) ** 2 / (total * p) for i, p in enumerate(expected.tolist()))
    assert chi < 39 + 5 * (2 * 39) ** 0.5
    again = objective._generate(batch, chosen, target, Noise(1, 3, batch.rows))[1]
    half = batch.slice(100, 200)  # a second half of the batch alone has the same samples
    alone = objective._generate(half, *predicted(half), Noise(1, 3, half.rows))[1]
    assert torch.equal(again[chosen.rows >= 100], alone)


@pytest.mark.parametrize("predict", ["replaced_masked", "original_masked", "original_all"])
def test_ablations(predict: str, rows, vocabulary) -> None:
    config = replace(small("electra-tiny"), lm=LM())
    objective = ReplacedTokenDetection(
        build("electra-tiny-generator"), Model(config).initialize(0), RTDSettings(predict=predict), vocabulary
    )
    batch, terms = losses(objective, rows)
    assert {name: term.count for name, term in terms.items()} == objective.counts(batch)
    assert terms["rtd"].count == (batch.num_tokens if predict == "original_all" else terms["mlm"].count)
    assert terms["rtd"].sum.isfinite() and terms["rtd"].sum > 0


def test_a_norm_of_two_widths_is_not_shared(rows, vocabulary) -> None:
    narrow = resized(small("deberta-v3-tiny-generator"), width=8, ff_width=12)  # the tables stay 16 wide
    networks = Model(narrow).initialize(0), build("deberta-v3-tiny")
    with pytest.raises(
        ConfigError, match="has the layers' width, 8 and 16, and cannot be shared; set sharing to tables"
    ):
        ReplacedTokenDetection(*networks, RTDSettings(sharing="block"), vocabulary)
    _, terms = losses(ReplacedTokenDetection(*networks, RTDSettings(sharing="tables"), vocabulary), rows)
    assert all(term.sum.isfinite() for term in terms.values())


@pytest.mark.parametrize(
    ("changes", "sharing", "named"),
    [
        ({"position": Rotary(length=512)}, "tables", r"positions \(512 and 0\) and cannot be shared"),
        ({"position": Absolute(offset=2)}, "disentangled", r"positions \(512 and 514\), offset \(0 and 2\) and"),
        ({"adaptive": Adaptive(cutoffs=(9,))}, "tables", r"adaptive \(None and "),
        ({"normalization": RootMeanSquare()}, "block", "normalization "),
        ({"eps": 1e-5}, "block", r"eps \(1e-12 and 1e-05\)"),
    ],
)
def test_only_equal_embeddings_are_shared(changes, sharing: str, named: str, vocabulary) -> None:
    """Otherwise the generator had the discriminator's embeddings, which are not those of its configuration."""
    generator, other = build("electra-tiny-generator"), Model(resized(small("electra-tiny"), **changes)).initialize(0)
    with pytest.raises(ConfigError, match=f"embeddings of generator and discriminator differ in {named}"):
        ReplacedTokenDetection(generator, other, RTDSettings(sharing=sharing), vocabulary)
    ReplacedTokenDetection(generator, other, RTDSettings(sharing="none"), vocabulary)


@pytest.mark.parametrize("given", [{"generator_weight": -1}, {"discriminator_weight": -1}, {"temperature": 0}])
def test_senseless_settings_are_refused(given: dict[str, float]) -> None:
    name, value = next(iter(given.items()))
    with pytest.raises(ConfigError, match=f"^{name} is {value}; give "):
        RTDSettings(**given)


def test_weights_that_train_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="generator_weight, discriminator_weight are 0, which trains nothing"):
        RTDSettings(generator_weight=0, discriminator_weight=0)


def test_senseless_pairs_are_refused(vocabulary) -> None:
    with pytest.raises(ConfigError, match="one tokenizer"):
        ReplacedTokenDetection(
            Model(small("electra-tiny-generator", 41)), build("electra-tiny"), RTDSettings(), vocabulary
        )
    with pytest.raises(ConfigError, match="detection head"):
        ReplacedTokenDetection(
            build("electra-tiny-generator"), build("bert-tiny"), RTDSettings(sharing="none"), vocabulary
        )
    with pytest.raises(ConfigError, match="cannot be shared"):
        ReplacedTokenDetection(build("deberta-tiny"), build("electra-tiny"), RTDSettings(), vocabulary)
