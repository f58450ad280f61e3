"""Where numbers come from: revision and changes of the checkout, machine, versions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from draftwood import __version__
from draftwood.bench import provenance as module
from draftwood.bench.provenance import git_state, hardware, provenance, versions


def git(folder: Path, *arguments: str) -> str:
    who = {f"GIT_{role}_{what}": "test@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True, env={**os.environ, **who}
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def engine() -> SimpleNamespace:
    spec = SimpleNamespace(device=torch.device("cpu"))
    state = SimpleNamespace(target=SimpleNamespace(spec=spec))
    return SimpleNamespace(state=state, device_name="cpu", threads=3, dtype_name="float32")


def test_a_clean_checkout(checkout: Path) -> None:
    assert git_state(checkout / "a.py") == {"revision": git(checkout, "rev-parse", "HEAD"), "dirty": False}


def test_a_changed_checkout(checkout: Path) -> None:
    (checkout / "a.py").write_text("a = 2\n")
    assert git_state(checkout / "a.py")["dirty"] is True


def test_a_new_file_makes_it_dirty_too(checkout: Path) -> None:
    (checkout / "b.py").touch()
    assert git_state(checkout / "a.py")["dirty"] is True


def test_a_file_that_git_does_not_track_has_no_revision(checkout: Path) -> None:
    """As when the package is installed inside somebody's repository."""
    (checkout / "b.py").touch()
    assert git_state(checkout / "b.py") == {"revision": None, "dirty": None}


def test_without_a_checkout_there_is_no_revision(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    assert git_state(tmp_path / "a.py") == {"revision": None, "dirty": None}


def test_without_git_there_is_no_revision(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert git_state(checkout / "a.py") == {"revision": None, "dirty": None}


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = versions()
    assert found["draftwood"] == __version__ and found["torch"] == torch.__version__
    monkeypatch.setattr(module, "PACKAGES", ("no-such-package-at-all",))
    assert versions()["no-such-package-at-all"] == "absent"


def test_hardware_of_a_processor() -> None:
    found = hardware(engine())  # type: ignore[arg-type]
    assert (found["device"], found["threads"], found["dtype"]) == ("cpu", 3, "float32")
    assert found["cores"] == os.cpu_count() and found["capability"] and found["processor"]


def test_everything_is_ready_for_json() -> None:
    found = provenance(engine(), ["draftwood", "bench"], 7).to_json()  # type: ignore[arg-type]
    assert set(found) >= {"git", "hardware", "versions", "argv", "seed"}
    assert (found["argv"], found["seed"]) == (["draftwood", "bench"], 7)
    assert found["hardware"]["threads"] == 3 and found["versions"]["draftwood"] == __version__
