"""What a bench compares: rows from names and budgets, panels, and errors planted in what a row believes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftwood.bench.plan import BenchRow, CostNoise, Panel, fixed_row, rows_of
from draftwood.cost.profile import CostProfile
from draftwood.errors import UsageError
from draftwood.policy import POLICIES

ROWS = (BenchRow("ar", "ar"), BenchRow("chain", "chain"))


def labels(rows: tuple[BenchRow, ...]) -> list[str]:
    return [row.label for row in rows]


class TestRows:
    def test_plain_decoding_comes_first_asked_for_or_not(self) -> None:
        assert labels(rows_of(["chain"], [])) == ["ar", "chain"]
        assert labels(rows_of(["chain", "ar"], [])) == ["ar", "chain"]
        assert labels(rows_of([], [])) == ["ar"]

    def test_a_budget_is_a_row_of_its_own(self) -> None:
        rows = rows_of(["chain"], [8, 16])
        assert labels(rows) == ["ar", "chain", "ddtree 8", "ddtree 16"]
        assert [row.budget for row in rows] == [None, None, 8, 16]
        assert rows[2] == fixed_row(8) == BenchRow("ddtree 8", "ddtree", {"budget": 8}, budget=8)

    def test_ddtree_among_the_names_says_where_the_budgets_stand(self) -> None:
        assert labels(rows_of(["ddtree", "chain"], [8])) == ["ar", "ddtree 8", "chain"]
        (_, default) = rows_of(["ddtree"], [])
        assert (default.label, default.budget) == ("ddtree", None)

    def test_candidates_go_to_the_rows_that_take_them(self) -> None:
        options = {row.label: dict(row.options) for row in rows_of(["chain", "auto"], [4], candidates=6)}
        assert options == {
            "ar": {}, "chain": {}, "auto": {"candidates": 6}, "ddtree 4": {"budget": 4, "candidates": 6},
        }  # fmt: skip

    def test_every_policy_can_be_a_row(self) -> None:
        assert labels(rows_of(list(POLICIES), [])) == ["ar", *(name for name in POLICIES if name != "ar")]

    @pytest.mark.parametrize(
        ("names", "budgets", "message"),
        [
            (["nothing"], [], "policy 'nothing': expected one of ar, "),
            (["chain", "chain"], [], "policies chain,chain: each name once"),
            (["chain"], [8, 8], "budgets 8,8: each once"),
            (["chain"], [-1], "budget"),
        ],
    )
    def test_what_is_no_row(self, names: list[str], budgets: list[int], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            rows_of(names, budgets)


class TestPanel:
    def test_caps_by_a_part_of_the_sets_name(self) -> None:
        panel = Panel("", ROWS, 256, set_tokens={"math": 512, "math500": 1, "mbpp": 300})
        assert [panel.tokens_for(name) for name in ("code", "math500", "mbpp", "my-mbpp-part")] == [256, 512, 300, 300]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"rows": (*ROWS, BenchRow("ar", "auto"))}, "row 'ar' appears twice"),
            ({"max_tokens": 1}, "max_tokens 1: expected at least 2"),
            ({"repeats": 0}, "repeats 0"),
            ({"seeds": ()}, r"seeds \[\]: expected at least 1"),
            ({"rows": (*ROWS, BenchRow("m", "m", method=True)), "temperature": 0.5}, "outside methods decode greedily"),
        ],
    )
    def test_what_cannot_run(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            Panel(**({"name": "", "rows": ROWS} | change))

    def test_outside_methods_may_run_greedily(self) -> None:
        assert len(Panel("", (*ROWS, BenchRow("m", "m", method=True))).rows) == 3


class TestNoise:
    PROFILE = CostProfile.from_json(
        {
            "schema": 1, "rows": [1, 5, 9], "contexts": [100, 200], "verify_s": [[1.0, 3.0, 5.0], [2.0, 4.0, 8.0]],
            "draft_s": [0.5, 0.7], "host_s": [0.1, 0.2, 0.4],
        }
    )  # fmt: skip

    def test_none_changes_nothing(self) -> None:
        found = CostNoise().apply(self.PROFILE)
        for context in (100, 170):
            for requests in (1, 3):
                costs, plain = (
                    item.round_cost(1, context, requests=requests, max_nodes=8).round_s
                    for item in (found, self.PROFILE)
                )
                np.testing.assert_allclose(costs, plain, rtol=1e-12)

    def test_the_slope_is_what_rows_add_to_the_first(self) -> None:
        found = CostNoise(slope=2.0).apply(self.PROFILE)
        np.testing.assert_allclose(found.verify_s, [[1.0, 5.0, 9.0], [2.0, 6.0, 14.0]])
        np.testing.assert_allclose(found.host_s, [0.1, 0.3, 0.7])
        assert found.draft_s.tolist() == self.PROFILE.draft_s.tolist()

    def test_drafting_is_scaled_apart(self) -> None:
        found = CostNoise(draft=0.5).apply(self.PROFILE)
        np.testing.assert_allclose(found.draft_s[:, 0], [0.25, 0.35])
        assert found.verify_s.tolist() == self.PROFILE.verify_s.tolist()

    def test_the_profile_itself_stays(self) -> None:
        before = self.PROFILE.to_json()
        CostNoise(0.5, 2.0).apply(self.PROFILE)
        assert self.PROFILE.to_json() == before
