"""What is kept in the user's cache folder, as ``zprof cache`` shows it."""

from enum import StrEnum
from pathlib import Path

from msgspec import Struct


class CacheKind(StrEnum):
    """What an entry is, and the name of the folder that it is in."""

    IMPORTS = "imports"
    REPORTS = "reports"


class CacheEntry(Struct, frozen=True, kw_only=True):
    """An import or a report; ``used_s``: when it was last used, in seconds since 1970."""

    kind: CacheKind
    path: Path
    bytes: int
    used_s: float


class CacheUse(Struct, frozen=True, kw_only=True):
    """The entries of one kind, and the bytes above which the least recently used are removed."""

    kind: CacheKind
    entries: int
    bytes: int
    max_bytes: int


class CacheSummary(Struct, frozen=True, kw_only=True):
    """What the cache holds or, if ``is_removed``, what was removed from it.

    ``folder`` is empty if the user has no home folder, so that nothing is kept.
    """

    folder: str
    kinds: tuple[CacheUse, ...]
    is_removed: bool
