"""Options of policies: their types, and that whatever is accepted leaves a policy a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from draftwood.errors import UsageError
from draftwood.policy import POLICIES, make_policy, policy_options
from draftwood.policy.cast import Cast
from draftwood.policy.ddtree import DdTree
from draftwood.policy.options import about, options_of, settle


@pytest.mark.parametrize(
    ("name", "given", "same"),
    [
        ("cast", {"grid": [4, 8]}, {"grid": (4, 8)}),
        ("cast", {"grid": np.array([4, 8])}, {"grid": (4, 8)}),
        ("cast", {"grid": range(4, 9, 4)}, {"grid": (4, 8)}),
        ("cast", {"fit_rows": [1, 9], "min_nodes": np.int64(2)}, {"fit_rows": (1, 9), "min_nodes": 2}),
        ("cast", {"grid": None}, {}),
        ("ddtree", {"budget": np.int32(7), "candidates": None}, {"budget": 7}),
        ("auto", {"skipping": np.bool_(False), "candidates": np.int64(4)}, {"skipping": False, "candidates": 4}),
        ("auto", {"rate": "fixed", "fixed_rate": np.float32(2)}, {"rate": "fixed", "fixed_rate": 2.0}),
    ],
)
def test_values_of_like_types_make_the_same_policy(name: str, given: dict[str, Any], same: dict[str, Any]) -> None:
    policy, expected = make_policy(name, **given), make_policy(name, **same)
    assert policy == expected and hash(policy) == hash(expected)
    assert {policy: 1}[expected] == 1
    for option in policy_options(name).values():
        value = getattr(policy, option.field)
        assert type(value) is type(getattr(expected, option.field))
        assert not isinstance(value, list | np.ndarray | np.generic)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cast", {"grid": "4,8"}, r"grid '4,8': expected whole numbers or None$"),
        ("cast", {"grid": 4}, r"grid 4: expected whole numbers or None$"),
        ("cast", {"grid": [4, 8.5]}, r"grid \[4, 8\.5\]: expected whole numbers or None$"),
        ("cast", {"grid": [[4], [8]]}, r"grid \[\[4\], \[8\]\]: expected whole numbers or None$"),
        ("cast", {"grid": []}, r"grid '': expected increasing widths$"),
        ("cast", {"fit_rows": [16]}, r"fit_rows \[16\]: expected 2 whole numbers$"),
        ("ddtree", {"budget": "4"}, r"budget '4': expected a whole number$"),
        ("ddtree", {"budget": 4.0}, r"budget 4\.0: expected a whole number$"),
        ("ddtree", {"budget": True}, r"budget True: expected a whole number$"),
        ("ddtree", {"budget": None}, r"budget None: expected a whole number$"),
        ("ddtree", {"candidates": [4]}, r"candidates \[4\]: expected a whole number or None$"),
        ("auto", {"skipping": "off"}, r"skipping 'off': expected True or False$"),
        ("auto", {"calibration": 1}, r"calibration 1: expected True or False$"),
        ("auto", {"rate": 3}, r"rate 3: expected a text$"),
        ("auto", {"rate": ["local"]}, r"rate \['local'\]: expected a text$"),
        ("auto", {"rate": "fixed", "fixed_rate": "3"}, r"fixed_rate '3': expected a number or None$"),
    ],
)
def test_wrong_types_are_named_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_policy(name, **options)
    assert "\n" not in str(caught.value)


def test_a_policy_built_directly_is_settled_too() -> None:
    assert hash(Cast(grid=[4, 8])) == hash(Cast(grid=(4, 8)))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="budget"):
        DdTree(budget=2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", POLICIES)
def test_every_option_says_what_it_is(name: str) -> None:
    for option in policy_options(name).values():
        assert option.help.endswith(".") and option.flag.startswith("--")
        assert option.checked(option.default) == getattr(POLICIES[name](), option.field)


def test_what_a_field_becomes() -> None:
    @dataclass(frozen=True, slots=True)
    class Toy:
        plain: int = 3
        told: tuple[int, ...] = field(default=(), metadata=about("Told.", "N", name="other", flag="--that"))
        inner: dict[str, int] | None = field(default=None, metadata={"option": False})
        name: ClassVar[str] = "toy"

        def __post_init__(self) -> None:
            settle(self)

    found = options_of(Toy)
    assert list(found) == ["plain", "other"]
    assert (found["plain"].kind, found["plain"].flag, found["plain"].help) == (int, "--plain", "Option of policy toy.")
    assert (found["other"].kind, found["other"].flag, found["other"].field) == (tuple, "--that", "told")

    @dataclass(frozen=True)
    class Odd:
        table: dict[str, int] = field(default_factory=dict)

    with pytest.raises(TypeError, match=r"Odd.table: .* is no type of an option"):
        options_of(Odd)
