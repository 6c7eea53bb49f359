"""Frozen dataclasses as a tree of plain JSON values.

Fields keep their declared order; keys of mappings become strings and are sorted, ranks by number.
A number that JSON cannot hold (infinity, NaN) is unknown, so it becomes null.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def to_tree(value: Any) -> Any:
    """``value`` as dicts, lists, strings, numbers, booleans and None."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_tree(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): to_tree(value[key]) for key in sorted(value, key=_order)}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_tree(item) for item in value]
    return _scalar(value)


def to_json(value: Any) -> str:
    """``value`` as indented JSON in ASCII: no character in it can steer a terminal."""
    return json.dumps(to_tree(value), indent=2, allow_nan=False) + "\n"


def _scalar(value: Any) -> Any:
    if hasattr(value, "item"):  # a numpy scalar that slipped through
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"no place in JSON for {type(value).__name__}")


def _key(key: Any) -> str:
    return str(key.value) if isinstance(key, Enum) else str(key)


def _order(key: Any) -> tuple[int, int, str]:
    if isinstance(key, int):
        return (0, key, "")
    return (1, 0, _key(key))
