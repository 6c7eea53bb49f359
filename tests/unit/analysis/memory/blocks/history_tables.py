"""Simulated histories as the tables of a run, and as the analysis reads them."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from tests.support.snapshots import Allocator, snapshot_of
from zprof.analysis.memory.history import History, read_history
from zprof.analysis.memory.stack_origins import Stacks
from zprof.analysis.memory.tenant_rules import BlockTenants, name_tenants
from zprof.collectors.snapshot.convert import convert_snapshot
from zprof.run.schema import TABLES


def frame_of(name: str, columns: dict[str, object]) -> pd.DataFrame:
    """A table as ``Run.frame`` gives it."""
    table = pa.table(columns, schema=TABLES[name])
    nullable = {field.name for field in table.schema if field.nullable and field.type == pa.int64()}
    frame = table.drop_columns(sorted(nullable)).to_pandas()
    for column in nullable:
        frame[column] = table.column(column).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame


def entry_times(allocator: Allocator) -> list[int]:
    """When each entry happened: nanoseconds that rise, though the clock counts microseconds."""
    times: list[int] = []
    for entry in allocator.entries:
        times.append(max(entry["time_us"] * 1000, times[-1] + 1 if times else 0))
    return times


def frames_of(*allocators: Allocator) -> dict[str, pd.DataFrame]:
    tables = convert_snapshot(snapshot_of(*allocators)).tables()
    return {name: frame_of(name, columns) for name, columns in tables.items()}


def history(allocator: Allocator) -> History:
    frames = frames_of(allocator)
    found = read_history(frames["block"], frames["segment"], f"cuda:{allocator.device}")
    assert found is not None
    return found


@dataclass(frozen=True)
class Told:
    """What the rules say of each block, by its address."""

    history: History
    names: BlockTenants

    def of(self, address: int) -> tuple[str, str]:
        """(tenant, sub) of the last block at an address."""
        return self.of_row(self.row(address))

    def of_size(self, size: int) -> tuple[str, str]:
        """(tenant, sub) of the first block of a size."""
        return self.of_row(int(np.flatnonzero(self.history.blocks.requested_bytes == size)[0]))

    def of_row(self, row: int) -> tuple[str, str]:
        return self.names.tenant_name(row), self.names.subs[int(self.names.sub[row])]

    def row(self, address: int) -> int:
        return int(np.flatnonzero(self.history.blocks.address == address)[-1])


def told(allocator: Allocator) -> Told:
    frames = frames_of(allocator)
    found = history(allocator)
    return Told(found, name_tenants(found.blocks, Stacks(frames["stack"]).origins(found.blocks.stack)))
