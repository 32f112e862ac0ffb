"""The text of small-zh: at most ten million Chinese words, of translated articles and of classics in modern Chinese.

    git clone https://github.com/LCTT/TranslateProject
    git -C TranslateProject checkout 4948360714403ebcefc3abff80dcc69ad706bf5d
    python -m benchmarks.pretrained.text_zh DATA/pretrain_zh TranslateProject runs/text/zh

Of the articles (``published/``, Apache 2.0) it keeps prose: no code, tables, pictures or link targets, no line in which
fewer than half of the characters are Chinese, no article with fewer than 200 characters left. Whole documents are drawn
by the hash of their text, as for small-en. Words are counted by jieba's segmentation.
"""

from __future__ import annotations

import argparse
import gzip
import re
import subprocess
from pathlib import Path

import rjieba

from benchmarks.studies.text import choose

SOURCES = {"articles": 6_000_000, "classics": 4_000_000}
CHINESE = re.compile("[\u4e00-\u9fff]")
FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])")
MARKS = re.compile(r"^\s*(#+|[-*+>]|\d+[.、)])\s*|[*_`]{1,3}|<[^>]+>")
SHORTEST = 200


def prose(markdown: str) -> str:
    """The sentences of an article, a paragraph a line."""
    lines = []
    for line in LINK.sub(r"\1", FENCED.sub("", markdown)).splitlines():
        line = MARKS.sub("", line).strip()
        if line.startswith("|") or len(line) < 10 or len(CHINESE.findall(line)) < len(line) / 2:
            continue
        if not line.startswith(("via", "作者", "译者", "校对", "本文由")):
            lines.append(line)
    return "\n".join(lines)


def articles(repository: Path) -> list[str]:
    """The prose of all published articles, in the order of their names."""
    git = ["git", "-C", str(repository)]
    listing = subprocess.run(
        [*git, "ls-tree", "-rz", "--name-only", "HEAD", "published/"], capture_output=True, check=True
    )
    names = [name for name in listing.stdout.decode().split("\0") if name.endswith(".md")]
    wanted = "".join(f"HEAD:{name}\n" for name in names if "\n" not in name)
    blobs = subprocess.run([*git, "cat-file", "--batch"], input=wanted.encode(), capture_output=True, check=True).stdout
    texts, at = [], 0
    while at < len(blobs):
        end = blobs.index(b"\n", at)
        size = int(blobs[at:end].split()[2])
        texts.append(prose(blobs[end + 1 : end + 1 + size].decode("utf-8", errors="ignore")))
        at = end + size + 2
    return [text for text in texts if len(text) >= SHORTEST]


def words(text: str) -> int:
    return sum(len(rjieba.cut(line)) for line in text.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("repository", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    text = gzip.open(given.data / "classics_in_modern_chinese.txt.gz", "rt", encoding="utf-8").read()
    documents = {
        "articles": articles(given.repository),
        "classics": [document.strip() for document in text.split("\n\n") if document.strip()],
    }
    for name, limit in SOURCES.items():
        kept = choose(documents[name], limit, words)
        (given.out / f"{name}.txt").write_text("\n\n".join(kept) + "\n", encoding="utf-8")
        print(f"{name}: {len(kept):,} of {len(documents[name]):,} documents, {sum(map(words, kept)):,} words")


if __name__ == "__main__":
    main()
