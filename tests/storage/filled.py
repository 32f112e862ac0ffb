"""Fill a folder with text, and a store with a folder."""

from __future__ import annotations

import gzip
import json
import random
import zipfile
from pathlib import Path

from encoderlab.corpus.build import NewTokenizer
from encoderlab.storage import places

TOKENIZER = NewTokenizer(vocab_size=300, sample_bytes=200_000)


def write_texts(folder: Path) -> Path:
    """Text in several formats, one larger than a block of the reader."""
    draw = random.Random(1)
    words = [f"word{number}" for number in range(2000)]

    def paragraph() -> str:
        return " ".join(draw.choices(words, k=40))

    folder.mkdir()
    long = "\n\n".join(paragraph() for _ in range(2500))
    (folder / "a.txt").write_text(long)
    with gzip.open(folder / "b.txt.gz", "wt") as file:
        file.write("\n\n".join(paragraph() for _ in range(300)))
    (folder / "c.jsonl").write_text("".join(json.dumps({"text": paragraph()}) + "\n" for _ in range(200)))
    (folder / "d.csv").write_text("id,text\n" + "".join(f'{n},"{paragraph()}"\n' for n in range(100)))
    with zipfile.ZipFile(folder / "e.zip", "w") as archive:
        archive.writestr("inside.txt", paragraph())
    return folder


def put(folder: Path, url: str) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            places.upload(path, places.join(url, path.relative_to(folder).as_posix()))


def tensors_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*.safetensors"))
        if path.is_file()
    }


def tree_of(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
