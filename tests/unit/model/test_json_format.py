"""Structs as JSON, and the JSON schema of a type: it takes what is written, and nothing else."""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from msgspec import Struct, field

from zprof.model.json_format import make_json_schema, to_json, to_tree


class Color(StrEnum):
    """A closed set."""

    RED = "red"
    GREEN = "green"


class Part(Struct, frozen=True, kw_only=True):
    """A part."""

    color: Color
    size_bytes: int | None


class Whole(Struct, frozen=True, kw_only=True):
    """A document.

    In two paragraphs.
    """

    schema: str = "test/1"
    name: str
    wall_ns: int
    share_ratio: float
    by_color: Mapping[Color, int]
    by_rank: Mapping[int, tuple[int, int]]
    part: Part | None
    parts: tuple[Part, ...] = ()
    sure: bool = False
    within: "Whole | None" = None
    tags: Mapping[str, str] = field(default_factory=dict)


WHOLE = Whole(
    name="\x1b[2J\u202e\ud800",
    wall_ns=1_790_857_026_000_000_001,
    share_ratio=0.5,
    by_color={Color.RED: 1},
    by_rank={10: (1, 2), 9: (3, 4)},
    part=None,
    parts=(Part(color=Color.GREEN, size_bytes=None),),
    within=Whole(name="b", wall_ns=1, share_ratio=float("nan"), by_color={}, by_rank={}, part=None),
)
SCHEMA = make_json_schema(Whole, title="whole")


def errors(document: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)]


def test_a_document_comes_back_and_fits_its_schema() -> None:
    text = to_json(WHOLE)
    assert text.isascii()
    assert "\x1b" not in text
    tree = json.loads(text)
    assert list(tree)[:4] == ["schema", "name", "wall_ns", "share_ratio"]
    assert (tree["name"], tree["wall_ns"]) == (WHOLE.name, WHOLE.wall_ns)
    assert tree["parts"] == [{"color": "green", "size_bytes": None}]
    assert list(tree["by_rank"].items()) == [("9", [3, 4]), ("10", [1, 2])]
    assert tree["within"]["share_ratio"] is None, "JSON has no NaN"
    Draft202012Validator.check_schema(SCHEMA)
    assert not errors(tree)


@pytest.mark.parametrize(
    "leaves",
    [
        {"schema": "test/2"},
        {"name": None},
        {"wall_ns": 1.5},
        {"wall_ns": True},
        {"share_ratio": "0.5"},
        {"by_color": {"blue": 1}},
        {"by_color": {"red": "1"}},
        {"by_rank": {"first": [1, 2]}},
        {"by_rank": {"0": [1, 2, 3]}},
        {"by_rank": {"0": [1]}},
        {"part": {"color": "blue", "size_bytes": 1}},
        {"part": {"color": "red"}},
        {"parts": [{"color": "red", "size_bytes": "many"}]},
        {"parts": {}},
        {"sure": 1},
        {"within": {"name": "b"}},
    ],
    ids=str,
)
def test_documents_of_other_types_are_refused(leaves: dict[str, Any]) -> None:
    assert errors(json.loads(to_json(WHOLE)) | leaves)


def test_leaves_may_be_added_and_those_with_a_default_left_out() -> None:
    document = json.loads(to_json(WHOLE)) | {"added": 1}
    del document["tags"], document["sure"]
    assert not errors(document)
    del document["wall_ns"]
    assert len(errors(document)) == 1


def test_descriptions_are_units_and_docstrings() -> None:
    whole, part = (SCHEMA["$defs"][f"test_json_format.{name}"] for name in ("Whole", "Part"))
    assert whole["description"] == "A document.\n\nIn two paragraphs."
    described = {name: leaf.get("description") for name, leaf in whole["properties"].items()}
    assert (described["wall_ns"], described["name"]) == ("nanoseconds", None)
    assert part["properties"]["size_bytes"] == {"type": ["integer", "null"], "description": "bytes"}


def test_values() -> None:
    tree = to_tree([np.int64(1 << 60), np.float32(0.5), np.bool_(True), Color.RED, float("inf"), (1, None)])
    assert tree == [1 << 60, 0.5, True, "red", None, [1, None]]
    assert [type(item) for item in tree[:4]] == [int, float, bool, str]
    with pytest.raises(TypeError, match="object"):
        to_tree(object())
