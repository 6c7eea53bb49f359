"""How closely memory is watched."""

from enum import StrEnum


class MemoryMode(StrEnum):
    """``full``: every operator and every allocation.  ``light``: hooks only, operators are not seen."""

    FULL = "full"
    LIGHT = "light"
