"""truth.json: written and read.  Groups of ranks stand in a table, rows name them by number."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from zprof.model.errors import BadInput
from zprof.simulator.truth.model import SCHEMA, Truth

NAME = "truth.json"


def write_truth(truth: Truth, folder: Path) -> Path:
    """Write ``folder/truth.json``."""
    groups: dict[tuple[int, ...], int] = {}
    for row in truth.collectives:
        groups.setdefault(row.ranks, len(groups))
    document = {field.name: getattr(truth, field.name) for field in fields(Truth)}
    document["groups"] = list(groups)
    document["collectives"] = [{**_plain(row), "ranks": groups[row.ranks]} for row in truth.collectives]
    path = folder / NAME
    path.write_bytes(msgspec.json.encode(document))
    return path


def read_truth(folder: Path) -> Truth:
    """Read it back.

    Raises:
        BadInput: there is none, or it is of another schema.
    """
    path = folder / NAME
    try:
        document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise BadInput(f"{path}: not a truth of schema {SCHEMA}", hint="simulate again")
        groups = document.pop("groups")
        for row in document["collectives"]:
            row["ranks"] = groups[row["ranks"]]
        truth = msgspec.convert(document, Truth)
    except (OSError, msgspec.MsgspecError, KeyError, IndexError, TypeError) as error:
        raise BadInput(f"{path}: cannot be read as a truth ({error})", hint="simulate again") from None
    shared = {tuple(group): tuple(group) for group in groups}
    rows = tuple(replace(row, ranks=shared[row.ranks]) for row in truth.collectives)
    return replace(truth, collectives=rows)


def _plain(row: Any) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row)}
