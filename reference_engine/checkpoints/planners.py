"""DCP's planners over parts: which chunks of which tensors this rank writes and reads.

DCP compares every part's boxes with the boxes that are stored, and reads what overlaps: that is how another
number of ranks, another stage and another split into units read the same checkpoint.
"""

from collections.abc import Iterable

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from zprof.reference_engine.checkpoints.boxes import Box
from zprof.reference_engine.checkpoints.parts import Part


class PartsSavePlanner(DefaultSavePlanner):
    """Writes parts.  DCP checks that the parts of all ranks fill every tensor and overlap nowhere."""

    def __init__(self, parts: Iterable[Part]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._items: list[WriteItem] = []
        self._memory: dict[MetadataIndex, torch.Tensor] = {}
        for part in parts:
            for box, values in part.chunks():
                self._add(part, box, values)

    def create_local_plan(self) -> SavePlan:
        """One item for each box."""
        self.plan = SavePlan(self._items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        """The memory of a box."""
        return self._memory[index]

    def _add(self, part: Part, box: Box, values: torch.Tensor) -> None:
        index = MetadataIndex(part.key, box.offsets)
        data = TensorWriteData(
            chunk=_chunk(box),
            properties=TensorProperties(dtype=values.dtype),
            size=torch.Size(part.shape),
        )
        self._items.append(WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data))
        self._memory[index] = values


class PartsLoadPlanner(DefaultLoadPlanner):
    """Reads into the memory of parts, and refuses before the first read if anything would be left unread."""

    def __init__(self, parts: Iterable[Part]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._parts = tuple(parts)
        self._memory: dict[MetadataIndex, torch.Tensor] = {}

    def create_local_plan(self) -> LoadPlan:
        """One item for each overlap of a part's box with a stored one."""
        assert self.metadata is not None  # DCP has called set_up_planner
        return LoadPlan([item for part in self._parts for item in self._reads(part, self.metadata)])

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """The memory of a box."""
        return self._memory[index]

    def _reads(self, part: Part, metadata: Metadata) -> list[ReadItem]:
        stored = check_stored(metadata, part.key, part.shape)
        chunks = []
        for box, values in part.chunks():
            self._memory[MetadataIndex(part.key, box.offsets)] = values
            chunks.append(_chunk(box))
        items = create_read_items_for_chunk_list(part.key, stored, chunks)
        found = sum(item.lengths.numel() for item in items)
        if found != part.values.numel():
            raise ValueError(f"of {part.values.numel()} elements of {part.key} it holds {found}")
        return items


def check_stored(metadata: Metadata, key: str, shape: tuple[int, ...]) -> TensorStorageMetadata:
    """The record of a tensor.

    Raises:
        ValueError: it is not there or has another shape.
    """
    stored = metadata.state_dict_metadata.get(key)
    if not isinstance(stored, TensorStorageMetadata):
        raise ValueError(f"it has no tensor {key}")
    if tuple(stored.size) != shape:
        raise ValueError(f"its {key} has shape {tuple(stored.size)}, the model's {shape}")
    return stored


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(box.offsets), sizes=torch.Size(box.sizes))
