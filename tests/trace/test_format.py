from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import made_trace
import numpy as np
import pytest

from draftwood.errors import TraceError
from draftwood.prompts.units import hash_prompt
from draftwood.trace.builder import TraceBuilder, TraceRound
from draftwood.trace.format import Trace, load


def own_trace() -> Trace:
    """Two interleaved requests: the first accepts nodes 1 and 3 in its only drafted round, the second never drafts."""
    builder = TraceBuilder(
        made_trace.meta(
            policy="ddtree",
            options={"budget": 4},
            every_position=False,
            stages=("draft", "verify"),
            factor_names=("base",),
        ),
        depth=2,
    )
    ids = np.tile(np.arange(40, dtype=np.int64), (2, 1))
    logp = np.log(np.full((2, 40), 1 / 40, dtype=np.float32))
    names = {"set_name": "made", "prompt_hash": hash_prompt([1, 2])}
    one = builder.add_request(request_id="a", prompt_len=2, max_tokens=9, **names)
    two = builder.add_request(request_id="bé", prompt_len=2, max_tokens=3, **names)
    builder.add_round(two, TraceRound(position=1, pending=8, context=3, seconds={"verify": 0.5}, factors={"base": 2.0}))
    builder.add_round(
        one,
        TraceRound(
            0, 5, 2, logp, ids, candidates=4, num_nodes=4, accepted=[1, 3], committed=3, seconds={"draft": 0.25}
        ),
    )
    builder.add_round(two, TraceRound(position=0, pending=7, context=2))
    builder.finish_request(one, [5, 0, 0, 9], "stop")
    builder.finish_request(two, [7, 8, 9], "length")
    return builder.build()


def assert_equal(one: Trace, two: Trace) -> None:
    assert one.meta == two.meta
    for name in ("rounds", "requests"):
        for item in fields(getattr(one, name)):
            left, right = getattr(getattr(one, name), item.name), getattr(getattr(two, name), item.name)
            np.testing.assert_array_equal(left, right)
            assert left.dtype.kind == "U" or left.dtype == right.dtype


def test_builder_orders_rounds_and_slices_them() -> None:
    trace = own_trace()
    assert trace.rounds.request.tolist() == [0, 1, 1]
    assert trace.rounds.position.tolist() == [0, 0, 1]
    assert trace.rounds_of(1) == range(1, 3)
    assert trace.output(0).tolist() == [5, 0, 0, 9]
    assert trace.realised(0).tolist() == [0, 0, 9]
    assert trace.realised(2).tolist() == [9]
    assert trace.accepted_path(0).tolist() == [1, 3]
    assert trace.accepted_path(1).tolist() == []
    assert trace.rounds.seconds.tolist() == [[0.25, 0.0], [0.0, 0.0], [0.0, 0.5]]
    assert trace.rounds.factors.tolist() == [[1.0], [1.0], [2.0]]
    assert trace.rounds.drafted.tolist() == [True, False, False]


def test_max_depth_leaves_room_for_the_targets_token() -> None:
    trace = made_trace.every_position([9], slack=0)
    # Of 9 tokens, position 7 has one left: nothing to draft. Position 6 has two: one drafted level.
    assert trace.max_depth().tolist() == [4, 4, 4, 4, 3, 2, 1, 0]
    assert made_trace.every_position([9], slack=2).max_depth().tolist() == [4, 4, 4, 4, 4, 4, 3, 2]


@pytest.mark.parametrize("make", [own_trace, lambda: made_trace.every_position([4, 1, 7])])
def test_round_trip(make: object, tmp_path: Path) -> None:
    trace = make()  # type: ignore[operator]
    path = tmp_path / "trace"
    trace.save(path)
    assert_equal(load(path), trace)
    assert os.listdir(tmp_path) == ["trace"]


def test_large_vocabulary_keeps_wide_ids(tmp_path: Path) -> None:
    trace = own_trace()
    ids = trace.rounds.ids.copy()
    ids[0, 0, 0] = 70_000
    wide = replace(trace, meta=replace(trace.meta, vocab_size=70_001), rounds=replace(trace.rounds, ids=ids))
    wide.save(tmp_path / "w.npz")
    assert load(tmp_path / "w.npz").rounds.ids[0, 0, 0] == 70_000


def test_no_rounds_at_all(tmp_path: Path) -> None:
    trace = made_trace.every_position([1, 1])
    assert trace.num_rounds == 0
    trace.save(tmp_path / "t.npz")
    assert load(tmp_path / "t.npz").num_requests == 2


