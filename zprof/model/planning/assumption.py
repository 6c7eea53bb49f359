"""What a predicted figure rests on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What a predicted figure rests on: its formula in words and symbols, and where that comes from.

    ``deviation``: where it is not what the paper says, and why; empty where it is.
    """

    formula: str
    source: str
    deviation: str = ""
