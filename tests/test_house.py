"""Measures of the house: small rooms, short functions, no layers for their own sake, as much test as source."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "draftwood"
MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
Function = ast.FunctionDef | ast.AsyncFunctionDef
ROOM_LINES = 2500
LINES_OF_NINE_IN_TEN, MOST_LINES = 25, 60
EVIDENCE = ("bench", "certify", "doctor", "trace", "draw", "prompts")
"""Rooms that measure, certify, record and show."""
CALLED_FROM_OUTSIDE = {"emit", "submit", "format_options"}
"""What a base class of the standard library calls, and what only users of the library do."""
USED_ONCE = 0.40
"""Share of private helpers with one use: a helper shorter than its call's context belongs in its caller."""
TESTED = 0.76
"""Lines of tests for a line of source in those rooms: today's value, to go up to 1."""
USED_ONCE_ELSEWHERE = 0.62
"""The same outside of those rooms: today's value, to come down to the one above."""


class Helper(NamedTuple):
    """A private function or method, and how often the package names it."""

    place: str
    uses: int


def lines_of(*folders: Path) -> int:
    """Lines of all Python files below some folders."""
    files = [path for folder in folders for path in folder.rglob("*.py")]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def functions() -> Iterator[tuple[str, int]]:
    """(place, lines) of every function; of a command only the body counts, for its options stand in its signature."""
    for path, module in MODULES.items():
        commands = module.body if path.parent.name == "commands" else []
        for node in ast.walk(module):
            if isinstance(node, Function):
                start = node.body[0].lineno if node in commands and not node.name.startswith("_") else node.lineno
                assert node.end_lineno is not None
                yield f"{path.relative_to(SOURCE)}:{node.name}", node.end_lineno - start + 1


def names_in(module: ast.Module) -> Counter[str]:
    """How often each name is read, alone or behind a dot."""
    nodes = list(ast.walk(module))
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    return Counter(names + [node.attr for node in nodes if isinstance(node, ast.Attribute)])


def members(module: ast.Module) -> Iterator[Function | ast.ClassDef]:
    """Functions and classes of a module and of its classes."""
    owners = [module, *(node for node in ast.walk(module) if isinstance(node, ast.ClassDef))]
    for owner in owners:
        yield from (node for node in owner.body if isinstance(node, Function | ast.ClassDef))


def helpers(*, evidence: bool) -> list[Helper]:
    """Private helpers of the evidence rooms, or of all others; dunder methods are none."""
    found = []
    for path, module in MODULES.items():
        if (room_of(path) in EVIDENCE) == evidence:
            names = names_in(module)
            found += [
                Helper(f"{path.relative_to(SOURCE)}:{node.name}", names[node.name])
                for node in members(module)
                if isinstance(node, Function) and node.name.startswith("_") and not node.name.startswith("__")
            ]
    return found


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=lambda folder: folder.name)
def test_a_room_is_small(folder: Path) -> None:
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.glob("*.py")) <= ROOM_LINES


def test_functions_are_short() -> None:
    lengths = sorted(functions(), key=lambda item: item[1])
    assert lengths[int(0.9 * len(lengths))][1] <= LINES_OF_NINE_IN_TEN
    assert [item for item in lengths if item[1] > MOST_LINES] == []


def test_helpers_are_used() -> None:
    assert [helper.place for part in (True, False) for helper in helpers(evidence=part) if not helper.uses] == []


@pytest.mark.parametrize(("evidence", "limit"), [(True, USED_ONCE), (False, USED_ONCE_ELSEWHERE)])
def test_helpers_have_more_than_one_use(evidence: bool, limit: float) -> None:
    found = helpers(evidence=evidence)
    once = [helper.place for helper in found if helper.uses == 1]
    assert len(once) < limit * len(found), once


def test_everything_public_says_what_it_does() -> None:
    def silent(owner: ast.Module | ast.ClassDef, place: str) -> Iterator[str]:
        for node in owner.body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                if not ast.get_docstring(node):
                    yield f"{place}:{node.name}"
                if isinstance(node, ast.ClassDef):
                    yield from silent(node, f"{place}:{node.name}")

    assert [name for path, module in MODULES.items() for name in silent(module, str(path.relative_to(SOURCE)))] == []


def test_nothing_public_is_idle() -> None:
    """Every public function and class is named somewhere else in the package, the benchmarks or the examples.

    Oracles are for tests alone.
    """
    root = TESTS.parent
    outside = [path for folder in ("benchmarks", "examples") for path in (root / folder).glob("*.py")]
    named: Counter[str] = Counter()
    for module in [*MODULES.values(), *(ast.parse(path.read_text(encoding="utf-8")) for path in outside)]:
        named += names_in(module)
        constants = [node.value for node in ast.walk(module) if isinstance(node, ast.Constant)]
        named.update(value for value in constants if isinstance(value, str))
    idle = [
        f"{path.relative_to(SOURCE)}:{node.name}"
        for path, module in MODULES.items()
        for node in members(module)
        if path.stem != "oracle"
        and not node.name.startswith("_")
        and not named[node.name]
        and node.name not in CALLED_FROM_OUTSIDE
    ]
    assert idle == []


@pytest.mark.parametrize(("rooms", "share"), [(("cost",), 1.0), (EVIDENCE, TESTED)], ids=["cost", "evidence"])
def test_there_is_as_much_test_as_source(rooms: tuple[str, ...], share: float) -> None:
    """The whole rooms together: a short test of a long table is no fault."""
    tested, written = (lines_of(*(root / room for room in rooms)) for root in (TESTS, SOURCE))
    assert tested >= share * written, f"{tested} lines of tests for {written} of source"
