"""Options of policies as a caller of the engine gives them."""

from __future__ import annotations

import pytest
from tiny_bench import engine, profile, text_of, units

from draftwood.errors import UsageError


def test_a_list_of_widths_is_as_good_as_a_tuple() -> None:
    prompt = list(units()[0].prompt_ids)
    made = engine(profile=profile())
    results = []
    for grid in ([4, 8], (4, 8)):
        made.reset_policies()
        results += made.generate([prompt], policy="cast", grid=grid, max_tokens=24)
    assert [one.token_ids for one in results] == [text_of(prompt)[:24]] * 2
    rows = [[record.rows for record in one.rounds] for one in results]
    assert rows[0] == rows[1] and max(rows[0]) in (5, 9)


def test_a_wrong_type_is_refused_before_anything_runs() -> None:
    made = engine(profile=profile())
    with pytest.raises(UsageError, match=r"^grid \[4, 'x'\]: expected whole numbers or None$"):
        made.generate([list(units()[0].prompt_ids)], policy="cast", grid=[4, "x"])
    assert made.state.waiting == []
