"""Score minimal pairs with encoderlab and with a plain ``transformers`` loop: the same answers, and what they cost.

    python -m benchmarks.minimal_pairs MODEL DATA ... [--pairs 670] [--turns 3]

MODEL is a folder in the format of ``transformers`` (``encoderlab convert RUN OUT --to hf``), DATA files or folders of
pairs, of which a sample is scored. The plain loop masks each token by itself, as the scorer of the BabyLM challenge
does, in batches of 64 rows; the two take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoderlab.inference import placed
from encoderlab.interchange.load import load
from encoderlab.measure.pairs.evaluate import score_pairs
from encoderlab.measure.pairs.reading import Pair, find, read_all, sample
from encoderlab.measure.pairs.scorers import scorers_of
from encoderlab.nn import kernels

ROWS = 64  # rows in a batch of the plain loop


@torch.inference_mode()
def plain(network: Any, tokenizer: Any, pairs: Sequence[Pair]) -> np.ndarray:
    """Scores (n, 2) by the rule of the official scorer."""
    rows, targets, sentences = [], [], []
    for number, text in enumerate(text for pair in pairs for text in (pair.good, pair.bad)):
        encoded = tokenizer(text, return_offsets_mapping=True)
        for place, (_, end) in enumerate(encoded["offset_mapping"]):
            if end > 0:
                ids = list(encoded["input_ids"])
                targets.append((place, ids[place]))
                ids[place] = tokenizer.mask_token_id
                rows.append(ids)
                sentences.append(number)
    scores = np.zeros(2 * len(pairs))
    for start in range(0, len(rows), ROWS):
        part = slice(start, start + ROWS)
        batch = tokenizer.pad({"input_ids": rows[part]}, return_tensors="pt")
        logits = network(**batch).logits
        at, wanted = (torch.tensor(column) for column in zip(*targets[part], strict=True))
        found = logits[torch.arange(len(at)), at].log_softmax(-1)[torch.arange(len(at)), wanted]
        np.add.at(scores, sentences[part], found.double().numpy())
    return scores.reshape(-1, 2)


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(prog="python -m benchmarks.minimal_pairs", description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--pairs", type=int, default=670, help="number of pairs to score, the same for each paradigm")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    pairs = sample([*read_all(find(arguments.data))], arguments.pairs)
    ours, small = placed(load(arguments.model)), placed(load(arguments.model), "int8")
    assert ours.tokenizer is not None
    texts = ours.tokenizer.encode_batch([text for pair in pairs for text in (pair.good, pair.bad)])
    tokens = list(zip(texts[::2], texts[1::2], strict=True))
    network = transformers.AutoModelForMaskedLM.from_pretrained(arguments.model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    kernels.keep_memory()
    seconds: dict[str, list[float]] = {}
    found: dict[str, np.ndarray] = {}
    for _ in range(arguments.turns):
        for name, work in (
            ("encoderlab", lambda: score_pairs(scorers_of(ours, official=True), tokens)[:, :, 0]),
            ("both measures", lambda: score_pairs(scorers_of(ours), tokens)[:, :, 0]),
            ("int8", lambda: score_pairs(scorers_of(small, official=True), tokens)[:, :, 0]),
            ("transformers", lambda: plain(network, tokenizer, pairs)),
        ):
            begin = time.process_time()
            found[name] = work()
            seconds.setdefault(name, []).append(time.process_time() - begin)
            print(f"{name}: {seconds[name][-1]:.1f} CPU seconds", flush=True)
    theirs = found["transformers"]
    print(f"{len(pairs)} pairs, 60,000 pairs in CPU minutes, and compared with transformers:")
    for name, scores in found.items():
        same = ((scores[:, 0] > scores[:, 1]) == (theirs[:, 0] > theirs[:, 1])).mean()
        minutes = statistics.median(seconds[name]) / len(pairs) * 1000
        ratios = [f"{other / own:.2f}" for own, other in zip(seconds[name], seconds["transformers"], strict=True)]
        print(
            f"{name}: {minutes:.0f} minutes, {same:.2%} decided alike, scores differ by up to "
            f"{np.abs(scores - theirs).max():.2g}; ratios {', '.join(ratios)}"
        )


if __name__ == "__main__":
    main()
