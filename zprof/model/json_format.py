"""Convert structs to JSON, and derive the JSON Schema (draft 2020-12) of those documents.

Fields keep their declared order; mapping keys become strings and are sorted, ranks numerically. Infinity and
NaN become null, and an unset field is omitted. In a schema, types, enumerations and nullability come from
annotations, and class descriptions from docstrings. The catalogue describes numbers; for a number that it
lacks, the unit comes from the field name (``_ns``, ``_bytes``). Objects stay open, and a field with a default
may be missing.
"""

import inspect
import json
import math
import types
from collections.abc import Mapping
from enum import Enum
from functools import reduce
from operator import or_
from typing import Any, Union, get_args, get_origin, get_type_hints

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import FieldInfo, fields

from zprof.model.quantities import Unit, find_unit


def to_tree(value: Any) -> Any:
    """Return ``value`` as dicts, lists, strings, numbers, booleans and None."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Struct):
        pairs = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: to_tree(field) for name, field in pairs if field is not UNSET}
    if isinstance(value, Mapping):
        return {_to_key(key): to_tree(value[key]) for key in sorted(value, key=_key_order)}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_tree(item) for item in value]
    return _to_scalar(value)


def to_json(value: Any) -> str:
    """Return ``value`` as indented ASCII JSON, without characters that control a terminal."""
    return json.dumps(to_tree(value), indent=2, allow_nan=False) + "\n"


def _to_scalar(value: Any) -> Any:
    if hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{type(value).__name__} cannot be converted to JSON")


def _to_key(key: Any) -> str:
    return str(key.value) if isinstance(key, Enum) else str(key)


def _key_order(key: Any) -> tuple[int, int, str]:
    if isinstance(key, int):
        return (0, key, "")
    return (1, 0, _to_key(key))


DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: Units in words; counts have no unit.
_UNIT_WORDS = {
    Unit.BYTES_PER_S: "bytes per second",
    Unit.BYTES: "bytes",
    Unit.NS: "nanoseconds",
    Unit.RATIO: "ratio; 1 is 100 %",
}
_PARTS_PER_BILLION = "_ppb"
#: JSON has neither infinity nor NaN: such a number counts as unknown and is written as null.
_SCALARS: dict[Any, Any] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: ["number", "null"],
    type(None): "null",
}

Tree = dict[str, Any]


def make_json_schema(kind: type, *, title: str) -> Tree:
    """Return the schema of documents of type ``kind``; the field ``schema``, if any, is a constant.

    Raises:
        TypeError: A field has a type that JSON cannot represent.
    """
    known: dict[type, Tree] = {}
    root = _reference_schema(kind, known)
    definitions = {_definition_name(type_): known[type_] for type_ in sorted(known, key=_definition_name)}
    return {"$schema": DIALECT, "title": title, **root, "$defs": definitions}


def _reference_schema(kind: type, known: dict[type, Tree], path: str = "") -> Tree:
    """Return a reference to the schema of a type; the first path to it describes its fields."""
    if kind not in known:
        known[kind] = {}  # ends the recursion for a type that contains itself
        known[kind] |= _enum_schema(kind) if issubclass(kind, Enum) else _object_schema(kind, known, path)
    return {"$ref": f"#/$defs/{_definition_name(kind)}"}


def _object_schema(kind: type, known: dict[type, Tree], path: str) -> Tree:
    hints = get_type_hints(kind)
    return {
        "type": "object",
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "properties": {
            field.name: _property_schema(field, hints[field.name], known, path) for field in fields(kind)
        },
        "required": [field.name for field in fields(kind) if field.name == "schema" or field.required],
    }


def _enum_schema(kind: type[Enum]) -> Tree:
    values = [member.value for member in kind]
    return {"type": "string", "description": inspect.cleandoc(kind.__doc__ or ""), "enum": values}


def _property_schema(field: FieldInfo, hint: Any, known: dict[type, Tree], path: str) -> Tree:
    if field.name == "schema":
        return {"const": field.default}
    path = f"{path}.{field.name}" if path else field.name
    described = _describe_field(field.name, path)
    schema = _annotation_schema(hint, known, path)
    return {**schema, "description": described} if described else schema


def _annotation_schema(hint: Any, known: dict[type, Tree], path: str) -> Tree:
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if UnsetType in arguments:  # may be missing, like every field with a default
        kept = reduce(or_, (argument for argument in arguments if argument is not UnsetType))
        return _annotation_schema(kept, known, path)
    if origin in (Union, types.UnionType):
        options = [_annotation_schema(argument, known, path) for argument in arguments]
        if all(set(option) == {"type"} for option in options):
            names = dict.fromkeys(
                name
                for option in options
                for name in ([option["type"]] if isinstance(option["type"], str) else option["type"])
            )
            if "number" in names:
                names.pop("integer", None)  # an integer is a number
            return {"type": list(names)}
        return {"anyOf": options}
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return {"type": "array", "items": _annotation_schema(arguments[0], known, f"{path}[]")}
        items = [_annotation_schema(argument, known, path) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_schema(arguments[0], _annotation_schema(arguments[1], known, f"{path}[]"), known)
    if isinstance(hint, type) and issubclass(hint, Struct | Enum):
        return _reference_schema(hint, known, path)
    raise TypeError(f"no JSON schema for {hint}")


def _mapping_schema(key: Any, values: Tree, known: dict[type, Tree]) -> Tree:
    """Return the schema of a mapping. Keys are strings: a rank's number, an enum's value."""
    key_schemas = {int: {"pattern": "^-?[0-9]+$"}, str: {}}
    names = key_schemas[key] if key in key_schemas else _annotation_schema(key, known, "")
    return {"type": "object", **({"propertyNames": names} if names else {}), "additionalProperties": values}


def _definition_name(kind: type) -> str:
    """Return the class name with its module, because several modules may have a class of that name."""
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"


def _describe_field(name: str, path: str) -> str:
    """Return the catalogue's description of a field, or else its unit."""
    from zprof.model.metrics import METRICS

    metric = METRICS.get(path)
    unit = "parts per billion" if name.endswith(_PARTS_PER_BILLION) else _UNIT_WORDS.get(find_unit(name), "")
    if metric is None:
        return unit
    return f"{metric.help} Unit: {unit}." if unit else metric.help
