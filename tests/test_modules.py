"""docs/modules.md names every module with the first sentence of its docstring.

``python -m tests.test_modules`` writes the page.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import encoderlab

SOURCE = Path(encoderlab.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "modules.md"
ARCHITECTURE = PAGE.with_name("architecture.md")
README = Path(__file__).parents[1] / "README.md"
HEAD = """# Modules

Every module in one line, by package; [architecture.md](architecture.md) says what the packages are for and which may
import which. Written from the docstrings by `python -m tests.test_modules`.
"""


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring, without markup; a colon and what follows it are part of it."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    first = re.split(r"(?<!et al\.)(?<=\.) ", first)[0]
    for role in (":class:", ":func:", ":mod:", ":meth:", ":data:", ":attr:"):
        first = first.replace(role, "")
    return first.replace("``", "`")


def page() -> str:
    packages: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        if path.name == "__init__.py" and not sentence(path):
            continue
        name = relative.parent.as_posix()
        packages.setdefault("encoderlab" if name == "." else name, []).append(f"- `{path.name}`: {sentence(path)}")
    parts = [f"## {name}\n\n" + "\n".join(lines) + "\n" for name, lines in packages.items()]
    return HEAD + "\n" + "\n".join(parts)


def test_every_module_says_what_it_is():
    silent = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.read_text(encoding="utf-8").strip() and not sentence(path)
    ]
    assert not silent, f"modules without a docstring: {', '.join(silent)}"


def test_the_page_names_every_module_as_it_is():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m tests.test_modules"


@pytest.mark.parametrize(("page", "title", "least"), [(ARCHITECTURE, "things happen", 10), (README, "in the code", 4)])
def test_things_happen_where_the_tables_say(page: Path, title: str, least: int):
    """A row names a file, and then functions and classes of it."""
    table = page.read_text(encoding="utf-8").split(f"## Where {title}\n")[1].split("\n## ")[0]
    named = 0
    for row in table.splitlines()[3:]:
        text = ""
        for word in re.findall("`([^`]+)`", row):
            place = SOURCE / word
            if "/" in word or word.endswith(".py"):
                assert place.exists(), row
                text = place.read_text(encoding="utf-8") if place.is_file() else ""
            elif text:
                named += 1
                assert all(re.search(rf"(def|class) {part}\b", text) for part in word.split(".")), row
    assert named >= least


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
