"""JSON Schema (draft 2020-12) of a frozen dataclass, as :mod:`zprof.model.json_tree` writes it.

Types, enumerations, keys of mappings and what may be null come from the annotations, descriptions from the
docstrings, units from the names (``_ns``, ``_bytes``, …).  Objects stay open: leaves may be added.  A leaf
with a default may be missing, as it is from documents that are older than it.
"""

import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: Of what a name ends in; the longest that fits counts.
_UNITS = {
    "bytes_per_s": "bytes per second",
    "bytes": "bytes",
    "ns": "nanoseconds",
    "ppb": "parts per billion",
    "ratio": "ratio, 1 is the whole",
}
#: JSON has no infinity and no NaN: such a number is unknown, so it is written as null.
_SCALARS: dict[Any, Any] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: ["number", "null"],
    type(None): "null",
}

Tree = dict[str, Any]


def json_schema(kind: type, *, title: str) -> Tree:
    """The schema of documents of ``kind``: its field ``schema``, where it has one, names them.

    Raises:
        TypeError: a field is of a type that has no place in JSON.
    """
    known: dict[type, Tree] = {}
    root = _reference(kind, known)
    definitions = {_name(found): known[found] for found in sorted(known, key=_name)}
    return {"$schema": DIALECT, "title": title, **root, "$defs": definitions}


def _reference(kind: type, known: dict[type, Tree]) -> Tree:
    if kind not in known:
        known[kind] = {}  # a type that holds itself ends here
        known[kind] |= _enumeration(kind) if issubclass(kind, Enum) else _object(kind, known)
    return {"$ref": f"#/$defs/{_name(kind)}"}


def _object(kind: type, known: dict[type, Tree]) -> Tree:
    hints = get_type_hints(kind)
    return {
        "type": "object",
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "properties": {field.name: _property(field, hints[field.name], known) for field in fields(kind)},
        "required": [field.name for field in fields(kind) if _is_required(field)],
    }


def _enumeration(kind: type[Enum]) -> Tree:
    values = [member.value for member in kind]
    return {"type": "string", "description": inspect.cleandoc(kind.__doc__ or ""), "enum": values}


def _property(field: "Field[Any]", hint: Any, known: dict[type, Tree]) -> Tree:
    if field.name == "schema":
        return {"const": field.default}
    unit = _unit(field.name)
    return {**_of(hint, known), **({"description": unit} if unit else {})}


def _is_required(field: "Field[Any]") -> bool:
    return field.name == "schema" or (field.default is MISSING and field.default_factory is MISSING)


def _of(hint: Any, known: dict[type, Tree]) -> Tree:
    """The schema of one annotation."""
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union([_of(argument, known) for argument in arguments])
    if origin is tuple:
        return _tuple(arguments, known)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(arguments[0], _of(arguments[1], known), known)
    if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, Enum)):
        return _reference(hint, known)
    raise TypeError(f"no JSON schema for {hint}")


def _union(options: list[Tree]) -> Tree:
    if all(set(option) == {"type"} for option in options):
        names = [name for option in options for name in _listed(option["type"])]
        return {"type": list(dict.fromkeys(names))}
    return {"anyOf": options}


def _listed(kind: str | list[str]) -> list[str]:
    return [kind] if isinstance(kind, str) else kind


def _tuple(arguments: tuple[Any, ...], known: dict[type, Tree]) -> Tree:
    if arguments[-1] is Ellipsis:
        return {"type": "array", "items": _of(arguments[0], known)}
    items = [_of(argument, known) for argument in arguments]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _mapping(key: Any, values: Tree, known: dict[type, Tree]) -> Tree:
    """Keys are strings in JSON: a rank as its number, an enumeration as its value."""
    named = {int: {"pattern": "^-?[0-9]+$"}, str: {}}
    names = named[key] if key in named else _of(key, known)
    return {"type": "object", **({"propertyNames": names} if names else {}), "additionalProperties": values}


def _name(kind: type) -> str:
    """With its module: two parts of a report may have a word in common."""
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"


def _unit(name: str) -> str:
    return next((said for suffix, said in _UNITS.items() if suffix in _endings(name)), "")


def _endings(name: str) -> Iterator[str]:
    parts = name.split("_")
    return ("_".join(parts[begin:]) for begin in range(len(parts)))
