"""Networks that step in turns: generator, then discriminator."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from encoderlab.batches.batch import Batch
from encoderlab.errors import ConfigError
from encoderlab.nn.noise import Noise
from encoderlab.objectives.rtd import ReplacedTokenDetection, RTDSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.train.distributed import World
from encoderlab.train.engine import Engine
from encoderlab.train.optim import AdamW
from encoderlab.train.recipe import Execution, Phase, Training
from tests.objectives.conftest import VOCAB, make_rows
from tests.objectives.small import build

VOCABULARY = Vocabulary(size=VOCAB, pad=0, mask=4, special=(0, 1, 2, 3, 4))
CPU = World(0, 1, torch.device("cpu"))
SETTINGS = RTDSettings(sharing="disentangled", updates="alternating")


def make(settings: RTDSettings) -> ReplacedTokenDetection:
    torch.set_num_threads(1)
    generator, discriminator = build("deberta-v3-tiny-generator", 1), build("deberta-v3-tiny")
    return ReplacedTokenDetection(generator, discriminator, settings, VOCABULARY)


def engine(settings: RTDSettings, *, clip: float | None = None, micro_rows: int | None = None) -> Engine:
    recipe = Training(
        phases=(Phase(length=16, rows=6),),
        optim=AdamW(eps=1e-4),
        clip=clip,
        execution=Execution(device="cpu", micro_rows=micro_rows),
    )
    return Engine(make(settings), recipe, CPU)


def batch(objective: ReplacedTokenDetection) -> Batch:
    return objective.make_batch(make_rows(6), seed=1)


def step(made: Engine, *, number: int = 0) -> dict[str, torch.Tensor]:
    given = batch(made.objective)  # type: ignore[arg-type]
    made.step(given, rows=6, counts=made.objective.counts(given), lr=0.01, number=number)
    return made.weights()


def test_without_clipping_the_generator_steps_as_in_a_joint_update() -> None:
    """Nothing that the discriminator does reaches it."""
    turns, joint = step(engine(SETTINGS)), step(engine(replace(SETTINGS, updates="joint")))
    assert turns.keys() == joint.keys()
    for name in turns:
        if name.startswith("generator."):
            assert torch.equal(turns[name], joint[name]), name
    assert any(not torch.equal(turns[name], joint[name]) for name in turns if name.startswith("discriminator."))


def test_the_discriminator_reads_old_samples_and_the_new_table() -> None:
    made = engine(SETTINGS)
    objective = make(SETTINGS).train()
    given = batch(objective)
    assert given.rows is not None
    noise = Noise(made.recipe.seed, 0, given.rows)
    _, samples = objective(given, noise=noise)
    weights = step(made)
    for name, parameter in objective.generator.named_parameters():
        parameter.data.copy_(weights[f"generator.{name}"])
    terms, left = objective(given, noise=noise, memory=samples)
    assert left is None and list(terms) == ["rtd"]
    (terms["rtd"].sum * 50 / objective.counts(given)["rtd"]).backward()
    state = made.optimizer.state
    for name, parameter in objective.discriminator.named_parameters():
        if parameter.grad is not None:
            mean = state[f"discriminator.{name}"]["exp_avg"] / 0.1
            torch.testing.assert_close(mean, parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
    assert all(parameter.grad is None for parameter in objective.generator.parameters())


def test_each_network_is_clipped_by_itself() -> None:
    free, clipped = engine(SETTINGS), engine(SETTINGS, clip=1e-3)
    step(free)
    step(clipped)
    for network in ("generator", "discriminator"):
        means = [kinds["exp_avg"] / 0.1 for name, kinds in clipped.optimizer.state.items() if name.startswith(network)]
        norm = torch.linalg.vector_norm(torch.stack([mean.norm() for mean in means]))
        assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_a_step_counts_once() -> None:
    made = engine(SETTINGS)
    for number in range(3):
        step(made, number=number)
    assert made.optimizer.steps == 3 and made.memory is None


def test_micro_batches_change_nothing() -> None:
    whole, parts = engine(SETTINGS), engine(SETTINGS, micro_rows=2)
    step(whole)
    step(parts)
    for name, kinds in whole.optimizer.state.items():
        mean, other = kinds["exp_avg"], parts.optimizer.state[name]["exp_avg"]
        torch.testing.assert_close(other, mean, rtol=0, atol=1e-5 * float(mean.abs().max()), msg=name)


def test_evaluation_gives_all_terms() -> None:
    objective = make(SETTINGS).eval()
    terms, memory = objective(batch(objective))
    assert set(terms) == {"mlm", "rtd", "replaced"} and memory is None


@pytest.mark.parametrize("sharing", ["block", "tables"])
def test_shared_embeddings_are_refused(sharing: str) -> None:
    with pytest.raises(ConfigError, match="twice; set sharing to disentangled or none"):
        make(replace(SETTINGS, sharing=sharing))  # type: ignore[arg-type]
