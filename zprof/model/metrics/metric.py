"""Define a metric, an entry of the catalogue of numbers, and find units and paths."""

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from zprof.model.quantities import Unit
from zprof.model.tenants import Tenant

_INDEX = re.compile(r"\[(\d+|\*)\]")
#: Unit by the suffix of a name; the longest suffix comes first.
_SUFFIXES = (
    ("_bytes_per_s", Unit.BYTES_PER_S),
    ("_ns", Unit.NS),
    ("_bytes", Unit.BYTES),
    ("_ratio", Unit.RATIO),
)
#: Mappings keyed by tenant hold bytes; these names are their own unit.
_UNITS: Mapping[str, Unit] = {
    "bytes": Unit.BYTES,
    "ns": Unit.NS,
    "ratio": Unit.RATIO,
    "untagged": Unit.BYTES,
    **{tenant.value: Unit.BYTES for tenant in Tenant},
}


class Better(StrEnum):
    """Which direction of a change is an improvement."""

    LESS = "less"
    MORE = "more"
    NEITHER = "neither"


class Metric(Struct, frozen=True, kw_only=True):
    """A number of the report that a person reads.

    ``path``: its leaf in the report, with ``[]`` in place of indices. ``help``: what it is, in one or a few
    sentences. ``inputs``: the leaves that it is computed from, in the notation of :func:`resolve_input`.
    ``has_interval``: False for a median, fit, sample or rate, whose changes cannot be told from noise.
    ``own_unit``: the unit if the name of the leaf does not end in it.
    """

    path: str
    title: str
    help: str
    formula: str = ""
    inputs: tuple[str, ...] = ()
    better: Better = Better.NEITHER
    has_interval: bool = True
    own_unit: Unit | None = None

    @property
    def unit(self) -> Unit:
        """Its own unit, if given, else the one in which the name of the leaf ends."""
        return self.own_unit or find_unit(self.path)


def find_unit(path: str) -> Unit:
    """Return the unit of a leaf or column by its name; a name without a unit is a count."""
    name = strip_indices(path).replace("[]", "").rpartition(".")[2]
    return _UNITS.get(name) or next((unit for end, unit in _SUFFIXES if name.endswith(end)), Unit.COUNT)


def strip_unit(name: str) -> str:
    """Return a name as words without its unit: ``exposed_wait_ns`` as ``exposed wait``."""
    suffix = next((end for end, unit in _SUFFIXES if unit is not Unit.RATIO and name.endswith(end)), "")
    return name.removesuffix(suffix).replace("_", " ")


def strip_indices(path: str) -> str:
    """Return ``time.per_rank[3].wall_ns`` as ``time.per_rank[].wall_ns``."""
    return _INDEX.sub("[]", path)


def parent_path(path: str) -> str:
    """Return the parent of a leaf: ``time.per_rank[3]`` for ``time.per_rank[3].wall_ns``."""
    return path.rpartition(".")[0]


def resolve_input(path: str, name: str) -> str:
    """Return the path of an input of a leaf.

    ``name`` is a sibling, ``../name`` is one level up, and ``/name`` is an absolute path.
    """
    if name.startswith("/"):
        return name[1:]
    if name.startswith("../"):
        return f"{parent_path(parent_path(path))}.{name[3:]}"
    return f"{parent_path(path)}.{name}"
