"""The stored baseline: written, read, and refused when it is not one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafter_pair import tiny_drafter

from draftwood.doctor.baseline import Baseline, baseline_path, make_baseline, read_baseline, write_baseline
from draftwood.doctor.forced import ForcedText, Position, Scores
from draftwood.errors import UsageError
from draftwood.models.source import bundled_drafter

TEXTS = (ForcedText((1, 2, 3, 4, 5, 6, 7), 2), ForcedText((9, 8, 7, 6, 5), 1))
# Blocks of 4 score 3 depths: 2 positions of the first text, 1 of the second.
SCORES = Scores(
    np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], bool),
    np.array([[-1.0, -2.0, -3.0], [-4.0, -4.0, -4.0], [-0.5, -0.5, -0.501]]),
)


def made(tmp_path: Path) -> Baseline:
    return make_baseline(tiny_drafter(tmp_path / "drafter"), "a target", "float32", TEXTS, SCORES)


def test_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    write_baseline(made(tmp_path), file)
    read = read_baseline(file, 64)
    assert (read.target, read.dtype, read.block_size, read.depth, read.mask_token_id) == (
        "a target",
        "float32",
        4,
        3,
        63,
    )
    assert (read.target_layer_ids, read.rope["rope_theta"], read.texts) == ((1, 3, 5), 1e6, TEXTS)
    hits, logp = read.at([Position(1, 1), Position(0, 3), Position(0, 2)])
    assert hits.tolist() == [[True] * 3, [False] * 3, [True, False, True]]
    assert logp.tolist() == [-0.5, -4.0, -2.0]
    assert read.hit_rate() == pytest.approx([2 / 3, 1 / 3, 2 / 3])
    assert read.has(Position(0, 3)) and not read.has(Position(0, 4)) and not read.has(Position(0, 1))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["baseline.json"]


def test_file_by_hand(tmp_path: Path) -> None:
    document = made(tmp_path).to_json()
    assert document["schema"] == 1 and document["positions"] == 3
    assert document["texts"][0] == {"prompt_len": 2, "ids": [1, 2, 3, 4, 5, 6, 7], "hits": [5, 0], "logp": [-2.0, -4.0]}


def test_it_lies_beside_the_checkpoint(tmp_path: Path) -> None:
    drafter = tiny_drafter(tmp_path / "drafter")
    assert baseline_path(drafter) == tmp_path / "drafter" / "baseline.json"


def test_the_bundled_one_is_whole() -> None:
    bundled = read_baseline(bundled_drafter() / "baseline.json", 49152)
    assert bundled.block_size == 8 and len(bundled.texts) >= 20
    assert sum(map(len, bundled.logp)) >= 2000
    rates = bundled.hit_rate()
    # Within reach of the checkpoint's card, whose rates by set span these.
    assert 0.45 < rates[0] < 0.72 and 0.06 < rates[-1] < 0.14 and (np.diff(rates) < 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "baseline schema 2, expected 1"),
        ({"texts": []}, "no texts"),
        ({"block_size": 5}, "hits"),
        ({"mask_token_id": None}, "malformed"),
        ({"rope": None}, "malformed"),
    ],
)
def test_malformed_files_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    file.write_text(json.dumps(made(tmp_path).to_json() | change), encoding="utf-8")
    with pytest.raises(UsageError, match=message) as caught:
        read_baseline(file, 64)
    assert str(caught.value).startswith(str(file)) and "\n" not in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    with pytest.raises(UsageError, match="cannot be read"):
        read_baseline(file, 64)
    file.write_bytes(b"\xff{")
    with pytest.raises(UsageError, match="not a JSON file"):
        read_baseline(file, 64)
    file.write_text("[1]", encoding="utf-8")
    with pytest.raises(UsageError, match="schema None"):
        read_baseline(file, 64)
    write_baseline(made(tmp_path), file)
    with pytest.raises(UsageError, match="token id 9, expected 0 to 7"):
        read_baseline(file, 8)
    with pytest.raises(UsageError, match="cannot be written"):
        write_baseline(made(tmp_path), tmp_path / "nowhere" / "b.json")


def test_numbers_that_are_no_log_probabilities_are_named(tmp_path: Path) -> None:
    document = made(tmp_path).to_json()
    document["texts"][0]["logp"] = [-1.0, 0.5]
    file = tmp_path / "b.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UsageError, match="above 0"):
        read_baseline(file, 64)
