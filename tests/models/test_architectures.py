"""A few of the architectures of docs/models.md, judged again; the page holds all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from architectures import DIFFERENT, EXACT, REFUSED, Result, judge, model_types, table

pytestmark = pytest.mark.portable

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
JUDGED = {
    "gpt2": EXACT, "gpt_neox": EXACT, "phi3": EXACT, "starcoder2": EXACT, "cohere2": EXACT, "granite": EXACT,
    "glm4": EXACT, "olmo2": EXACT, "deepseek_v3": EXACT, "afmoe": EXACT, "gemma": EXACT, "gemma3_text": EXACT,
    "gpt_bigcode": EXACT, "gpt_oss": EXACT, "mixtral": EXACT, "jetmoe": EXACT, "opt": EXACT, "exaone4": EXACT,
    "qwen2_moe": EXACT, "minimax_m2": EXACT, "modernbert-decoder": EXACT, "vaultgemma": EXACT, "ctrl": EXACT,
    "mamba": REFUSED, "falcon": REFUSED, "llama4_text": REFUSED, "diffllama": REFUSED, "rwkv": REFUSED,
    "stablelm": REFUSED, "recurrent_gemma": REFUSED, "bloom": REFUSED,
}  # fmt: skip


def rows_of_the_page() -> dict[str, tuple[str, str]]:
    """(verdict, reason) by model type."""
    lines = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {cells[0].removeprefix("| "): (cells[2], cells[3].removesuffix(" |")) for cells in lines[1:]}


@pytest.mark.parametrize("kind", JUDGED)
@pytest.mark.filterwarnings("ignore")
def test_exact_or_refused_by_name(kind: str) -> None:
    found = judge(kind)
    verdict, reason = rows_of_the_page()[kind]
    assert found.verdict == verdict == JUDGED[kind]
    assert re.sub(r"[\d.e-]+", "N", found.reason) == re.sub(r"[\d.e-]+", "N", reason)  # how far a probe is off may vary


def test_the_page_holds_every_architecture_and_none_that_differs() -> None:
    rows = rows_of_the_page()
    assert rows.keys() == model_types().keys()
    assert DIFFERENT not in {verdict for verdict, _ in rows.values()}
    assert all(reason for _, reason in rows.values())


def test_the_table_by_hand() -> None:
    page = table([Result("a", "AForCausalLM", EXACT, "3.0 tokens a round"), Result("b", "B", REFUSED, "why")])
    assert "1 exact, 1 refused, 0 not built, 0 different." in page
    assert page.endswith("| a | AForCausalLM | exact | 3.0 tokens a round |\n| b | B | refused | why |\n")
