"""A new policy is one file and one line: its options become options of the command line by themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from fake_engine import FakeEngine

from draftwood import cli
from draftwood.cli.commands import generate as cli_generate
from draftwood.cli.policies import UNASKED, PolicyChoice, with_policy_options
from draftwood.policy import POLICIES, Policy, make_policy, policy_options
from draftwood.policy.options import about, settle
from draftwood.policy.ratio import Ratio

DEMO = "demo:smollm2"
BUILT: list[Any] = []


@dataclass(frozen=True, slots=True)
class Toy(Ratio):
    """A rule with options of every type."""

    boldness: int = field(default=3, metadata=about("How bold trees are (toy).", "B"))
    pace: float = 1.0
    eager: bool = False
    mood: str = field(default="calm", metadata=about("How it feels (toy).", choices=("calm", "wild")))
    rungs: tuple[int, ...] | None = None

    name: ClassVar[str] = "toy"

    def __post_init__(self) -> None:
        settle(self)
        BUILT.append(self)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    BUILT.clear()
    monkeypatch.setitem(POLICIES, "toy", Toy)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(cli_generate, "load_engine", lambda options: fake)
    return fake


def said_in_help(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run([command, "--help"]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("toy")
@pytest.mark.filterwarnings("ignore:a library warns")
class TestToy:
    @pytest.mark.parametrize("command", ["generate", "show", "record"])
    def test_the_help_lists_its_options(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        said = said_in_help(command, capsys)
        assert "caddtree, ratio, auto or toy; default: auto, ddtree with --budget." in said
        for words in (
            "--boldness B How bold trees are (toy).",
            "--pace X Option of policy toy.",
            "--eager <on|off> Option of policy toy.",
            "--mood TEXT How it feels (toy).",
            "--rungs N,N Option of policy toy.",
        ):
            assert words in said
        assert said.count("--max-nodes ") == said.count("--candidates ") == 1

    def test_values_reach_the_policy(self, engine: FakeEngine) -> None:
        line = "--policy toy --boldness 5 --pace 0.5 --eager on --mood wild --rungs 1,2 --max-nodes 9"
        assert cli.run(["generate", DEMO, "x", *line.split()]) == 0
        wanted = {"boldness": 5, "pace": 0.5, "eager": True, "mood": "wild", "rungs": (1, 2), "max_nodes": 9}
        assert BUILT[0] == Toy(**wanted)  # type: ignore[arg-type]
        assert {name: engine.requests[0][name] for name in wanted} == wanted
        assert engine.requests[0]["policy"] == "toy"

    def test_what_is_not_given_is_left_to_the_policy(self, engine: FakeEngine) -> None:
        assert cli.run(["generate", DEMO, "x", "--policy", "toy"]) == 0
        assert BUILT[0] == Toy() and not set(engine.requests[0]) & set(policy_options("toy"))

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("--policy ratio --boldness 5", "option 'boldness' is not used by policy ratio: expected candidates"),
            ("--boldness 5", "option 'boldness' is not used by policy auto"),
            ("--budget 4 --eager off", "option 'eager' is not used by policy ddtree"),
            ("--policy toy --rate local", "option 'rate' is not used by policy toy"),
            ("--policy toy --boldness much", "'--boldness': 'much' is not a whole number"),
            ("--policy toy --pace fast", "'--pace': 'fast' is not a number"),
            ("--policy toy --eager maybe", "'maybe' is not one of 'on', 'off'"),
            ("--policy toy --rungs 1,x", "'--rungs': '1,x' is not whole numbers between commas"),
            ("--policy toy --mood sad", "mood 'sad': expected one of calm, wild"),
        ],
    )
    def test_bad_use_is_one_line(
        self, line: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(cli_generate, "load_engine", lambda _: pytest.fail("a model was loaded"))
        assert cli.run(["generate", DEMO, "x", *line.split()]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and said.startswith("draftwood: error: ") and words in said


@pytest.mark.filterwarnings("ignore:a library warns")
@pytest.mark.parametrize(("policy", "name"), [(policy, name) for policy in POLICIES for name in policy_options(policy)])
def test_every_option_of_every_policy_has_a_flag(policy: str, name: str, engine: FakeEngine) -> None:
    """What the command line passes on makes the same policy as the value in Python."""
    option = policy_options(policy)[name]
    value: Any = {int: 7, bool: True, tuple: (4, 8), str: "fixed", float: 2.5}[option.kind]
    text = {True: "on", (4, 8): "4,8"}.get(value, str(value))
    more, given = (["--rate", "fixed"], {"rate": "fixed"}) if name == "fixed_rate" else ([], {})
    assert cli.run(["generate", DEMO, "x", "--policy", policy, option.flag, text, *more]) == 0
    passed = {key: item for key, item in engine.requests[0].items() if key in policy_options(policy)}
    assert passed == {name: value, **given}
    assert make_policy(policy, **passed) == make_policy(policy, **{name: value}, **given)


@dataclass(frozen=True, slots=True)
class Taking(Ratio):
    limit: int = 3
    name: ClassVar[str] = "taking"


@dataclass(frozen=True, slots=True)
class Differing(Ratio):
    rate: float = 3.0
    name: ClassVar[str] = "differing"


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Taking, "option 'limit' of a policy: the flag --limit is taken, name another one"),
        (Differing, "option 'rate' of policy differing: another policy has it with another type or flag"),
    ],
)
def test_flags_that_clash_are_an_error_of_the_policy(
    policy: type[Policy], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICIES, policy.name, policy)
    with pytest.raises(TypeError, match=words):
        with_policy_options(cli_generate.generate, asked=True)
    assert with_policy_options(cli_generate.generate, asked=False)


def test_the_policy_that_options_imply() -> None:
    assert UNASKED.name == "auto"
    assert PolicyChoice(None, {"budget": 0}).name == "ddtree"
    assert PolicyChoice("chain", {"budget": 4}).name == "chain"
