"""How deep a call goes: from `generate` to the model's forward in five calls, the hand-over to the loop one of them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from stepping import submit
from summing import SummingDrafter, SummingTarget, text_of

import draftwood
from draftwood.engine import Engine, SamplingParams
from draftwood.policy import make_policy

PACKAGE = str(Path(draftwood.__file__).parent)


def calls(frame: FrameType | None) -> list[str]:
    """Functions of the package on a stack, outermost first."""
    found: list[str] = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            found.append(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)
        frame = frame.f_back
    return found[::-1]


def names(found: list[str]) -> list[str]:
    return [name.rpartition(".")[2] for name in found]


def test_five_calls_from_generate_to_the_forward() -> None:
    seen: list[tuple[list[str], list[str]]] = []
    main = threading.get_ident()

    def look(rows: int) -> tuple[()]:
        frames: dict[int, Any] = sys._current_frames()
        seen.append((names(calls(frames[main])), names(calls(frames[threading.get_ident()]))))
        return ()

    with Engine(SummingTarget(fault=look), SummingDrafter()) as engine:
        (output,) = engine.generate([[1, 2, 3]], policy="ddtree", budget=6, max_tokens=20)
    assert output.token_ids == text_of([1, 2, 3], 20) and len(seen) > 3
    for reader, loop in seen:
        # The reader hands over and waits, `get` and below; the loop's thread begins with its own `_serve`.
        asked = reader[: reader.index("run") + 1]
        assert asked == ["generate", "run"] and loop[0] == "_serve"
        way = [*asked[1:], *loop[1:], "forward"]
        assert way == ["run", "step", "step", "verify", "forward"] and len(way) <= 5


def test_by_hand_it_is_the_loops_step_alone() -> None:
    seen: list[list[str]] = []

    def look(rows: int) -> tuple[()]:
        seen.append(names(calls(sys._getframe())))
        return ()

    engine = Engine(SummingTarget(fault=look), SummingDrafter())
    submit(engine, [1, 2, 3], make_policy("chain"), SamplingParams(9, end_ids=frozenset()))
    while engine.loop.step():
        pass
    assert seen and set(map(tuple, seen)) == {("step", "step", "verify")}
