"""The command as a process of its own: pipes, signals, locales, start-up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FAKE = Path(__file__).with_name("fake_engine.py")
DEMO = "demo:smollm2"
ASCII = {"PYTHONIOENCODING": "ascii"}
HANGS_S = 300  # a process that has not ended by then never will; a busy machine takes tens of seconds
C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def command(*arguments: str | bytes, real: bool = False) -> list[str | bytes]:
    return [sys.executable, *(["-m", "draftwood.cli"] if real else [str(FAKE)]), *arguments]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **changes}


def run(
    *arguments: str | bytes, real: bool = False, stdin: bytes = b"", **changes: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*arguments, real=real), input=stdin, capture_output=True, env=environment(**changes), timeout=HANGS_S
    )


def assert_one_error_line(done: subprocess.CompletedProcess[bytes], code: int = 2) -> None:
    assert (done.returncode, done.stdout) == (code, b"")
    assert done.stderr.count(b"\n") == 1 and done.stderr.startswith(b"draftwood: error: ")


def test_version_is_quick_and_imports_no_model_library() -> None:
    script = "import sys; from draftwood.cli import run; run(['version']); print({'torch', 'scipy'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, env=environment(), timeout=HANGS_S, text=True
    )
    assert done.stdout.splitlines()[1:] == ["set()"]
    assert done.stderr == ""


def test_bad_use_of_the_real_command() -> None:
    assert_one_error_line(run("generate", "absent.gguf", "hi", real=True))


@pytest.mark.parametrize(("closed", "line", "code"), [(">&-", "version", 0), ("2>&-", "generate absent.gguf hi", 2)])
def test_streams_that_are_closed_from_the_start(closed: str, line: str, code: int) -> None:
    script = f'"{sys.executable}" -m draftwood.cli {line} {closed}'
    done = subprocess.run(["sh", "-c", script], capture_output=True, env=environment(), timeout=HANGS_S)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


def test_reader_that_leaves_early() -> None:
    process = subprocess.Popen(
        command("generate", DEMO, "endless"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(20) == b"endless endless endl"
    process.stdout.close()
    assert process.wait(timeout=HANGS_S) in (0, 141)
    assert process.stderr.read() == b"a library talks\n"
    process.stderr.close()


@pytest.mark.parametrize("arguments", [("version",), ("generate", DEMO, "hi", "--json"), ("--help",)])
def test_reader_that_was_never_there(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command(*arguments), stdout=writing, stderr=subprocess.PIPE, env=environment(), timeout=HANGS_S
    )
    os.close(writing)
    assert done.returncode in (0, 141)
    assert done.stderr.replace(b"a library talks\n", b"") == b""


def test_interrupt() -> None:
    # A shell's background job starts with interrupts ignored, and its children inherit that; a terminal's does not.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command("generate", DEMO, "endless"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )
    finally:
        signal.signal(signal.SIGINT, former)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(8) == b"endless "
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130
    assert out.endswith(b"\n") and err == b"a library talks\n"


@pytest.mark.parametrize("changes", [ASCII, C_LOCALE])
def test_terminal_that_is_not_utf8(changes: dict[str, str]) -> None:
    done = run("generate", DEMO, "naïve 🎉", **changes)
    assert (done.returncode, done.stdout) == (0, b"na?ve ?\n")
    done = run("generate", DEMO, "naïve 🎉", "--json", **changes)
    assert json.loads(done.stdout)["text"] == "naïve 🎉"


def test_demo_table_in_ascii() -> None:
    done = run("demo", "--max-tokens", "4", **ASCII)
    assert done.returncode == 0
    assert done.stdout.isascii() and b"ddtree 16" in done.stdout and b"?" not in done.stdout


def test_prompt_with_a_broken_byte() -> None:
    for changes in ({}, C_LOCALE):
        assert_one_error_line(run("generate", DEMO, b"ab\xff", **changes))
    assert_one_error_line(run("generate", DEMO, "-", stdin=b"\xfe"))


def test_stdin_prompt() -> None:
    done = run("generate", DEMO, "-", stdin="två 🎉".encode())
    assert done.stdout.decode() == "två 🎉\n"
