"""Read the index of all causes; ``python -m docs.tools.finding_index`` writes it from their records."""

from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

#: Families of causes by the start of their ids, in order.
FAMILIES = {
    "ZP1": "Measurement",
    "ZP2": "Memory",
    "ZP3": "Waiting",
    "ZP4": "Transfer and volume",
    "ZP5": "Host and device",
    "ZP6": "Hang",
}


class IndexEntry(Struct, frozen=True, kw_only=True):
    """What is known of a cause without loading its file; ``needs``: what a run must have for it."""

    id: str
    name: str
    meaning: str
    needs: tuple[str, ...]


@cache
def read_index() -> tuple[IndexEntry, ...]:
    """Return all causes, by id."""
    text = (resources.files("zprof") / "findings" / "index.json").read_bytes()
    return tuple(msgspec.json.decode(text, type=list[IndexEntry]))
