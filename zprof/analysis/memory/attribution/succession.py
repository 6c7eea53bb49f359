"""Follow parameters that an optimizer replaces instead of changing them in place.

``p.data = p.data - update`` allocates a new block and frees the old one. The new block is the last one of
that size that the optimizer made, and keeps, before the old one was freed. If several lines make blocks of
that size, the line that made most of these is taken.
"""

from collections import Counter

import numpy as np

from zprof.analysis.memory.attribution.block_tenants import Attribution, Ledger
from zprof.analysis.memory.attribution.census import Census
from zprof.analysis.memory.attribution.features import Features
from zprof.analysis.memory.attribution.passes import OPTIMIZER
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import FOREVER, Int
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant


def follow_parameters(blocks: HeldBlocks, features: Features, ledger: Ledger, census: Census) -> None:
    """Attribute the successors of the parameters, from the census on."""
    passes = features.passes
    parameters = census.parameters
    for index in np.flatnonzero(passes.kind == OPTIMIZER).tolist():
        if index < census.moment.pass_index:
            continue
        begin_ns = int(passes.first_ns[index])
        end_ns = int(passes.first_ns[index + 1]) if index + 1 < len(passes) else FOREVER
        freed = blocks.freed_ns[parameters]
        dead = parameters[(freed >= begin_ns) & (freed < end_ns)]
        made = np.flatnonzero((features.made_in == OPTIMIZER) & (features.under_way == index))
        kept = made[blocks.freed_ns[made] >= end_ns].astype(np.int64)
        if not len(dead) or not len(kept):
            continue
        successors = _choose_successors(blocks, dead, kept)
        ledger.limit(kept, Confidence.MEDIUM)
        ledger.assign(
            successors,
            Attribution(
                tenant=Tenant.PARAMETERS,
                sub="weight",
                basis=Basis.RULE,
                confidence=Confidence.MEDIUM,
                reason="replaces_parameter",
            ),
        )
        parameters = np.concatenate([np.setdiff1d(parameters, dead), successors])


def _choose_successors(blocks: HeldBlocks, dead: Int, kept: Int) -> Int:
    """Return as many of the kept blocks of each size as parameters of that size died."""
    votes: Counter[int] = Counter()
    chosen: list[Int] = []
    by_size = {size: kept[blocks.requested_bytes[kept] == size] for size in _list_sizes(blocks, dead)}
    for row in dead.tolist():
        candidates = by_size[int(blocks.requested_bytes[row])]
        born = candidates[blocks.begin_ns[candidates] <= blocks.freed_ns[row]]
        if len(born):
            votes[int(blocks.stack[born[-1]])] += 1
    for size, candidates in by_size.items():
        needed = int((blocks.requested_bytes[dead] == size).sum())
        rank = np.array([-votes[stack] for stack in blocks.stack[candidates].tolist()], dtype=np.int64)
        chosen.append(candidates[np.lexsort((-blocks.begin_ns[candidates], rank))][:needed])
    return np.concatenate(chosen)


def _list_sizes(blocks: HeldBlocks, rows: Int) -> list[int]:
    sizes: list[int] = np.unique(blocks.requested_bytes[rows]).tolist()
    return sizes
