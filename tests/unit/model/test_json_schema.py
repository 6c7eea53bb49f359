"""The JSON schema of a type: what it takes is what json_tree writes, and nothing else."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from zprof.model import second_opinion, time
from zprof.model.json_format import make_json_schema, to_json


class Color(StrEnum):
    """A closed set."""

    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part."""

    color: Color
    size_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Whole:
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
    name="a",
    wall_ns=5,
    share_ratio=0.5,
    by_color={Color.RED: 1},
    by_rank={0: (1, 2), -1: (3, 4)},
    part=None,
    parts=(Part(color=Color.GREEN, size_bytes=None),),
    within=Whole(name="b", wall_ns=1, share_ratio=float("nan"), by_color={}, by_rank={}, part=None),
)
SCHEMA = make_json_schema(Whole, title="whole")


def errors(document: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)]


def changed(**leaves: Any) -> dict[str, Any]:
    return json.loads(to_json(WHOLE)) | leaves


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_what_is_written_is_taken() -> None:
    assert not errors(changed())


@pytest.mark.parametrize(
    "leaves",
    [
        {"schema": "test/2"},
        {"name": 3},
        {"name": None},
        {"wall_ns": 1.5},
        {"wall_ns": True},
        {"share_ratio": "0.5"},
        {"by_color": {"blue": 1}},
        {"by_color": {"red": "1"}},
        {"by_rank": {"first": [1, 2]}},
        {"by_rank": {"0": [1, 2, 3]}},
        {"by_rank": {"0": [1]}},
        {"by_rank": {"0": [1, "2"]}},
        {"part": {"color": "blue", "size_bytes": 1}},
        {"part": {"color": "red"}},
        {"parts": [{"color": "red", "size_bytes": "many"}]},
        {"parts": {}},
        {"sure": 1},
        {"within": {"name": "b"}},
    ],
)
def test_what_is_not_of_the_type_is_refused(leaves: dict[str, Any]) -> None:
    assert errors(changed(**leaves))


def test_a_leaf_may_be_added_and_one_with_a_default_may_be_missing() -> None:
    document = changed(added=1)
    del document["tags"], document["sure"]
    assert not errors(document)
    del document["wall_ns"]
    assert errors(document) == ["'wall_ns' is a required property"]


def test_names_say_units_and_docstrings_what_it_is() -> None:
    whole = SCHEMA["$defs"]["test_json_schema.Whole"]
    assert whole["description"] == "A document.\n\nIn two paragraphs."
    assert whole["properties"]["wall_ns"]["description"] == "nanoseconds"
    assert whole["properties"]["share_ratio"]["description"] == "ratio, 1 is the whole"
    assert "description" not in whole["properties"]["name"]
    part = SCHEMA["$defs"]["test_json_schema.Part"]["properties"]
    assert part["size_bytes"] == {"type": ["integer", "null"], "description": "bytes"}


def test_a_rate_is_no_size() -> None:
    @dataclass
    class Link:
        """A link."""

        busbw_bytes_per_s: float

    leaf = make_json_schema(Link, title="")["$defs"]["test_json_schema.Link"]["properties"][
        "busbw_bytes_per_s"
    ]
    assert leaf["description"] == "bytes per second"


def test_two_types_of_one_name_stay_apart() -> None:
    @dataclass
    class Both:
        """Two."""

        a: time.CriticalPath
        b: second_opinion.CriticalPath

    found = make_json_schema(Both, title="")["$defs"]
    assert {"time.CriticalPath", "second_opinion.CriticalPath"} <= set(found)


def test_a_type_without_a_place_in_json_is_refused() -> None:
    @dataclass
    class Odd:
        """Odd."""

        value: complex

    with pytest.raises(TypeError, match=r"no JSON schema for .*complex"):
        make_json_schema(Odd, title="")