def damage(path: Path, how: str) -> None:
    """Rewrites a good file so that one thing is wrong."""
    data = dict(np.load(path))
    rounds = "rounds."
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-200])
        return
    if how == "middle":
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2 : len(raw) // 2 + 40] = bytes(40)
        path.write_bytes(bytes(raw))
        return
    if how == "text":
        path.write_text("not a trace")
        return
    if how == "schema":
        meta = json.loads(data["meta"].tobytes()) | {"schema": 3}
        data["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    if how == "nan":
        data[rounds + "logp"][0, 0, 0] = np.nan
    if how == "positive":
        data[rounds + "logp"][0, 0, 0] = 0.5
    if how == "unsorted":
        data[rounds + "logp"][0, 0, 0] = -30
    if how == "ids":
        data[rounds + "ids"][0, 0, 0] = 40
    if how == "output":
        data["requests.output_ids"][3] = 999
    if how == "length":
        data[rounds + "context"] = data[rounds + "context"][:-1]
    if how == "missing":
        del data[rounds + "depth"]
    if how == "extra":
        data["more"] = np.zeros(1)
    if how == "sum":
        data[rounds + "committed"][0] = 2
    if how == "pending":
        data[rounds + "pending"][0] = 6
    if how == "context":
        data[rounds + "context"][0] = 7
    if how == "accepted":
        data[rounds + "accepted"][1] = 5
    if how == "offsets":
        data["requests.output_offsets"][1] = 9
    if how == "seconds":
        data[rounds + "seconds"][0, 0] = np.nan
    if how == "float64":
        data[rounds + "logp"] = data[rounds + "logp"].astype(np.float64)
    if how == "finish":
        data["requests.finish"] = np.array(["stop", "gone"])
    np.savez_compressed(path, **data)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("cut", "cut short"), ("middle", "damaged"), ("text", "not a trace"), ("schema", "schema 3, expected 1 to 2"),
        ("nan", "NaN"), ("positive", "above 0"), ("unsorted", "descending"), ("ids", "id 40 outside 0 to 39"),
        ("output", "id 999 outside"), ("length", "rounds.context"), ("missing", "rounds.depth is missing"),
        ("extra", "arrays"), ("sum", "sum to the output tokens"), ("pending", "pending differs"),
        ("context", "context differs"), ("accepted", "outside the round's tree"), ("offsets", "output_offsets"),
        ("seconds", "not finite"), ("float64", "expected float32"), ("finish", "'gone'"),
    ],
)  # fmt: skip
def test_bad_file_is_one_line(how: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    own_trace().save(path)
    damage(path, how)
    with pytest.raises(TraceError, match=says) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_pickled_array_is_refused_and_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "ran"),))

    path = tmp_path / "t.npz"
    own_trace().save(path)
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path) as old:
        kept = {name: old.read(name) for name in old.namelist() if name != "rounds.depth.npy"}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in kept.items():
            new.writestr(name, content)
        new.writestr("rounds.depth.npy", buffer.getvalue())
    with pytest.raises(TraceError, match="pickled"):
        load(path)
    assert not (tmp_path / "ran").exists()


def test_missing_file_and_unwritable_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        load(tmp_path / "none.npz")
    with pytest.raises(TraceError, match="cannot be written"):
        own_trace().save(tmp_path / "none" / "t.npz")


def test_failed_save_keeps_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.npz"
    own_trace().save(path)
    before = path.read_bytes()

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(TraceError, match="No space left"):
        own_trace().save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["t.npz"]


def test_builder_refuses_what_a_trace_cannot_hold() -> None:
    builder = TraceBuilder(made_trace.meta(), depth=2)
    names = {"set_name": "s", "prompt_hash": "0", "prompt_len": 1, "max_tokens": 4}
    request = builder.add_request(request_id="a", **names)
    with pytest.raises(TraceError, match="shape"):
        builder.add_round(request, TraceRound(0, 1, 1, np.zeros((2, 3, 3)), np.zeros((2, 3, 3))))
    with pytest.raises(TraceError, match="ids of shape"):
        builder.add_round(request, TraceRound(0, 1, 1, np.zeros((2, 40)), np.zeros((1, 40))))
    with pytest.raises(TraceError, match="never finished"):
        builder.build()


def damaged(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def test_members_that_cannot_be_unpacked_give_one_line(tmp_path: Path) -> None:
    """Another compression, a password, strong encryption: fields of the zip headers, changed in both places."""
    path = tmp_path / "t.npz"
    made_trace.every_position([5]).save(path)
    whole = path.read_bytes()
    central = whole.index(b"PK\x01\x02")
    for offset, value, words in ((8, 9, "compression"), (6, 1, "encrypted"), (6, 0x40, "encryption")):
        path.write_bytes(damaged(damaged(whole, offset, value), central + offset + 2, value))
        with pytest.raises(TraceError, match=words) as error:
            load(path)
        assert "\n" not in str(error.value) and "t.npz" in str(error.value)


def test_flipped_bits_give_one_line_or_the_same_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    trace = made_trace.every_position([5])
    trace.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        at = int(rng.integers(len(whole)))
        path.write_bytes(damaged(whole, at, whole[at] ^ (1 << int(rng.integers(8)))))
        try:
            found = load(path)
        except TraceError as error:
            refused += 1
            assert "\n" not in str(error)
        else:
            assert found.requests.output_ids.tolist() == trace.requests.output_ids.tolist()
    assert refused > 150
