"""A module imports only from the groups above its own: the picture of docs/architecture.md, held by this test."""

from __future__ import annotations

import ast
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import encoderlab
from encoderlab.cli import FENGSHEN, VERBS

SOURCE = Path(encoderlab.__file__).parent
ORDER = [  # first to last: each group may use those before it
    ["errors"],
    ["processor", "seeds", "ranges", "protobuf", "messages", "files", "part_files", "mapped", "tensor_files"],
    ["sealed"],
    ["storage"],
    ["config"],
    ["execution"],
    ["records", "pages"],
    ["nn"],
    ["models"],
    ["corpus"],
    ["batches"],
    ["model"],
    ["inference", "interchange"],
    ["objectives"],
    ["train"],
    ["recipes"],
    ["tasks"],
    ["measure"],
    ["inspection"],
    ["study"],
    ["adapt"],
    ["deploy"],
    ["commands"],
    ["cli"],
    ["__main__"],
]
TASKS = [  # the same inside tasks
    "scoring",
    ("data.examples", "data.plain_words", "data.records", "data.readers"),
    "forms",
    "data",
    "runs",
]
RANK = {name: place for place, names in enumerate(ORDER) for name in names}
INSIDE_FUNCTIONS = {  # conveniences of the Python interface, imported when they are called
    ("__init__", "model"),
    ("__init__", "interchange"),
    ("model", "inference"),
    ("model", "interchange"),
    ("model", "inspection"),
}
TORCH_FREE = (
    "__init__",
    "__main__",
    "cli",
    "commands",
    "errors",
    "processor",
    "seeds",
    "ranges",
    "protobuf",
    "files",
    "messages",
    "sealed",
    "storage",
    "mapped",
    "tensor_files",
    "config",
    "execution",
    "records",
    "pages",
    "corpus",
)


def imports() -> list[tuple[Path, str, str, bool]]:
    """File, its group, the imported module, and whether the import stands at the top of the module."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        relative = path.relative_to(SOURCE)
        group = relative.parts[0] if len(relative.parts) > 1 else relative.stem
        top = set(map(id, _top(tree)))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert node.level == 0, f"{relative}:{node.lineno}: relative import; write it in full"
                whole = node.module == "encoderlab"
                names = [f"encoderlab.{alias.name}" for alias in node.names] if whole else [node.module]
            else:
                continue
            found += [(relative, group, name, id(node) in top) for name in names]
    return found


def _top(tree: ast.Module) -> list[ast.stmt]:
    """Statements that run on import, without those under ``if TYPE_CHECKING``."""
    return [node for node in tree.body if not isinstance(node, (ast.If, ast.FunctionDef, ast.ClassDef))]


def test_every_module_belongs_to_a_group():
    groups = {
        path.name.removesuffix(".py")
        for path in SOURCE.iterdir()
        if path.name not in ("__pycache__", "__init__.py", "py.typed", "pretrained")
    }
    assert groups == set(RANK)


def test_a_module_imports_only_from_groups_above_it():
    wrong = []
    for path, group, name, top in imports():
        if not name.startswith("encoderlab.") or name == "encoderlab.__version__":
            continue
        other = name.split(".")[1]
        if other == group or (group, other) in INSIDE_FUNCTIONS and not top:
            continue
        if (group, other) == ("__init__", "processor"):  # must come before torch's first product
            continue
        if RANK.get(other, 99) >= RANK.get(group, -1):
            wrong.append(f"{path}: {group} imports {name}")
    assert not wrong, "\n".join(wrong)


def _imported(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """All imports that may run, in functions too; those under ``if TYPE_CHECKING`` never do."""
    found: list[ast.Import | ast.ImportFrom] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        found += [node] if isinstance(node, (ast.Import, ast.ImportFrom)) else _imported(node)
    return found


def _modules() -> dict[str, ast.Module]:
    """Every module of the project by its name."""
    trees = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


MODULES = _modules()


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that an import loads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    within = [f"{node.module}.{alias.name}" for alias in node.names]
    return [module if module in MODULES else str(node.module) for module in within]


def _place_in_tasks(module: str) -> int:
    return next(place for place, names in enumerate(TASKS) if f"{module}.".startswith(names))


def test_tasks_are_data_and_scores_then_forms_then_runs():
    inside = {name.removeprefix("encoderlab.tasks."): tree for name, tree in MODULES.items() if ".tasks." in name}
    wrong = [
        f"{module} imports {name}"
        for module, tree in inside.items()
        for name in {name.removeprefix("encoderlab.tasks.") for node in _imported(tree) for name in _names(node)}
        if name in inside and _place_in_tasks(name) > _place_in_tasks(module)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_import_is_a_circle():
    graph = {
        name: {module for node in _imported(tree) for module in _names(node)} & MODULES.keys() - {name}
        for name, tree in MODULES.items()
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@cache
def _at_top(name: str) -> set[str]:
    """What importing a module imports: its packages, and the imports that do not stand in a function."""
    names = {name.rpartition(".")[0]} - {"", "encoderlab"}
    for statement in MODULES[name].body:
        nodes = _imported(statement) if isinstance(statement, ast.Try) else [statement]
        names.update(*(_names(node) for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))))
    return names


@cache
def _loads(name: str) -> set[str]:
    """The packages of others that importing a module loads, directly or not."""
    seen, waiting = set(), [name]
    while waiting:
        if (one := waiting.pop()) not in seen:
            seen.add(one)
            waiting += _at_top(one) if one in MODULES else ()
    return {one.split(".")[0] for one in seen} - sys.stdlib_module_names - {"encoderlab"}


LOADED_FOR_HELP = {"attrs", "cyclopts", "rich"}
NOT_EVERYWHERE = {"fcntl", "pydoc_data", "resource"}  # of the standard library, but not of every system


def test_an_import_inside_a_function_loads_a_package():
    """Else it stands at the top: the one reason for another place is a package that only this function needs."""
    wrong = []
    for module, tree in MODULES.items():
        group = [*module.split("."), "__init__"][1]
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for name in {name for function in functions for node in _imported(function) for name in _names(node)}:
            convenience = name in MODULES and (group, name.split(".")[1]) in INSIDE_FUNCTIONS
            more = _loads(name) - _loads(module) - (LOADED_FOR_HELP if name in MODULES else set())
            if not more and not convenience and name.split(".")[0] not in NOT_EVERYWHERE:
                wrong.append(f"{module}: {name}")
    assert not wrong, "move to the top: " + ", ".join(sorted(wrong))


def test_help_of_a_verb_loads_no_package():
    verbs = {target.split(":")[0] for _, target, _ in {**VERBS, **FENGSHEN}.values()}
    wrong = {verb: more for verb in verbs if (more := _loads(f"encoderlab.commands.{verb}") - LOADED_FOR_HELP)}
    assert not wrong, wrong


def test_what_the_command_line_needs_for_help_imports_no_torch():
    wrong = [
        f"{path}: {name}"
        for path, group, name, top in imports()
        if top and group in TORCH_FREE and name.split(".")[0] in ("torch", "transformers")
    ]
    assert not wrong, "\n".join(wrong)
