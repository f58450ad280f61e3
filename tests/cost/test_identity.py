"""Whose costs a profile holds, and how it differs from here."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import made_profile
import pytest

from draftwood.cost.identity import Identity
from draftwood.errors import CostError

HERE = Identity.from_json(made_profile.IDENTITY)


def test_there_and_back() -> None:
    assert HERE.to_json() == made_profile.IDENTITY
    assert Identity.from_json(json.loads(json.dumps(HERE.to_json()))) == HERE


def test_a_mapping_of_versions_becomes_an_object() -> None:
    sealed = replace(HERE, versions=MappingProxyType({"torch": "2.8.0"}))
    assert json.loads(json.dumps(sealed.to_json())) == made_profile.IDENTITY


def test_equal_ones_do_not_differ() -> None:
    assert HERE.differences(HERE) == ()
    assert HERE.differences(replace(HERE, versions={**HERE.versions})) == ()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("device", "gpu", "device 'cpu' against 'gpu'"),
        ("threads", 4, "threads 2 against 4"),
        ("dtype", "bfloat16", "dtype 'float32' against 'bfloat16'"),
        ("attention", "flash", "attention 'sdpa' against 'flash'"),
        ("model", "c3", "model 'a1' against 'c3'"),
        ("drafter", "d4", "drafter 'b2' against 'd4'"),
    ],
)
def test_each_field_is_named_with_both_values(name: str, value: object, said: str) -> None:
    assert HERE.differences(replace(HERE, **{name: value})) == (said,)


def test_versions_go_by_their_package_and_the_order_is_that_of_the_fields() -> None:
    other = replace(HERE, threads=1, versions={"torch": "2.9.0", "numba": "0.61"})
    assert HERE.differences(other) == (
        "threads 2 against 1",
        "versions.torch '2.8.0' against '2.9.0'",
        "versions.numba None against '0.61'",
    )
    assert other.differences(HERE)[-2:] == (
        "versions.numba '0.61' against None",
        "versions.torch '2.9.0' against '2.8.0'",
    )


@pytest.mark.parametrize("name", sorted(made_profile.IDENTITY))
def test_a_missing_field_is_refused(name: str) -> None:
    document = {key: value for key, value in made_profile.IDENTITY.items() if key != name}
    with pytest.raises(CostError, match="expected an object with device, threads, dtype, attention, model, drafter"):
        Identity.from_json(document)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "expected an object with"),
        ({"threads": "2"}, "expected threads as an integer"),
        ({"versions": [1]}, "versions as an object"),
    ],
)
def test_a_wrong_field_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CostError, match=message):
        Identity.from_json(made_profile.IDENTITY | change)


@pytest.mark.parametrize("value", [None, [], "cpu", 3])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(CostError, match="identity"):
        Identity.from_json(value)
