"""Blocks whose claims all hold over their whole life: the common case, resolved without a loop.

A backdated claim that is never taken back covers its block from birth to end, so that a block with only
such claims is one segment: of the strongest tenant, named by the earliest claim of that tenant.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from zprof.analysis.memory.rank.join import Blocks
from zprof.analysis.memory.rank.lives import Bool, Claims, Int

_Item = TypeVar("_Item", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Blocks with one owner for life (``block``, ``tenant``, ``sub``), and the claims on all others."""

    block: Int
    tenant: Int
    sub: npt.NDArray[np.object_]
    others: Claims


def whole_lives(blocks: Blocks, claims: Claims, generation: Int) -> Whole:
    """Split the claims.  ``generation``: that of each storage row in ``blocks.owner``."""
    claims = _in_time(claims)
    block = _block_of(claims.generation, generation, blocks.owner)
    cut = np.zeros(len(blocks), dtype=bool)
    cut[block[(block >= 0) & ~(claims.gained & claims.backdated)]] = True
    simple = (block >= 0) & ~_at(cut, block)
    rows = np.flatnonzero(simple)
    rows = rows[np.lexsort((rows, claims.tenant[rows], block[rows]))]
    owners = block[rows]
    best = rows[np.flatnonzero(np.diff(owners, prepend=-1))]
    owner, tenant, sub = block[best], claims.tenant[best], claims.sub[best]
    weaker = tenant > blocks.tenant[owner]
    tenant, sub = np.where(weaker, blocks.tenant[owner], tenant), np.where(weaker, blocks.sub[owner], sub)
    return Whole(block=owner, tenant=tenant, sub=sub, others=_only(claims, (block >= 0) & ~simple))


def _in_time(claims: Claims) -> Claims:
    return _only(claims, np.argsort(claims.time_ns, kind="stable").astype(np.int64))


def _only(claims: Claims, rows: Int | Bool) -> Claims:
    return replace(
        claims,
        generation=claims.generation[rows],
        time_ns=claims.time_ns[rows],
        tenant=claims.tenant[rows],
        sub=claims.sub[rows],
        gained=claims.gained[rows],
        backdated=claims.backdated[rows],
    )


def _block_of(claimed: Int, generation: Int, owner: Int) -> Int:
    """The block that each claim is on; -1 where no storage of that generation is known."""
    order = np.argsort(generation, kind="stable")
    row = np.searchsorted(generation[order], claimed, side="right") - 1
    storage = _at(order, row)
    known = (row >= 0) & (_at(generation, storage) == claimed)
    found: Int = np.where(known, _at(owner, storage), -1)
    return found


def _at(column: npt.NDArray[_Item], rows: Int) -> npt.NDArray[_Item]:
    """``column[rows]`` that tolerates -1 in an empty column; what stands there then is not used."""
    return column[rows] if len(column) else np.zeros(len(rows), dtype=column.dtype)
