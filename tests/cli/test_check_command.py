"""`draftwood check` in this process, on a tiny engine with and without a fault."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from check_world import accept_one_more, engine_for, units, walking

from draftwood import cli
from draftwood.certify.law import LawCheck
from draftwood.certify.texts import TextCheck
from draftwood.cli.commands import check as cli_check
from draftwood.cli.commands.check import Certificate, checked_rows, mixed_units
from draftwood.engine import Engine
from draftwood.errors import UsageError
from draftwood.prompts.sets import Prompt, PromptSet

COMMAND = ["check", "demo:smollm2", "--max-tokens", "16", "--policies", "chain,ddtree"]


def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, broken: bool = False) -> list[str]:
    """Let the command load the tiny pair, whose tokenizer knows three prompts; returns the prompt options."""
    texts = {f"prompt {unit.prompt_id}": list(unit.prompt_ids) for unit in units()[:3]}
    file = tmp_path / "toy.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")

    def load_engine(options: object) -> Engine:
        engine = engine_for(units())
        engine.codec = SimpleNamespace(  # type: ignore[assignment]
            encode=lambda text, raw=False, system=None: texts[text],
            end_ids=(),
            raw_end_ids=(),
            decode=lambda ids: "",
        )
        return walking(engine, accept_one_more) if broken else engine

    monkeypatch.setattr(cli_check, "load_engine", load_engine)
    return ["--prompts", str(file)]


def test_healthy_pair_is_certified(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = load(monkeypatch, tmp_path)
    assert cli.run([*COMMAND, *prompts, "--budgets", "6,12"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("verdict: identical\n")
    for shown in ("chain", "ddtree 6", "ddtree 12", "walk", "recursive", "gumbel chooser", "exact", "own attention"):
        assert shown in out


def test_broken_verifier_exits_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = load(monkeypatch, tmp_path, broken=True)
    assert cli.run([*COMMAND, *prompts, "--temperatures", "0"]) == 1
    out = capsys.readouterr().out
    assert out.endswith("verdict: different\n") and "top-two gap is no tie" in out


def test_json_is_one_object(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = load(monkeypatch, tmp_path, broken=True)
    assert cli.run([*COMMAND, *prompts, "--json", "--temperatures", "0", "--limit", "2", "--reference", "ar"]) == 1
    out = capsys.readouterr().out
    assert out.isascii() and out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    assert (found["verdict"], found["reference"], found["max_tokens"], found["laws"]) == ("different", "ar", 16, [])
    chain = found["texts"][0]
    assert (chain["policy"], chain["verdict"], chain["prompts"]) == ("chain", "different", 2)
    difference = chain["differences"][0]
    assert difference["set_name"] == "toy" and difference["gap"] > difference["tolerance"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "chian"], "'chian': expected one of ar, chain"),
        (["--policies", ","], "at least one name"),
        (["--budgets", "x"], "--budgets 'x'"),
        (["--temperatures", "warm"], "--temperatures 'warm'"),
        (["--temperatures", ""], "--temperatures: expected"),
        (["--temperatures", "-1"], "temperature -1"),
        (["--reference", "eager"], "eager"),
        (["--prompts", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--limit", "0"], "0 is out of range"),
        (["--profile", "/nowhere.json"], "/nowhere.json"),
    ],
)
def test_bad_input_is_one_line_before_loading(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(options: object) -> None:
        raise AssertionError("a model was loaded although the input is bad")

    monkeypatch.setattr(cli_check, "load_engine", refuse)
    assert cli.run(["check", "demo:smollm2", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and message in captured.err


def test_verdict_is_the_worst_part() -> None:
    def text(verdict: str) -> TextCheck:
        return TextCheck("chain", 0.0, verdict, 1, 0, 0, 1, None, ())

    def law(passed: bool) -> LawCheck:
        return LawCheck("walk", 1.0, 8, 10, 10, 0.1, 0.2, 0.1, passed)

    same, tie, other = text("identical"), text("near-tie"), text("different")
    assert Certificate([same, same], [law(True)]).verdict == "identical"
    assert Certificate([same, tie], []).verdict == "near-tie"
    assert Certificate([tie, other], [law(True)]).verdict == "different"
    assert Certificate([same], [law(True), law(False)]).verdict == "different"


def test_prompts_come_from_the_sets_in_turn() -> None:
    sets = [
        PromptSet(name, tuple(Prompt(str(i), f"{name}{i}") for i in range(count)), bundled=False)
        for name, count in (("a", 1), ("b", 3))
    ]
    engine = engine_for(units())
    engine.codec = SimpleNamespace(encode=lambda text, raw, system: [max(ord(c) - 60, 0) for c in text])  # type: ignore[assignment]
    chosen = mixed_units(engine, sets, 3, raw=True)
    assert [(unit.set_name, unit.prompt_id) for unit in chosen] == [("a", "0"), ("b", "0"), ("b", "1")]
    assert chosen[2].prompt_ids == (ord("b") - 60, 0)
    with pytest.raises(UsageError, match="no tokenizer"):
        mixed_units(engine_for(units()), sets, 3, raw=True)


def test_plain_decoding_is_checked_only_when_asked_for() -> None:
    assert [row.label for row in checked_rows("chain,ddtree", "4,8")] == ["chain", "ddtree 4", "ddtree 8"]
    assert [row.label for row in checked_rows("ar", None)] == ["ar"]
