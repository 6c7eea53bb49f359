"""Which block of the model a wrapped unit is, or lies in: ``layers.3.attn.wq`` lies in ``layers.3``."""

import re
from collections.abc import Iterable
from statistics import median

_BLOCK = re.compile(r"(?:[A-Za-z_]\w*\.)*\d+(?![^.\s\[])", re.ASCII)
#: Longer names are nobody's module.
_MOST_TEXT = 1_000


def block_of(unit: str) -> str | None:
    """The first numbered part of a unit's name, with what stands before; None without one."""
    found = _BLOCK.match(unit[:_MOST_TEXT])
    return found.group() if found else None


def units_per_block(units: Iterable[str]) -> float | None:
    """Distinct units of a block, the median over the blocks; None where names tell of no block."""
    blocks: dict[str, int] = {}
    for unit in sorted(set(units)):
        block = block_of(unit)
        if block is not None:
            blocks[block] = blocks.get(block, 0) + 1
    return float(median(blocks.values())) if blocks else None
