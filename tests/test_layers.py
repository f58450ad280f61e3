"""Imports point only down and never in a circle; few places know transformers, the environment or a clock."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "draftwood"
LAYERS = (
    {"errors"},
    {"core", "files", "kernel", "memory", "pages"},
    {"batch", "tree", "cost", "linear"},
    {"cache", "verify", "policy"},
    {"attention"},
    {"draft", "models"},
    {"engine"},
    {"prompts"},
    {"certify"},
    {"bench"},
    {"trace", "doctor"},
    {"draw"},
    {"cli"},
    {"__main__"},
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PACKAGE = "draftwood"
MODULES = sorted(SOURCE.rglob("*.py"))
PURE = ("tree", "policy", "verify", "cost/fit")


def unit(parts: tuple[str, ...]) -> str | None:
    """The layered unit of a dotted module path inside the package; None for the package's own `__init__`."""
    if not parts or parts == ("__init__",):
        return None
    return parts[0]


def imported(path: Path, root: Path = SOURCE) -> Iterator[tuple[str, ...]]:
    """Absolute dotted paths, as tuples, of everything a module imports, also inside functions and for typing."""
    here = (PACKAGE, *path.relative_to(root).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            yield from ((*base, alias.name) for alias in node.names)


def upward_imports(path: Path, root: Path = SOURCE) -> list[str]:
    """The imports of a module that point to a higher layer, to another unit of its own, or to one without a place."""
    own = unit(path.relative_to(root).with_suffix("").parts)
    if own is None:
        return []
    found = []
    for target in imported(path, root):
        other = unit(target[1:]) if target[0] == PACKAGE else None
        # Names that the package itself offers (its version, the engine) count as the engine, except the version.
        if target[0] == PACKAGE and target[1:] != ("__version__",):
            other = other if other in RANK else "engine"
            if other != own and RANK[other] >= RANK[own]:
                found.append(".".join(target))
    return found


def import_graph(root: Path = SOURCE) -> dict[str, set[str]]:
    """The modules that each module imports; what the package itself offers, but for its version, counts as the engine.

    A name that is no module counts as the module that offers it.
    """
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = (PACKAGE, *path.relative_to(root).with_suffix("").parts)
        modules[parts[:-1] if parts[-1] == "__init__" else parts] = path
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = set()
        for target in imported(path, root) if name != (PACKAGE,) else ():
            if target[:-1] == (PACKAGE,) and target not in modules and target[-1] != "__version__":
                target = (PACKAGE, "engine")
            found.add(target if target in modules else target[:-1])
        graph[".".join(name)] = {".".join(target) for target in found & set(modules)} - {PACKAGE}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle of imports, the first of them last too; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    own = unit(path.relative_to(SOURCE).with_suffix("").parts)
    assert own is None or own in RANK, f"{own} has no place in the order of layers"
    assert upward_imports(path) == []


def test_no_imports_in_a_circle() -> None:
    """Also those inside functions and those for types alone: a module can be understood before its users are."""
    graph = import_graph()
    assert len(graph) == len(MODULES) and "draftwood.core" in graph["draftwood.tree.grow"]
    assert circle(graph) == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_two_layers_know_transformers(path: Path) -> None:
    allowed = name_of(path).startswith(("models/", "draft/")) or name_of(path) == "attention/__init__.py"
    assert allowed or not any(target[0] == "transformers" for target in imported(path))


@pytest.mark.parametrize("path", [path for path in MODULES if name_of(path).startswith(PURE)], ids=name_of)
def test_pure_layers_have_no_clock_model_or_random_module(path: Path) -> None:
    assert not {target[0] for target in imported(path)} & {"time", "random", "transformers", "tokenizers"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_the_environment_is_read_in_the_command_line_and_for_the_cache_folder_only(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    reads = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & {"environ", "getenv"}
    # Python users and the shell keep converted models in the same place.
    assert not reads or name_of(path).startswith("cli/") or name_of(path) == "engine/loading.py"


def test_an_upward_import_is_found(tmp_path: Path) -> None:
    module = tmp_path / "tree" / "bad.py"
    module.parent.mkdir()
    lines = {
        "from ..core import Pack": [],
        "from . import grow": [],
        "import numpy": [],
        "from ..engine import Engine": ["draftwood.engine.Engine"],
        "from ..cli import io": ["draftwood.cli.io"],
        "from .. import Engine": ["draftwood.Engine"],
        "def f():\n    import draftwood.policy.ar": ["draftwood.policy.ar"],
    }
    for line, expected in lines.items():
        module.write_text(line)
        assert upward_imports(module, tmp_path) == expected


def test_an_import_of_a_sibling_is_found(tmp_path: Path) -> None:
    module = tmp_path / "verify" / "bad.py"
    module.parent.mkdir()
    module.write_text("from ..policy import ar")
    assert upward_imports(module, tmp_path) == ["draftwood.policy.ar"]
    module.write_text("from ..tree import grow\nfrom .walk import walk")
    assert upward_imports(module, tmp_path) == []


def test_a_circle_is_found_wherever_its_imports_stand(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "__init__.py").write_text("from .engine import Engine")
    (tmp_path / "engine" / "__init__.py").write_text("from .engine import Engine")
    (tmp_path / "engine" / "engine.py").write_text("def f():\n    from .low import work")
    low = tmp_path / "engine" / "low.py"
    low.write_text("from .. import __version__")
    assert circle(import_graph(tmp_path)) == []
    for line in ("from .. import Engine", "if TYPE_CHECKING:\n    from .engine import Engine", "from . import engine"):
        low.write_text(line)
        assert "draftwood.engine.low" in circle(import_graph(tmp_path)), line
