"""A module imports only from the groups above its own: the picture of docs/architecture.md, held by this test."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import encoderlab

SOURCE = Path(encoderlab.__file__).parent
ORDER = [  # first to last: each group may use those before it
    ["errors"],
    ["processor", "seeds", "ranges", "protobuf", "files", "tensor_files"],
    ["config"],
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
    ["execution"],
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
    "tensor_files",
    "config",
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


def test_no_import_is_a_circle():
    files = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        graph[name] = set()
        for node in _imported(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            else:
                within = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted = [module if module in files else str(node.module) for module in within]
            graph[name] |= set(wanted) & files.keys() - {name}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_what_the_command_line_needs_for_help_imports_no_torch():
    wrong = [
        f"{path}: {name}"
        for path, group, name, top in imports()
        if top and group in TORCH_FREE and name.split(".")[0] in ("torch", "transformers")
    ]
    assert not wrong, "\n".join(wrong)
