"""What the loop does between batches: phases, budgets, ramps, precision, validation, trouble."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from encoderlab.errors import ConfigError, DataError, Diverged, OutOfMemory, Stopped, is_out_of_memory
from encoderlab.files import read_json, sha256
from encoderlab.objectives.base import Term
from encoderlab.train import checkpoint
from encoderlab.train.loop import PLAIN, train
from encoderlab.train.recipe import Budget, Checkpoints, Evaluation, Execution, Phase, Ramp, Training, WeightAverage
from encoderlab.train.schedule import Bert, Constant
from encoderlab.train.stored import StoredTensors
from tests.train.toy import RECIPE, Rows, Toy, metrics, run, start, tensors, toy_data

SHORT = replace(RECIPE, budget=Budget(amount=6), log_every=1)


def of(lines: list[dict[str, Any]], split: str, key: str) -> list[Any]:
    return [line[key] for line in lines if line["split"] == split]


def test_the_toy_is_learned(tmp_path: Path) -> None:
    recipe = replace(
        RECIPE,
        budget=Budget(amount=150),
        optim=replace(RECIPE.optim, lr=0.02),
        phases=(Phase(length=16, rows=32),),
        log_every=50,
    )
    run(tmp_path, recipe)
    lines = metrics(tmp_path)
    assert of(lines, "valid", "losses")[-1]["lm"] < 2.6 < math.log(37) < of(lines, "train", "losses")[0]["lm"] + 1
    assert of(lines, "valid", "accuracy")[-1]["lm"] > 0.3
    for line in lines:
        size = toy_data().bytes_per_token[line["split"]]
        assert line["bits_per_byte"]["lm"] == pytest.approx(line["losses"]["lm"] / math.log(2) / size)
    last = lines[-1]
    assert last["loss"] == pytest.approx(last["losses"]["lm"] + 0.5 * last["losses"]["sort"])


def test_lines_of_metrics(tmp_path: Path) -> None:
    outcome = run(tmp_path)
    lines = metrics(tmp_path)
    assert of(lines, "train", "step") == [3, 6, 9, 12, 15, 18, 21, 24]
    assert of(lines, "valid", "step") == [0, 10, 20, 24], "the first shows where the run began"
    assert outcome.metrics["loss"] == lines[-1]["loss"]
    assert of(lines, "train", "rows") == [8] * 4 + [6] * 4 and of(lines, "train", "length") == [8] * 4 + [12] * 4
    assert sum(counts["sort"] for counts in of(lines, "train", "counts")) == 12 * 8 + 12 * 6
    assert sum(counts["lm"] for counts in of(lines, "train", "counts")) == outcome.tokens == lines[-1]["tokens"]
    assert of(lines, "valid", "counts")[-1]["sort"] == 19, "the last, smaller batch counts too"
    assert all(0.1 < padding < 0.25 for padding in of(lines, "train", "padding"))
    rates = of(lines, "train", "lr")
    assert rates == [RECIPE.optim.lr * RECIPE.schedule.share(step - 1, 24) for step in (3, 6, 9, 12, 15, 18, 21, 24)]


def test_a_phase_has_a_source_of_its_own_that_goes_on_in_the_text(tmp_path: Path) -> None:
    opened = []

    class Watched(Rows):
        def __init__(self, phase: Phase, rows: int, state: dict[str, int] | None) -> None:
            opened.append((phase.length, rows, state))
            super().__init__(phase, rows, state)

    recipe = replace(RECIPE, ramp=Ramp(rows=2, share=0.5))
    run(tmp_path, recipe, data=toy_data(source=Watched))
    # Doubling from 2 to 8 over the first half; a larger batch and a later phase go on where the source before ended.
    assert opened == [(8, 2, None), (8, 4, {"rows": 12}), (12, 6, {"rows": 36})]


def test_a_budget_of_tokens(tmp_path: Path) -> None:
    recipe = replace(RECIPE, budget=Budget(amount=500, unit="tokens"), schedule=Bert(warmup=0.1), log_every=1)
    outcome = run(tmp_path, recipe)
    lines = metrics(tmp_path)
    tokens = of(lines, "train", "tokens")
    assert tokens[-1] == outcome.tokens >= 500 > tokens[-2]
    for before, lr in zip([0, *tokens], of(lines, "train", "lr"), strict=False):
        assert lr == pytest.approx(RECIPE.optim.lr * (before / 50 if before < 50 else 1 - before / 500))
    assert of(lines, "train", "length")[0] == 8 and of(lines, "train", "length")[-1] == 12


def test_a_budget_of_flops(tmp_path: Path) -> None:
    budget = Budget(amount=5000, unit="flops")
    recipe = replace(RECIPE, budget=budget, schedule=Bert(warmup=0.1), log_every=1)
    run(tmp_path / "run", recipe, data=replace(toy_data(), operations=lambda phase: phase.length))
    lines = metrics(tmp_path / "run")
    tokens, spent = of(lines, "train", "tokens"), of(lines, "train", "flops")
    costs = [(b - a) / (t - s) for a, b, s, t in zip(spent, spent[1:], tokens, tokens[1:], strict=False)]
    assert costs == of(lines, "train", "length")[1:] and set(costs) == {8, 12}
    assert spent[-1] >= 5000 > spent[-2]
    with pytest.raises(ConfigError, match="the cost of a token"):
        run(tmp_path / "unknown", recipe)


def test_a_budget_of_hours(tmp_path: Path) -> None:
    recipe = replace(
        RECIPE, budget=Budget(amount=0.5 / 3600, unit="hours"), log_every=1, checkpoints=Checkpoints(minutes=0.1 / 60)
    )
    outcome = run(tmp_path, recipe)
    assert outcome.seconds >= 0.5
    rates = of(metrics(tmp_path), "train", "lr")
    peak = rates.index(max(rates))
    assert rates[:peak] == sorted(rates[:peak]) and rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < rates[peak] / 2
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 2


def test_the_best_weights_are_kept(tmp_path: Path) -> None:
    scores = iter([1.0, 0.2, 0.9, 0.5, 0.1])  # the first before any step, whose weights are not kept

    def score() -> Mapping[str, float]:
        return {"f1": next(scores)}

    recipe = replace(SHORT, evaluation=Evaluation(every=2, best="f1"), checkpoints=Checkpoints(steps=1, keep=9))
    outcome = run(tmp_path, recipe, data=toy_data(score=score))
    assert outcome.best is not None
    assert read_json(outcome.best / checkpoint.STATE) == {"step": 4, "f1": 0.9}
    best = StoredTensors(outcome.best)
    stored = StoredTensors(tmp_path / "checkpoints/step-000004")
    for name in stored.weights:
        tensor = stored[name]
        assert torch.equal(best[name], tensor)
    model = Toy()
    checkpoint.load_weights(model, outcome.best)
    assert torch.equal(model.table.weight, best["table.weight"])
    assert outcome.metrics["scores"] == {"f1": 0.5}


def test_the_best_loss_is_the_lowest_and_survives_a_resume(tmp_path: Path) -> None:
    recipe = replace(RECIPE, evaluation=Evaluation(every=4, best="loss"), schedule=Constant())
    with pytest.raises(Stopped):
        run(tmp_path, recipe, session=Budget(amount=13))
    outcome = run(tmp_path, recipe)
    losses = dict(zip(of(metrics(tmp_path), "valid", "step"), of(metrics(tmp_path), "valid", "loss"), strict=True))
    assert outcome.best is not None
    step = read_json(outcome.best / checkpoint.STATE)["step"]
    assert losses[step] == min(losses.values())


@pytest.mark.parametrize("values", [[math.nan, 0.2, math.nan, math.nan], [0.2, math.nan, 0.1, math.nan]])
def test_a_score_that_is_no_number_is_not_the_best(values: list[float], tmp_path: Path) -> None:
    scores = iter([0.9, *values])  # the first is that of the weights before any step
    recipe = replace(SHORT, evaluation=Evaluation(every=2, best="f1"))
    outcome = run(tmp_path, recipe, data=toy_data(score=lambda: {"f1": next(scores)}))
    assert outcome.best is not None
    assert read_json(outcome.best / checkpoint.STATE)["f1"] == 0.2


def test_the_last_checkpoint_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda folder, made: (written.append(folder.name), write(folder, made)))
    run(tmp_path, replace(SHORT, checkpoints=Checkpoints(minutes=None, steps=1), log_every=5))
    assert len(written) == len(set(written)) > 1


def test_a_best_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'f2' is not a number of the validation; choose from: f1, lm, loss"):
        run(
            tmp_path,
            replace(SHORT, evaluation=Evaluation(every=2, best="f2")),
            data=toy_data(score=lambda: {"f1": 0.0}),
        )


def test_a_best_that_no_validation_gives_is_refused_before_any_step(tmp_path: Path) -> None:
    recipe = replace(SHORT, evaluation=Evaluation(every=2, best="mlm"))
    with pytest.raises(ConfigError, match="'mlm' is not a number of the validation; did you mean 'lm'"):
        run(tmp_path / "named", recipe)
    with pytest.raises(ConfigError, match="needs a validation, and this run has none"):
        run(tmp_path / "none", recipe, data=toy_data(validation=None))
    assert not (tmp_path / "none").exists()
    run(tmp_path / "named", replace(recipe, evaluation=Evaluation(every=2, best="lm")))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_and_resumes_exactly(tmp_path: Path, precision: Any) -> None:
    recipe = replace(RECIPE, precision=precision)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, recipe)
    with pytest.raises(Stopped):
        run(parts, recipe, session=Budget(amount=7))
    run(parts, recipe)
    one, other = (tensors(out / "checkpoints/step-000024") for out in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert one["table.weight"].dtype == torch.float32
    run(tmp_path / "fp32")
    for ours, theirs in zip(metrics(whole), metrics(tmp_path / "fp32"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.02)


class Bad(Toy):
    """Gives a loss of ``value`` at step ``at``."""

    def __init__(self, at: int, value: float) -> None:
        super().__init__()
        self.at, self.value, self.calls = at, value, 0

    def forward(self, batch: Any, *, noise: Any = None, memory: Any = None) -> Any:
        terms, memory = super().forward(batch, noise=noise, memory=memory)
        if noise is not None:
            self.calls += 1
            if self.calls == self.at + 1:
                terms["lm"] = Term(terms["lm"].sum * self.value, terms["lm"].count)
        return terms, memory


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_last_checkpoint(tmp_path: Path, value: float) -> None:
    with pytest.raises(Diverged, match=r"step 8: the gradient is not finite.*lower optim.lr.*step-000005") as error:
        train(Bad(8, value), RECIPE, toy_data(), tmp_path)
    assert error.value.code == 6 and "\n" not in str(error.value)
    found, damaged = checkpoint.newest(tmp_path / "checkpoints")
    assert found is not None and found.name == "step-000005" and not damaged
    assert all(tensor.isfinite().all() for tensor in tensors(found).values())


def test_fp16_skips_a_step_that_overflows(tmp_path: Path) -> None:
    train(Bad(2, 1e38), replace(SHORT, precision="fp16"), toy_data(), tmp_path)
    scales = of(metrics(tmp_path), "train", "loss_scale")
    assert scales == [2.0**14] * 2 + [2.0**13] * 4
    state = read_json(tmp_path / "checkpoints/step-000006/state.json")
    assert state["engine"]["updates"] == 5, "the bias correction does not count the skipped step"


class Greedy(Toy):
    """Has room for ``rows`` rows of training."""

    rows = 3

    def forward(self, batch: Any, *, noise: Any = None, memory: Any = None) -> Any:
        if len(batch) > self.rows and noise is not None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines")
        return super().forward(batch, noise=noise, memory=memory)


def test_out_of_memory_names_the_rows_that_fit_and_they_give_the_same_result(tmp_path: Path) -> None:
    with pytest.raises(
        OutOfMemory, match=r"rows of 8 tokens on cpu.*2 rows fit: --set execution.micro_rows=2"
    ) as error:
        train(Greedy(), RECIPE, toy_data(), tmp_path)
    assert error.value.code == 5 and "\n" not in str(error.value)
    train(Greedy(), replace(RECIPE, execution=Execution(micro_rows=2)), toy_data(), tmp_path)
    run(tmp_path / "roomy")
    assert metrics(tmp_path)[-1]["loss"] == pytest.approx(metrics(tmp_path / "roomy")[-1]["loss"], rel=1e-5)


def test_a_number_is_not_cut_from_a_lack_of_memory(tmp_path: Path) -> None:
    class Refused(Toy):
        everywhere = False

        def forward(self, batch: Any, *, noise: Any = None, memory: Any = None) -> Any:
            place = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator:"
            if not self.training and not self.everywhere:
                return super().forward(batch, noise=noise, memory=memory)
            raise RuntimeError(f"{place} can't allocate memory: you tried to allocate 402653184 bytes. {'x ' * 99}")

    with pytest.raises(OutOfMemory, match=r"allocate 402653184 bytes\..* \.\.\.\); not even one row"):
        train(Refused(), RECIPE, toy_data(), tmp_path)
    refused = Refused()
    refused.everywhere = True
    with pytest.raises(OutOfMemory, match=r"out of memory while validating on cpu \(.*; use shorter rows"):
        train(refused, RECIPE, toy_data(), tmp_path / "other")


def test_out_of_memory_with_one_row(tmp_path: Path) -> None:
    class Tight(Greedy):
        rows = 0

    with pytest.raises(OutOfMemory, match="not even one row fits: use shorter rows or a smaller model"):
        train(Tight(), RECIPE, toy_data(), tmp_path)


def test_a_library_of_the_gpu_without_memory_says_so_in_its_own_way() -> None:
    error = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    assert is_out_of_memory(error) and is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))


def test_other_errors_are_not_taken_for_a_lack_of_memory(tmp_path: Path) -> None:
    class Buggy(Toy):
        def forward(self, batch: Any, *, noise: Any = None, memory: Any = None) -> Any:
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        train(Buggy(), RECIPE, toy_data(), tmp_path)


def test_data_that_ends(tmp_path: Path) -> None:
    class Finite(Rows):
        def __next__(self) -> Any:
            if self.next_row >= 16:
                raise StopIteration
            return super().__next__()

    with pytest.raises(DataError, match="the data ended at step 2"):
        run(tmp_path, data=toy_data(source=Finite))


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    outcome = run(tmp_path, SHORT)
    other = Toy()
    other.extra = torch.nn.Linear(2, 2)
    with pytest.raises(DataError, match="extra.bias is only in one of them"):
        checkpoint.load_weights(other, outcome.checkpoint)


@pytest.mark.parametrize("part", [None, "place", "engine"])
def test_a_field_that_another_version_wrote_is_refused(part: str | None, tmp_path: Path) -> None:
    """Resumed without it, the run would be another one."""
    folder = run(tmp_path, SHORT).checkpoint
    state, manifest = read_json(folder / checkpoint.STATE), read_json(folder / checkpoint.MANIFEST)
    assert sorted(state) == sorted(PLAIN)
    (state if part is None else state[part])["colour"] = 1
    (folder / checkpoint.STATE).write_text(json.dumps(state))
    size, digest = (folder / checkpoint.STATE).stat().st_size, sha256(folder / checkpoint.STATE)
    manifest["files"][checkpoint.STATE] = {"bytes": size, "sha256": digest}
    (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="state.json: 'colour' is unknown to this version .*; continue with"):
        run(tmp_path, SHORT)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_tensor_of_a_checkpoint_in_another_type_is_refused_by_name(tmp_path: Path, precision: Any) -> None:
    """Weights, moments, averages and memory, hashed anew: converted on the way in, the numbers would be others."""
    recipe = replace(SHORT, precision=precision, average=WeightAverage(decay=0.5))
    folder = run(tmp_path, recipe).checkpoint
    kinds = set()
    for file in (checkpoint.WEIGHTS, checkpoint.CARRIED):
        whole, manifest = (folder / file).read_bytes(), (folder / checkpoint.MANIFEST).read_bytes()
        tensors = load_file(folder / file)
        for name, tensor in tensors.items():
            kinds.add(name.partition("/")[0] if "/" in name else "weight")
            for kind in (torch.int32, torch.float16, torch.float64):
                save_file({**tensors, name: tensor.to(kind)}, folder / file)
                entry = {"bytes": (folder / file).stat().st_size, "sha256": sha256(folder / file)}
                stated = json.loads(manifest)
                stated["files"][file] = entry
                (folder / checkpoint.MANIFEST).write_text(json.dumps(stated))
                checkpoint.verify(folder)
                with pytest.raises(DataError, match=f"{name} is {str(kind)[6:]} there and float32 in this model"):
                    run(tmp_path, recipe)
        (folder / file).write_bytes(whole)
        (folder / checkpoint.MANIFEST).write_bytes(manifest)
    assert kinds == {"weight", "exp_avg", "exp_avg_sq", "average", "memory"}


def test_noise_belongs_to_the_step_and_the_row() -> None:
    from encoderlab.nn.noise import Noise
    from tests.train.toy import batch_of

    model, batch = Toy(), batch_of(0, 4, 8)
    assert batch.rows is not None

    def loss(step: int) -> float:
        assert batch.rows is not None
        return model(batch, noise=Noise(1, step, batch.rows))[0]["lm"].sum.item()

    assert loss(3) == loss(3) != loss(4)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run(tmp_path, replace(SHORT, execution=Execution(tensorboard=True)))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/losses/lm")] == [1, 2, 3, 4, 5, 6]


def test_exit_code_of_a_process(tmp_path: Path) -> None:
    process = start(tmp_path / "a", {"optim.lr": 1e30, "clip": None, "schedule": {"kind": "constant"}})
    _, said = process.communicate(timeout=600)
    assert process.returncode == 6 and said.splitlines()[-1].startswith("error: step ")


def test_phase_default() -> None:
    assert Training().stage(0) == (0, 256)


def test_the_average_of_the_weights_is_validated_kept_and_ended_with(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []
    average = WeightAverage(decay=0.6)

    def score() -> Mapping[str, float]:
        seen.append(toy.mix.weight.detach().clone())
        return {"right": float(len(seen))}

    recipe = replace(
        RECIPE,
        average=average,
        evaluation=Evaluation(every=1, best="right"),
        checkpoints=Checkpoints(minutes=None, steps=1, keep=99),
    )
    toy = Toy()
    expected = toy.mix.weight.detach().clone()
    outcome = train(toy, recipe, toy_data(score=score), tmp_path)
    for step in range(1, 25):
        folder = tmp_path / "checkpoints" / checkpoint.name(step)
        decay = average.at(step)
        expected = decay * expected + (1 - decay) * StoredTensors(folder)["mix.weight"]
        torch.testing.assert_close(seen[step], expected)
    assert average.at(0) == 0.1 and average.at(24) == 0.6
    assert outcome.best is not None
    best = StoredTensors(outcome.best)["mix.weight"]
    assert torch.equal(best, seen[-1]) and torch.equal(toy.mix.weight, seen[-1])
    again = Toy(seed=1)
    checkpoint.load_result(again, outcome.checkpoint)
    assert torch.equal(again.mix.weight, seen[-1]) and torch.equal(again.table.weight, again.out.weight)
