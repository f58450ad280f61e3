"""Commands run in this process, with an engine that repeats its prompt."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine

from draftwood import cli
from draftwood.cli.commands import demo as cli_demo
from draftwood.cli.commands import generate as cli_generate
from draftwood.cli.load import LoadOptions
from draftwood.engine import EngineConfig
from draftwood.engine.loading import cache_folder
from draftwood.policy import POLICIES
from draftwood.policy.batch import Sharing

DEMO = "demo:smollm2"
COST_AWARE = ["cast", "caddtree", "ratio", "auto"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    for module in (cli_generate, cli_demo):
        monkeypatch.setattr(module, "load_engine", lambda options: (setattr(fake, "load", options), fake)[1])
    return fake


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("a model was loaded although the input is bad")

    monkeypatch.setattr(cli_generate, "load_engine", refuse)


def stdin_of(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.filterwarnings("ignore:a library warns")
class TestGenerate:
    def test_streams_the_text_and_ends_the_line(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["generate", DEMO, "Hi there", "--policy", "ar"]) == 0
        assert capsys.readouterr().out == "Hi there\n"
        assert engine.closed == 1

    def test_last_line_end_is_not_doubled(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["generate", DEMO, "Hi\n"]) == 0
        assert capsys.readouterr().out == "Hi\n"

    def test_options_reach_the_engine(self, engine: FakeEngine) -> None:
        line = "--budget 8 --candidates 4 --block-size 5 --temperature 0.5 --seed 3 --max-tokens 9 --system be"
        load = "--drafter d --dtype bfloat16 --device cuda:1 --threads 2"
        assert cli.run(["generate", DEMO, "x", *line.split(), *load.split()]) == 0
        assert engine.requests == [
            {"prompts": ["x"], "policy": "ddtree", "budget": 8, "candidates": 4, "block_size": 5, "temperature": 0.5,
             "seed": 3, "max_tokens": 9, "system": "be", "raw": False}
        ]  # fmt: skip
        assert vars_of(engine) == LoadOptions(DEMO, "d", "bfloat16", "cuda:1", 2, config=EngineConfig())

    def test_defaults(self, engine: FakeEngine) -> None:
        assert cli.run(["generate", DEMO, "x", "--raw"]) == 0
        assert engine.requests == [
            {"prompts": ["x"], "policy": "auto", "block_size": None, "seed": None,
             "max_tokens": 256, "system": None, "raw": True}
        ]  # fmt: skip

    def test_json_is_one_object_and_nothing_else(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["generate", DEMO, "né", "--json"]) == 0
        captured = capsys.readouterr()
        assert captured.out.isascii() and captured.out.count("\n") == 1
        result = json.loads(captured.out)
        assert result == {
            "text": "né", "token_ids": [110, 233, 2], "prompt_tokens": 2, "finish_reason": "stop", "policy": "auto",
            "seed": 11, "threads": 3, "prefill_s": None, "decode_s": 0.5, "rounds": [{"rows": 17, "committed": 1}] * 2,
        }  # fmt: skip
        assert "a library talks" in captured.err

    def test_stdin_is_taken_as_it_is(
        self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stdin_of(" två\n\n".encode(), monkeypatch)
        assert cli.run(["generate", DEMO, "-"]) == 0
        assert engine.requests[0]["prompts"] == [" två\n\n"]

    def test_interrupt_ends_the_line_and_exits_130(
        self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.run(["generate", DEMO, "interrupt"]) == 130
        captured = capsys.readouterr()
        assert captured.out == "half a line\n"
        assert "error" not in captured.err

    @pytest.mark.parametrize("extra", [[], ["--json"]])
    def test_errors_of_the_engine(
        self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], extra: list[str]
    ) -> None:
        assert cli.run(["generate", DEMO, "too long", *extra]) == 2
        assert cli.run(["generate", DEMO, "not finite", *extra]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines() == [
            "draftwood: error: prompt of 9000 tokens: expected at most 8192",
            "draftwood: error: logits at position 7 are not finite",
        ]

    def test_end_ids_are_shown_on_demand(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["generate", DEMO, "x", "--show-end-ids"]) == 0
        assert "draftwood: note: end ids: 2 '<|end|>' (config)\n" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:a library warns")
class TestGenerateSets:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "mine.jsonl"
        path.write_text('{"prompt": "ab", "id": "one"}\n{"turns": ["c", "d"]}\n{"prompt": "interrupt"}\n')
        return path

    def test_a_line_each_in_the_order_they_end(
        self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], file: Path
    ) -> None:
        line = "--limit 2 --batch 3 --share uniform --min-nodes 1 --policy ratio"
        assert cli.run(["generate", DEMO, "--prompts", str(file), *line.split()]) == 0
        captured = capsys.readouterr()
        rows = [json.loads(text) for text in captured.out.splitlines()]
        told = [(row["index"], row["set"], row["id"], row["text"]) for row in rows]
        assert told == [(1, "mine", "2", "c"), (0, "mine", "one", "ab")]
        assert "1 of 2 prompts are conversations: only their `prompt` is decoded" in captured.err
        assert engine.requests[0]["prompts"] == ["ab", "c"] and engine.closed == 1
        assert vars_of(engine).config == EngineConfig(max_requests=3, sharing=Sharing("uniform", 1))

    def test_the_system_message_is_encoded_once(self, engine: FakeEngine, file: Path) -> None:
        line = ["generate", DEMO, "--prompts", str(file), "--limit", "1", "--system", "be"]
        assert cli.run(line) == 0
        assert engine.requests[0]["prompts"] == ["be: ab"] and "system" not in engine.requests[0]

    def test_what_a_row_asks_for_itself(self, engine: FakeEngine, file: Path) -> None:
        file.write_text('{"prompt": "a", "max_tokens": 3, "seed": 5}\n{"prompt": "b", "temperature": 0.5}\n')
        line = ["generate", DEMO, "--prompts", str(file), "--max-tokens", "9", "--seed", "1"]
        assert cli.run(line) == 0
        asked = [(one.max_tokens, one.temperature, one.seed) for one in engine.requests[0]["params"]]
        assert asked == [(3, 0.0, 5), (9, 0.5, 1)]

    def test_a_prompt_that_cannot_be_decoded_is_named_before_anything_runs(
        self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], file: Path
    ) -> None:
        file.write_text('{"prompt": "ab"}\n{"prompt": "too long", "id": "big"}\n')
        assert cli.run(["generate", DEMO, "--prompts", str(file)]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and engine.requests == []
        assert captured.err.endswith("error: prompt set mine, id big: prompt of 9000 tokens: expected at most 8192\n")

    def test_numbers_that_are_not_finite_name_the_prompt(
        self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], file: Path
    ) -> None:
        file.write_text('{"prompt": "nan", "id": "bad"}\n{"prompt": "ab"}\n')
        assert cli.run(["generate", DEMO, "--prompts", str(file)]) == 1
        captured = capsys.readouterr()
        assert captured.err.endswith("error: prompt set mine, id bad: position 7: nan\n")
        assert [json.loads(text)["text"] for text in captured.out.splitlines()] == ["ab"]

    def test_an_interrupt_keeps_what_has_ended(
        self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], file: Path
    ) -> None:
        file.write_text('{"prompt": "interrupt"}\n{"prompt": "ab"}\n')
        assert cli.run(["generate", DEMO, "--prompts", str(file)]) == 130
        assert [json.loads(text)["text"] for text in capsys.readouterr().out.splitlines()] == ["ab"]
        assert engine.closed == 1


def vars_of(engine: FakeEngine) -> Any:
    return engine.load  # type: ignore[attr-defined]


@pytest.mark.usefixtures("no_engine")
class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["nosuch/folder/model", "hi", "--policy", "ar"], "nosuch/folder/model"),
            (["absent.gguf", "hi"], "absent.gguf"),
            ([DEMO, ""], "empty"),
            ([DEMO, "hi", "--policy", "zigzag"], "'zigzag': expected one of ar, chain, ddtree"),
            ([DEMO, "hi", "--budget", "1025"], "1025"),
            ([DEMO, "hi", "--budget", "-1"], "-1"),
            ([DEMO, "hi", "--budget", "many"], "many"),
            ([DEMO, "hi", "--temperature", "-0.5"], "-0.5"),
            ([DEMO, "hi", "--temperature", "inf"], "inf"),
            ([DEMO, "hi", "--max-tokens", "0"], "--max-tokens': 0 is out of range"),
            ([DEMO, "hi", "--temperature", "warm"], "'warm'"),
            ([DEMO, "hi", "--threads", "0"], "--threads"),
            ([DEMO, "hi", "--block-size", "0"], "--block-size"),
            ([DEMO, "hi", "--seed", "-1"], "-1"),
            ([DEMO, "hi", "--dtype", "int8"], "'int8' is not one of"),
            ([DEMO, "hi", "--policy", "ar", "--budget", "4"], "budget"),
            ([DEMO, "hi", "--policy", "ar", "--candidates", "4"], "candidates"),
            ([DEMO, "hi", "--policy", "ar", "--block-size", "4"], "--block-size"),
            ([DEMO, "hi", "--policy", "chain", "--budget", "4"], "budget"),
            ([DEMO, "hi", "--raw", "--system", "be"], "--system"),
            ([DEMO, "hi", "--unheard-of"], "--unheard-of"),
            ([DEMO], "PROMPT"),
            ([DEMO, "hi", "--prompts", "chat"], "give one of the two"),
            ([DEMO, "--prompts", "nosuch"], "nosuch"),
            ([DEMO, "hi", "--limit", "3"], "--limit 3: needs several prompts"),
            ([DEMO, "hi", "--batch", "3"], "--batch 3: needs several prompts"),
            ([DEMO, "hi", "--share", "uniform"], "--share uniform: needs several prompts"),
            ([DEMO, "hi", "--min-nodes", "0"], "--min-nodes 0: needs several prompts"),
            ([DEMO, "--prompts", "chat", "--share", "evenly"], "'evenly': expected one of shared, uniform"),
            ([DEMO, "--prompts", "chat", "--min-nodes", "-1"], "min_nodes -1: expected 0 to 1024"),
            (
                [DEMO, "--prompts", "chat", "--policy", "cast", "--share", "uniform", "--min-nodes", "3"],
                "policy 'cast' has one width under --share uniform",
            ),
            ([DEMO, "--prompts", "chat", "--batch", "0"], "--batch': 0 is out of range"),
            ([DEMO, "--prompts", "chat", "--policy", "ddtree", "--share", "uniform"], "not used by policy 'ddtree'"),
            ([DEMO, "--prompts", "chat", "--policy", "chain", "--min-nodes", "2"], "not used by policy 'chain'"),
            ([], "MODEL"),
        ],
    )
    def test_one_line_and_exit_2(self, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
        assert cli.run(["generate", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1 and captured.err.startswith("draftwood: error: ")
        assert words in captured.err

    @pytest.mark.parametrize("policy", [name for name, policy in POLICIES.items() if policy.drafts])
    def test_drafting_without_a_drafter_names_the_option(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, policy: str
    ) -> None:
        (tmp_path / "config.json").write_text("{}")
        assert cli.run(["generate", str(tmp_path), "hi", "--policy", policy]) == 2
        assert "--drafter" in capsys.readouterr().err

    @pytest.mark.parametrize("data", [b"\xff", b"ok until \xc3", b"\xed\xa0\x80"])
    def test_unreadable_stdin(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data: bytes
    ) -> None:
        stdin_of(data, monkeypatch)
        assert cli.run(["generate", DEMO, "-"]) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1 and "is not UTF-8" in captured.err

    def test_unreadable_argument(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["generate", DEMO, "broken \udcff"]) == 2
        assert "prompt: byte 0xff at offset 7 is not UTF-8" in capsys.readouterr().err

    @pytest.mark.parametrize("arguments", [[], ["frobnicate"]])
    def test_no_or_unknown_command(self, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
        assert cli.run(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.filterwarnings("ignore:a library warns")
class TestDemo:
    def test_table(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["demo", "--max-tokens", "16"]) == 0
        out = capsys.readouterr().out
        for words in ("tokens/s", "over plain", "over chain", "committed", "rows", "ddtree 32", "identical"):
            assert words in out
        assert "cpu, float32, 3 threads, torch " in out and "6 prompts x 16 tokens" in out

    def test_json(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["demo", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert [row["label"] for row in result["rows"]] == [
            "ar",
            "chain",
            "ddtree 8",
            "ddtree 16",
            "ddtree 32",
            *COST_AWARE,
        ]
        assert result["rows"][3]["mean_rows"] == 17.0
        assert result["machine"]["threads"] == 3

    def test_a_real_difference_exits_1(
        self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer = engine._answer

        def shorter(prompt: str, policy: str) -> Any:
            result = answer(prompt, policy)
            result.token_ids = result.token_ids[:-1] if policy == "chain" else result.token_ids
            return result

        monkeypatch.setattr(engine, "_answer", shorter)
        assert cli.run(["demo"]) == 1
        assert "different" in capsys.readouterr().out

    def test_table_without_unicode(self) -> None:
        from draftwood.bench.demo import DemoLine

        line = DemoLine("ar", 20.0, 1.0, None, 1.0, 1.0, "near-tie", 1, 6)
        facts = {"processor": "P", "device": "cpu", "dtype": "bfloat16", "threads": 2, "torch": "2"}
        text = cli_demo.table([line], facts, 64, "ascii")
        assert text.isascii() and "near-tie (1 of 6)" in text and "1.00x" in text
        assert not cli_demo.table([line], facts, 64, "unicode").isascii()
        heading, rule, row = cli_demo.table([line], facts, 64, "markdown").splitlines()[:3]
        assert heading.startswith("| policy ") and row.startswith("| ar ")
        assert set(rule) <= set("|-: ") and rule.count("|") == heading.count("|") == row.count("|") == 8


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], "expected a command: generate, demo"),
        (["generat"], "Did you mean 'generate'?"),
        (["generate", DEMO, "hi", "--polic", "ar"], "--policy"),
        (["generate", DEMO, "hi", "--policy", "autp"], "did you mean auto?"),
        (["generate", "hi", DEMO], f"'hi' is no model here, but PROMPT '{DEMO}' is one: expected MODEL PROMPT"),
        (["generate", DEMO, "hi", "--max-tokens", "1000000001"], "expected at most 1000000000"),
        (["generate", DEMO, "hi", "--seed", str(10**20)], "expected a number of 64 bits"),
        (["bench", DEMO, "--repeats", "1000000000"], "expected at most 1000"),
        (["generate", DEMO, "hi", "--policy", "ar", "--chat-template-kwargs", "{"], "not JSON"),
        (["generate", DEMO, "hi", "--policy", "ar", "--chat-template-kwargs", "[1]"], "expected a JSON object"),
    ],
)
def test_stumbling_gives_one_helpful_line(line: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(line) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and captured.err.count("\n") == 1


def test_help_and_version_by_their_short_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert cli.run(["version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    for line in (["-h"], ["generate", "-h"]):
        assert cli.run(line) == 0
        assert capsys.readouterr().out.startswith("Usage: draftwood")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["version"]) == 0
    assert capsys.readouterr().out.startswith("draftwood 0.1.0 (Python 3.")


def test_the_help_names_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("generate", "show", "record"):
        assert cli.run([command, "--help"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "ar, chain, ddtree, cast, caddtree, ratio or auto" in said
    assert set(POLICIES) == {"ar", "chain", "ddtree", "cast", "caddtree", "ratio", "auto"}


def test_bars_of_libraries_are_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, expected in ((None, "1"), ("0", "0")):
        monkeypatch.setattr(os, "environ", {} if asked is None else {"TQDM_DISABLE": asked})
        assert cli.run(["version"]) == 0
        assert os.environ["TQDM_DISABLE"] == expected


def test_cache_folder_follows_the_environment() -> None:
    assert cache_folder({"DRAFTWOOD_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"DRAFTWOOD_CACHE": "", "XDG_CACHE_HOME": "/b"}) == Path("/b/draftwood")
    assert cache_folder({}) == Path.home() / ".cache" / "draftwood"


def test_processor_name(tmp_path: Path) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text("processor : 0\nmodel name\t: Fast One 9\nmodel name\t: Other\n")
    assert cli_demo.processor_name(facts) == "Fast One 9"
    assert cli_demo.processor_name(tmp_path / "absent")
