"""The unit that a name ends with: every column and leaf carries it."""

from zprof.model.tenants import Tenant
from zprof.tui.figures import Unit

_ENDS = (
    ("_bytes_per_s", Unit.BYTES_PER_S),
    ("_ns", Unit.NS),
    ("_bytes", Unit.BYTES),
    ("ratio", Unit.RATIO),
)
#: Mappings by tenant hold bytes.
_TENANTS = frozenset({*(tenant.value for tenant in Tenant), "untagged"})


def word_of(name: str) -> str:
    """A name without its unit, which its values have: ``exposed_wait_ns`` as ``exposed wait``."""
    short = next((name.removesuffix(end) for end, _ in _ENDS if end[0] == "_" and name.endswith(end)), name)
    return short.replace("_", " ")


def unit_of(name: str) -> Unit:
    """Its unit; a count where it names none."""
    if name == "bytes" or name.rpartition(".")[2] in _TENANTS:
        return Unit.BYTES
    return next((unit for end, unit in _ENDS if name.endswith(end)), Unit.COUNT)
