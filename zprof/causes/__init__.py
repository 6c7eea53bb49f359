"""Load the causes whose needs a run meets. Each cause is one file of this folder.

Names and needs are known from the index (:mod:`zprof.model.findings`) without loading a file. A file that
is not in the index yet is loaded.
"""

from collections.abc import Collection, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from zprof.causes.cause import Cause, Need
from zprof.model.findings import read_index

_SHARED = frozenset(
    {"cause", "exposed_role", "fix", "host_fixes", "lateness", "mesh_fixes", "stage_work", "stuck"}
)


@cache
def load_cause(name: str) -> Cause:
    """Load the record of a cause by its name."""
    return import_module(f"zprof.causes.{name}").CAUSE


@cache
def load_causes(has: frozenset[Need] = frozenset(Need)) -> Mapping[str, Cause]:
    """Load the causes whose needs the run meets, by name, ordered by id; all causes by default."""
    known = {entry.name: entry.needs for entry in read_index()}
    loaded = [load_cause(name) for name in list_names() if has.issuperset(known.get(name, ()))]
    usable = [cause for cause in loaded if has.issuperset(cause.needs)]
    return {cause.name: cause for cause in sorted(usable, key=lambda cause: cause.id)}


@cache
def list_names() -> Collection[str]:
    """Return the names of all causes, which are the names of their files."""
    return sorted({module.name for module in iter_modules(__path__)} - _SHARED)
