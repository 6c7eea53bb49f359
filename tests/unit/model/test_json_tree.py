"""Dataclasses as JSON: enums as values, keys as strings in a stable order, nothing JSON cannot hold."""

import json
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pytest

from zprof.model.json_format import to_json, to_tree


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Leaf:
    zebra: object
    apple: object = None


def test_values() -> None:
    assert to_tree(Leaf(Colour.RED, (1, 2.5, True, None))) == {
        "zebra": "red",
        "apple": [1, 2.5, True, None],
    }
    assert type(to_tree(Colour.RED)) is str


def test_fields_keep_their_order_and_keys_are_sorted() -> None:
    assert list(to_tree(Leaf(1))) == ["zebra", "apple"]
    assert list(to_tree({10: 0, 9: 0, Colour.RED: 0, "blue": 0})) == ["9", "10", "blue", "red"]


def test_numbers_that_json_cannot_hold_are_unknown() -> None:
    assert to_tree([float("nan"), float("inf"), np.float64("nan")]) == [None, None, None]


def test_numpy_numbers_become_numbers() -> None:
    tree = to_tree([np.int64(1 << 60), np.float32(0.5), np.bool_(True)])
    assert tree == [1 << 60, 0.5, True]
    assert [type(item) for item in tree] == [int, float, bool]


def test_big_integers_survive() -> None:
    assert json.loads(to_json(Leaf(1_790_857_026_000_000_001)))["zebra"] == 1_790_857_026_000_000_001


def test_hostile_text_is_ascii() -> None:
    text = to_json(Leaf("\x1b[2J\u202e\ud800"))
    assert text.isascii()
    assert "\x1b" not in text


def test_what_has_no_place_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        to_tree(object())
