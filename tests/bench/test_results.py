"""Files of a bench: resumable, whole, refused when they are of another version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_samples import sample

from draftwood.bench.provenance import git_state, versions
from draftwood.bench.results import (
    RESULTS,
    SAMPLES,
    SCHEMA,
    SampleStore,
    check_folder,
    finite,
    load_results,
    save_results,
)
from draftwood.errors import TraceError, UsageError

SETTINGS = {"model": "m", "sets": ["a"], "number": float("nan")}


def filled(folder: Path) -> None:
    store = SampleStore(folder, SETTINGS, resume=False)
    for prompt in "pq":
        store.keep(sample("ar", prompt, 1.0))


def test_samples_come_back_on_resume(tmp_path: Path) -> None:
    filled(tmp_path)
    store = SampleStore(tmp_path, SETTINGS, resume=True)
    assert store.samples == [sample("ar", "p", 1.0), sample("ar", "q", 1.0)]
    assert store.done == {("", "a", "p", "ar", 0, 0), ("", "a", "q", "ar", 0, 0)}
    store.keep(sample("chain", "p", 1.0))
    assert len(SampleStore(tmp_path, SETTINGS, resume=True).samples) == 3


def test_a_sample_is_on_disk_when_keep_returns(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, SETTINGS, resume=False)
    store.keep(sample("ar", "p", 1.0))
    assert len((tmp_path / SAMPLES).read_text().splitlines()) == 2


def test_a_line_cut_by_a_crash_is_dropped(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / SAMPLES
    path.write_text(path.read_text()[:-30])
    store = SampleStore(tmp_path, SETTINGS, resume=True)
    assert [item.prompt_id for item in store.samples] == ["p"]
    store.keep(sample("ar", "q", 2.0))
    assert [item.decode_s for item in SampleStore(tmp_path, SETTINGS, resume=True).samples] == [1.0, 2.0]


def test_a_fresh_run_starts_from_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    save_results(tmp_path, [{"set": "a"}], {})
    assert SampleStore(tmp_path, SETTINGS, resume=False).samples == []
    assert not (tmp_path / RESULTS).exists()


def test_resume_names_the_setting_that_changed(tmp_path: Path) -> None:
    filled(tmp_path)
    before = (tmp_path / SAMPLES).read_bytes()
    with pytest.raises(UsageError, match=r'--resume: model was "m", now "n"'):
        SampleStore(tmp_path, {**SETTINGS, "model": "n"}, resume=True)
    assert (tmp_path / SAMPLES).read_bytes() == before


def test_resume_says_that_prompts_render_differently(tmp_path: Path) -> None:
    filled(tmp_path)
    store = SampleStore(tmp_path, SETTINGS, resume=True)
    store.check_prompts({("a", "p"): "h", ("a", "q"): "h"})
    with pytest.raises(UsageError, match="prompt q of set a has other token ids"):
        store.check_prompts({("a", "p"): "h", ("a", "q"): "a day later"})


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (SAMPLES, '{"schema": 99}\n', "schema 99, expected 1"),
        (SAMPLES, "", "schema None, expected 1"),
        (SAMPLES, "what\n", "not JSON"),
        (SAMPLES, '{"schema": 1, "settings": {}}\n{"row": 1}\n', "fields of another version"),
        (RESULTS, '{"schema": 0}\n', "schema 0, expected 1"),
        (RESULTS, "[]\n", "expected an object"),
        (RESULTS, '{"schema": 1}\n{"sch', "not JSON"),
    ],
)
def test_files_of_another_version_are_refused_untouched(
    tmp_path: Path, resume: bool, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=words) as caught:
        SampleStore(tmp_path, SETTINGS, resume=resume)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == text


def test_results_are_replaced_as_a_whole_with_provenance(tmp_path: Path) -> None:
    save_results(tmp_path, [{"set": "a", "tokens_per_s": float("inf")}, {"set": "b"}], {"git": {"dirty": True}})
    first, second = load_results(tmp_path / RESULTS)
    assert first == {"schema": SCHEMA, "set": "a", "tokens_per_s": None, "git": {"dirty": True}}
    assert second["set"] == "b"
    assert [path.name for path in tmp_path.iterdir()] == [RESULTS]


def test_numbers_that_are_not_finite_become_null() -> None:
    value: Any = {"a": [float("nan"), (float("-inf"), 1.5)], "b": {"c": float("inf"), "d": None}}
    assert json.dumps(finite(value), allow_nan=False) == '{"a": [null, [null, 1.5]], "b": {"c": null, "d": null}}'


def test_folder_check_leaves_nothing_behind(tmp_path: Path) -> None:
    check_folder(tmp_path / "x" / "y")
    check_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        check_folder(tmp_path / "file" / "x")
    with pytest.raises(UsageError, match="cannot be written"):
        check_folder(Path("/proc/draftwood/x"))


def test_versions_and_revision(tmp_path: Path) -> None:
    assert versions()["torch"] != "absent"
    (tmp_path / "file.py").write_text("")
    assert git_state(tmp_path / "file.py") == {"revision": None, "dirty": None}
