"""Put a run's model into the package: bfloat16 weights, and a card from what was measured.

python -m benchmarks.pretrained.pack runs/small-en-third benchmarks/pretrained/small-en.md small-en
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import torch

import encoderlab
from encoderlab.interchange import checksums, folder
from encoderlab.interchange.places import PRETRAINED


def main(run: str, card: str, name: str) -> None:
    place = PRETRAINED / name
    with tempfile.TemporaryDirectory() as aside:
        encoderlab.load(run).to(torch.bfloat16).save(aside)

        def fill(whole: Path) -> None:
            for file in Path(aside).iterdir():
                if file.name != checksums.NAME:
                    shutil.copy(file, whole)
            shutil.copy(card, whole / "README.md")

        folder.write_whole(place, fill)
    size = sum(path.stat().st_size for path in place.iterdir())
    print(f"{place}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
