"""Define a metric, an entry of the catalogue of numbers, and find units and paths."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from zprof.model.paths import Path, parse_path
from zprof.model.quantities import Unit
from zprof.model.tenants import Tenant

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
        return self.own_unit or find_unit(parse_path(self.path).name)


def find_unit(name: str) -> Unit:
    """Return the unit of a field or column by its name; a name without a unit is a count."""
    return _UNITS.get(name) or next((unit for end, unit in _SUFFIXES if name.endswith(end)), Unit.COUNT)


def strip_unit(name: str) -> str:
    """Return a name as words without its unit: ``exposed_wait_ns`` as ``exposed wait``."""
    suffix = next((end for end, unit in _SUFFIXES if unit is not Unit.RATIO and name.endswith(end)), "")
    return name.removesuffix(suffix).replace("_", " ")


def resolve_input(path: Path, name: str) -> Path:
    """Return the path of an input of a leaf.

    ``name`` is a sibling, ``../name`` is one level up, and ``/name`` is an absolute path.
    """
    if name.startswith("/"):
        return parse_path(name[1:])
    record = path.parent.parent if name.startswith("../") else path.parent
    return Path((*record.parts, *parse_path(name.removeprefix("../")).parts))
