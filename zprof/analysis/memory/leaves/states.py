"""The model states of one rank when they are complete, and what helps to explain them against the law."""

import numpy as np

from zprof.analysis.law_checks import MeasuredStates
from zprof.analysis.memory.rank.lives import Int
from zprof.analysis.memory.rank.rank_lives import RankLives
from zprof.model.tenants import Tenant

#: A tensor of one number has at most this many bytes.
_ONE_NUMBER_BYTES = 8


def measured_states(rank: int, lives: RankLives) -> tuple[MeasuredStates, ...]:
    """One entry; none where no step ended."""
    moments, sizes = lives.state_moments(), lives.states()
    if sizes is None:
        return ()
    tensor_bytes = _tensor_bytes(lives)
    rows = {tenant: lives.state_rows(tenant, moment) for tenant, moment in moments.items()}
    buffers = lives.state_rows(Tenant.PARAMETERS, moments[Tenant.PARAMETERS], buffers=True)
    return (
        MeasuredStates(
            rank=rank,
            bytes=sizes,
            counter_bytes=_counters(lives, rows[Tenant.OPTIMIZER_STATE], tensor_bytes),
            buffer_bytes=int(lives.segments.bytes[buffers].sum()),
            rounding_bytes={tenant: _rounding(lives, mine, tensor_bytes) for tenant, mine in rows.items()},
        ),
    )


def _tensor_bytes(lives: RankLives) -> Int:
    """Bytes of the largest tensor storage in each block; 0 where none was seen."""
    held = np.zeros(len(lives.blocks), dtype=np.int64)
    np.maximum.at(held, lives.blocks.owner, lives.storages.bytes)
    return held


def _counters(lives: RankLives, rows: Int, tensor_bytes: Int) -> int:
    size = tensor_bytes[lives.segments.block[rows]]
    return int(size[size <= _ONE_NUMBER_BYTES].sum())


def _rounding(lives: RankLives, rows: Int, tensor_bytes: Int) -> int:
    """What the allocator's blocks are larger than their tensors: a GPU's step counter takes 512 bytes."""
    size, block = tensor_bytes[lives.segments.block[rows]], lives.segments.bytes[rows]
    return int((block - size)[(size > 0) & (size < block)].sum())
