"""Compare the discriminators of an arm's trials on the same text.

The loss of a discriminator on the samples of its own generator says little: a poor generator's are easy to detect, and
a good one leaves less to detect. So every discriminator reads the samples of every generator, each as often.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from encoderlab.config import from_dict
from encoderlab.inference import tokenizer_of
from encoderlab.interchange.load import load_pair
from encoderlab.measure.runs import read_run
from encoderlab.objectives.rtd import ReplacedTokenDetection, RTDSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.train.corpus_data import corpus_data
from encoderlab.train.distributed import join
from encoderlab.train.recipe import Recipe


def compare(runs: Mapping[str, Path], corpus: Path) -> dict[str, float]:
    """The mean loss of each run's discriminator, in nats per prediction, on held-out text in which each run's generator
    in turn has replaced tokens; the rows and masks are those of a validation.

    Costs as much as (K + K^2) / 2 validations of K runs.

    Raises:
        EncoderlabError: a run or its model cannot be read.
    """
    recipes = {name: from_dict(Recipe, dict(read_run(folder).recipe)) for name, folder in runs.items()}
    trained = {name: _networks(recipes[name], folder) for name, folder in runs.items()}
    losses = dict.fromkeys(runs, 0.0)
    for name, writer in trained.items():
        recipe = recipes[name]
        data = corpus_data(recipe, writer, corpus, tokenizer_of(writer.discriminator))
        assert data.validation is not None  # the study's plan refuses a corpus without held-out text
        device = join(recipe.execution.device).device
        sums, count = dict.fromkeys(runs, 0.0), 0
        for batch in data.validation(recipe.phases[-1]):
            placed = batch.to(device)
            corrupted = writer.corrupt(placed)
            for reader, networks in trained.items():
                term = networks.discriminate(placed, corrupted)
                sums[reader] += float(term.sum)
            count += term.count
        for reader in runs:
            losses[reader] += sums[reader] / count / len(runs)
    return losses


def _networks(recipe: Recipe, folder: Path) -> ReplacedTokenDetection:
    """Generator and discriminator of a run, on its device."""
    discriminator, generator = load_pair(folder)
    assert isinstance(recipe.objective, RTDSettings) and generator is not None
    vocabulary = Vocabulary.of(tokenizer_of(discriminator))
    networks = recipe.objective.build(discriminator, generator, vocabulary, continued=True)
    return networks.eval().to(join(recipe.execution.device).device)
