"""`draftwood doctor` in this process, on a tiny pair."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_level
from decoding import random_drafter
from families import family

from draftwood import cli
from draftwood.cli.commands import doctor as cli_doctor
from draftwood.doctor.consult import Prescription
from draftwood.doctor.examine import Diagnosis, Finding, Gain
from draftwood.draft.dflash import DFlashDrafter
from draftwood.engine import Engine
from draftwood.errors import ModelError
from draftwood.models.text import TextCodec

COMMAND = ["doctor", "demo:smollm2", "--positions", "50"]


class FoldedCodec(TextCodec):
    """A byte tokenizer whose ids are folded into the tiny vocabulary, and which never ends an answer."""

    def encode(self, prompt: str, *, raw: bool = False, system: str | None = None) -> list[int]:
        return [token % 60 for token in super().encode(prompt, raw=raw, system=system)][:20]

    @property
    def end_ids(self) -> tuple[int, ...]:
        return ()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Lets the command load the tiny pair; config changes of the drafter may be put into the result."""
    made = family("llama", "float32")
    changes: dict[str, Any] = {}

    def load(options: object) -> Engine:
        drafter = random_drafter(tmp_path / "drafter", made)
        broken = DFlashDrafter(replace(drafter.config, **changes), drafter.model, made.target)
        return Engine(made.target, broken, codec=FoldedCodec(byte_level(), name="tiny"))

    short = Prescription(positions=50, answer_tokens=24, prompts_a_set=2)
    monkeypatch.setattr(cli_doctor, "load_engine", load)
    monkeypatch.setattr("draftwood.doctor.consult.Prescription", lambda *_, **__: short)
    return changes


def test_a_pair_is_compared_with_its_own_baseline(
    pair: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "drafter" / "baseline.json"
    file.parent.mkdir()
    assert cli.run([*COMMAND, "--save-baseline", str(file)]) == 0
    assert f"{file}: " in capsys.readouterr().out and file.is_file()
    assert cli.run(COMMAND) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].startswith("diagnosis: well: hits by depth are those")
    assert "baseline" in captured.out and "no stored baseline" not in captured.err
    pair["block_size"] = 16
    assert cli.run([*COMMAND, "--json"]) == 1
    out = capsys.readouterr().out
    assert out.isascii() and out.count("\n") == 1
    found = json.loads(out)
    assert found["fault"] == "block size" and "block_size 8 instead of 16" in found["detail"]
    assert len(found["hit_rate"]) == 15 and len(found["expected"]) == 7


def test_an_untrained_pair_fails_against_chance(pair: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*COMMAND, "--no-baseline"]) == 1
    out = capsys.readouterr().out
    assert "diagnosis: unexplained: no better than chance" in out and "row convention" in out


def test_without_a_baseline_it_says_so(pair: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(COMMAND) == 1
    assert "no stored baseline" in capsys.readouterr().err


def test_a_pair_that_cannot_be_loaded_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(options: object) -> Engine:
        raise ModelError("config.json: mask_token_id 99999: expected a row of the target's embedding, 0..49151")

    monkeypatch.setattr(cli_doctor, "load_engine", refuse)
    assert cli.run(COMMAND) == 1
    assert capsys.readouterr().out.startswith("diagnosis: load: config.json: mask_token_id 99999")
    assert cli.run([*COMMAND, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fault"] == "load"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctor", "demo:smollm2", "--positions", "0"], "0 is out of range"),
        (["doctor", "demo:smollm2", "--drafter", "/no/where"], "/no/where"),
        (["doctor", "/no/model"], "/no/model"),
        (["doctor", "demo:smollm2", "--save-baseline", "/no/where/b.json"], "/no/where"),
    ],
)
def test_bad_input_is_one_line_before_loading(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(options: object) -> Engine:
        raise AssertionError("a model was loaded although the input is bad")

    monkeypatch.setattr(cli_doctor, "load_engine", refuse)
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and message in captured.err


def test_a_foreign_baseline_is_refused(
    pair: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "b.json"
    file.write_text('{"schema": 7}', encoding="utf-8")
    assert cli.run([*COMMAND, "--baseline", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "baseline schema 7, expected 1" in captured.err


def test_json_has_numbers_or_null() -> None:
    finding = Finding("taps", "these", Gain(0.2, 0.05), float("nan"), 10)
    found = Diagnosis("taps", "d", 10, (0.5,), None, 0.1, None, 1.0, (finding,), ())
    document = cli_doctor.as_object(found)
    assert document["tried"][0]["gain"]["errors"] == pytest.approx(4.0) and document["tried"][0]["counts"]
    assert document["expected"] is None and document["fault"] == "taps"
