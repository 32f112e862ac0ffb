"""``encoderlab prune``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from encoderlab.commands.terminal import note, say, table
from encoderlab.commands.use import labelled_data
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import check_new, held_folder
from encoderlab.interchange.finetuned import best_seed

if TYPE_CHECKING:
    from encoderlab.inspection.pruning import OnTask


def prune(
    model: Path,
    out: Path,
    /,
    *,
    heads: float,
    on: str,
    split: str | None = None,
    folder: Annotated[Path | None, Parameter(name="--data")] = None,
    examples: int = 1000,
) -> dict[str, Any]:
    """Remove the attention heads that matter least, and report what that costs.

    The importance of a head is the absolute gradient of the loss with respect to a factor on
    its output (Michel et al., 2019). One half of the data chooses the heads; the other half
    gives the scores before and after. Every layer loses the same number of heads, so the result is an ordinary,
    smaller and faster model. OUT/pruning.md and OUT/pruning.json report it.

    Example:
        encoderlab prune runs/reviews smaller --heads 0.3 --on reviews.csv

    Parameters
    ----------
    model
        Folder of a model or run, small-en (comes with encoderlab), or org/name of the Hugging Face Hub. For generator
        and discriminator, the discriminator is pruned.
    out
        New folder of the smaller model.
    heads
        Share of the heads to remove, such as 0.3.
    on
        For a fine-tuned model, a labelled file, or the name of a benchmark whose files are in the folder of --data.
        For a pretrained one, a corpus, or a file with one text per line.
    split
        Split of a benchmark: train, dev, test, ... Default: dev.
    folder
        Folder with the benchmark's files.
    examples
        Number of examples, or of rows of 128 tokens, to read.
    """
    from encoderlab.deploy.sentence_transformers import copy_settings
    from encoderlab.inspection import pruning
    from encoderlab.inspection.heads import check_heads, least_important, without_heads
    from encoderlab.interchange import folder as folders
    from encoderlab.interchange import lengths
    from encoderlab.interchange.load import load_pair, model_folder
    from encoderlab.model import count_parameters
    from encoderlab.tasks.runs.folder import find_task

    if examples < 4:
        raise ConfigError(f"--examples is {examples}; give at least 4, half of them to choose the heads by")
    place = best_seed(model, say)
    with held_folder(out):
        check_new(out)
        network, generator = load_pair(place)
        gone = check_heads(network.config, heads)
        whole = network.config.encoder.heads
        if abs(gone / whole - heads) > 0.005:
            note(f"{gone} of {whole} heads per layer are removed, the share nearest to {heads:g}")
        measured: pruning.OnTask | pruning.OnText
        if network.task is not None:
            measured = _on_task(place, on, split or "dev", folder, examples)
        elif folder is not None or split is not None:
            option = "--split" if folder is None else "--data"
            raise ConfigError(f"{option} is for benchmarks, and the model has no task head; leave it out")
        else:
            measured = pruning.OnText.of(network, generator, on, examples)
        scores = measured.importance()
        kept = least_important(scores, gone)
        smaller = without_heads(measured.model, kept)
        before, after = measured.scores(measured.model), measured.scores(smaller)
        sizes = count_parameters(measured.model.config)["total"], count_parameters(smaller.config)["total"]
        record = pruning.record(str(model), scores, kept, before, after, sizes)
        task = find_task(place)

        def fill(aside: Path) -> None:
            pruning.write(record, aside)
            if task is not None:
                shutil.copyfile(task, aside / task.name)
            (copy_settings if smaller.task is None else lengths.copy)(model_folder(place), aside)

        folders.save(smaller.cpu(), out, also=fill)
    rows = [[name, f"{value:.4f}", f"{after[name]:.4f}"] for name, value in before.items()]
    count = record["heads"]
    table(f"{count['after']} of {count['before']} heads per layer", ["score", "before", "after"], rows)
    say(f"written to {out}; pruning.md has the importance of every head")
    return {"out": out, **record}


def _on_task(place: Path, on: str, split: str, folder: Path | None, examples: int) -> OnTask:
    """A fine-tuned model and the first labelled examples of a file or benchmark."""
    from encoderlab.inspection.pruning import OnTask
    from encoderlab.tasks.data.infer import Given
    from encoderlab.tasks.data.splits import text_hash
    from encoderlab.tasks.data.task import is_unlabelled
    from encoderlab.tasks.runs.apply import predictor_of

    predictor = predictor_of(place, note)
    own = predictor.form.task
    task, part, names = labelled_data(on, split, folder, own, Given(form=own.form))
    if any(theirs != ours for ours, theirs in names.items()):
        raise ConfigError(
            f"{on}: has other labels than the model ({', '.join(names)[:80]}); give a file with the model's"
        )
    kept = [example for example in part.examples if not is_unlabelled(example)][:examples]
    if len(kept) < 4:
        raise DataError(f"{on}: has {len(kept)} labelled examples, expected at least 4; give more")
    if len({*map(text_hash, kept)}) < 2:
        raise DataError(f"{on}: its {len(kept)} labelled examples have one text; give others, too, for the other half")
    return OnTask(predictor, task, kept)
