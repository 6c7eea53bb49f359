"""The contents of the user's cache folder, as ``zprof cache`` shows them."""

from enum import StrEnum
from pathlib import Path

from msgspec import Struct


class CacheKind(StrEnum):
    """Kind of an entry, and the name of its folder."""

    IMPORTS = "imports"
    REPORTS = "reports"


class CacheEntry(Struct, frozen=True, kw_only=True):
    """An import or a report; ``used_s``: time of its last use, in seconds since 1970."""

    kind: CacheKind
    path: Path
    bytes: int
    used_s: float


class CacheUse(Struct, frozen=True, kw_only=True):
    """The entries of one kind, and their size limit, above which the least recently used are removed."""

    kind: CacheKind
    entries: int
    bytes: int
    max_bytes: int


class CacheSummary(Struct, frozen=True, kw_only=True):
    """The contents of the cache or, if ``is_removed``, the entries removed from it.

    ``folder`` is empty if the user has no home folder, so nothing is cached.
    """

    folder: str
    kinds: tuple[CacheUse, ...]
    is_removed: bool
