"""Follow parameters that an optimizer replaces instead of changing them in place.

``p.data = p.data - update`` allocates a new block and frees the old one. The new block is the youngest of
that size that is live when the old one is freed; if the optimizer replaces that one too, it goes on from
there. If several lines make blocks of that size, the line that made most of the last ones is taken.
"""

from collections import Counter

import numpy as np

from zprof.analysis.memory.attribution.block_tenants import Attribution, TenantLedger
from zprof.analysis.memory.attribution.census import Census, count_sizes, group_by_size
from zprof.analysis.memory.attribution.features import Features
from zprof.analysis.memory.attribution.passes import OPTIMIZER
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import FOREVER, Bool, Int
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant

#: More lines than an optimizer has that replace one parameter.
_MAX_REPLACEMENTS = 8
#: Replacements of a step that are followed one by one: they vote for a line of code.
_MAX_FOLLOWED = 2000
#: Steps that are followed; a history has rarely more than a hundred.
_MAX_STEPS = 2000


def follow_parameters(blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census) -> None:
    """Attribute the successors of the parameters, from the census on."""
    passes = features.passes
    parameters = census.parameters
    made_rows = np.flatnonzero(features.made_in == OPTIMIZER)
    optimizers = np.flatnonzero(passes.kind == OPTIMIZER)
    for index in optimizers[optimizers >= census.moment.pass_index][:_MAX_STEPS].tolist():
        begin_ns = int(passes.first_ns[index])
        end_ns = int(passes.first_ns[index + 1]) if index + 1 < len(passes) else FOREVER
        freed = blocks.freed_ns[parameters]
        dead = parameters[(freed >= begin_ns) & (freed < end_ns)]
        if not len(dead):
            continue
        first, last = np.searchsorted(features.under_way[made_rows], [index, index + 1])
        made = made_rows[first:last]
        kept = made[blocks.freed_ns[made] >= end_ns]
        if not len(kept):
            continue
        successors = _choose_successors(blocks, dead, made, kept)
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


def _choose_successors(blocks: HeldBlocks, dead: Int, made: Int, kept: Int) -> Int:
    """Return as many of the kept blocks of each size as parameters of that size died."""
    votes: Counter[int] = Counter()
    chosen: list[Int] = []
    is_kept = np.zeros(len(blocks), dtype=bool)
    is_kept[kept] = True
    wanted = count_sizes(blocks, dead)
    made_by_size = {size: rows for size, rows in group_by_size(blocks, made).items() if wanted[size]}
    followed = dead[np.isin(blocks.requested_bytes[dead], list(made_by_size) or [-1])]
    for row in followed[:_MAX_FOLLOWED].tolist():
        last = _follow(blocks, row, made_by_size[int(blocks.requested_bytes[row])], is_kept)
        if last >= 0:
            votes[int(blocks.stack[last])] += 1
    for size, candidates in made_by_size.items():
        rows = candidates[is_kept[candidates]]
        rank = np.array([-votes[stack] for stack in blocks.stack[rows].tolist()], dtype=np.int64)
        chosen.append(rows[np.lexsort((-blocks.begin_ns[rows], rank))][: wanted[size]])
    return np.concatenate(chosen) if chosen else dead[:0]


def _follow(blocks: HeldBlocks, row: int, made: Int, is_kept: Bool) -> int:
    """Return the kept block at the end of a chain of replacements; -1 if it breaks."""
    for _ in range(_MAX_REPLACEMENTS):
        freed_ns = blocks.freed_ns[row]
        live = made[(blocks.begin_ns[made] <= freed_ns) & (blocks.freed_ns[made] > freed_ns)]
        if not len(live):
            return -1
        row = int(live[np.argmax(blocks.begin_ns[live])])
        if is_kept[row]:
            return row
    return -1
