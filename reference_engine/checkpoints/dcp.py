"""Adapt torch.distributed.checkpoint (DCP): planners for parts, a safe index reader, errors on all ranks.

DCP intersects the boxes of every part with the stored boxes and reads the overlaps.  So the same checkpoint
can be loaded with another number of ranks, another stage, or other units.

DCP's index (``.metadata``) is a pickle, and unpickling may run arbitrary code.  The reader here accepts only
the record types of the index.
"""

import io
import pickle
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
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

from zprof.reference_engine.checkpoints.saved_tensors import Box, TensorPart
from zprof.reference_engine.engine import ZeroModel

METADATA = ".metadata"

_DCP = "torch.distributed.checkpoint"
_ALLOWED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    (f"{_DCP}.filesystem", "_StorageInfo"),
    *(
        (f"{_DCP}.metadata", name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
}

T = TypeVar("T")


class PartsSavePlanner(DefaultSavePlanner):
    """Plans the writes of parts; DCP checks that all ranks' parts cover every tensor without overlaps."""

    def __init__(self, parts: Iterable[TensorPart]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._items: list[WriteItem] = []
        self._memory: dict[MetadataIndex, torch.Tensor] = {}
        for part in parts:
            for box, values in part.chunks():
                index = MetadataIndex(part.key, box.offsets)
                data = TensorWriteData(
                    chunk=_make_chunk(box),
                    properties=TensorProperties(dtype=values.dtype),
                    size=torch.Size(part.shape),
                )
                self._items.append(WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data))
                self._memory[index] = values

    def create_local_plan(self) -> SavePlan:
        """Return a plan with one item per box."""
        self.plan = SavePlan(self._items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        """Return the memory of a box."""
        return self._memory[index]


class PartsLoadPlanner(DefaultLoadPlanner):
    """Plans reads into the memory of parts; raises before the first read if elements are missing."""

    def __init__(self, parts: Iterable[TensorPart]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._parts = tuple(parts)
        self._memory: dict[MetadataIndex, torch.Tensor] = {}

    def create_local_plan(self) -> LoadPlan:
        """Return a plan with one item per overlap of a part's box with a stored box."""
        assert self.metadata is not None  # DCP has called set_up_planner
        return LoadPlan([item for part in self._parts for item in self._reads(part, self.metadata)])

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Return the memory of a box."""
        return self._memory[index]

    def _reads(self, part: TensorPart, metadata: Metadata) -> list[ReadItem]:
        stored = metadata.state_dict_metadata.get(part.key)
        if not isinstance(stored, TensorStorageMetadata):
            raise ValueError(f"it has no tensor {part.key}")
        if tuple(stored.size) != part.shape:
            raise ValueError(
                f"its {part.key} has shape {tuple(stored.size)}, but the model's has {part.shape}"
            )
        chunks = []
        for box, values in part.chunks():
            self._memory[MetadataIndex(part.key, box.offsets)] = values
            chunks.append(_make_chunk(box))
        items = create_read_items_for_chunk_list(part.key, stored, chunks)
        stored_elements = sum(item.lengths.numel() for item in items)
        if stored_elements != part.values.numel():
            raise ValueError(f"it has only {stored_elements} of {part.values.numel()} elements of {part.key}")
        return items


def _make_chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(box.offsets), sizes=torch.Size(box.sizes))


def read_metadata(folder: Path, files: Collection[str]) -> Metadata:
    """Read DCP's index of a checkpoint.

    Raises:
        ValueError: it is damaged, contains types that do not belong in an index, or refers to files that are
            not in ``files``.
    """
    content = (folder / METADATA).read_bytes()
    try:
        metadata = _MetadataUnpickler(io.BytesIO(content)).load()
        stored = {info.relative_path for info in metadata.storage_data.values()}
        assert isinstance(metadata, Metadata)
        assert isinstance(metadata.state_dict_metadata, dict)
    except Exception as error:  # a broken pickle can raise anything
        raise ValueError(f"its index {METADATA} cannot be used: {error}") from None
    if not stored <= set(files):
        raise ValueError(
            f"its index {METADATA} refers to {sorted(stored - set(files))[0]}, which is not one of its files"
        )
    return metadata


class IndexedReader(FileSystemReader):
    """Reads tensors with an index that was read and checked before; tensors are loaded as weights only."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *arguments: Any, **named: Any) -> Metadata:
        """Return the index passed to the constructor."""
        return self._metadata


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("builtins", "getattr"):
            return _get_enum_member
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it contains {module}.{name}, which does not belong in an index")
        return super().find_class(module, name)


def _get_enum_member(kind: object, name: str) -> Enum:
    """Replace getattr, which Python before 3.11.4 uses to unpickle a member of an enumeration."""
    if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
        return kind[name]
    raise pickle.UnpicklingError("it reads an attribute, which does not belong in an index")


class RankGroup:
    """All ranks of the mesh; ``message_prefix`` is the start of every error message."""

    def __init__(self, engine: ZeroModel, message_prefix: str) -> None:
        model_parallel = 1 if engine.mp is None else engine.mp.world_size
        self.size = engine.comm.world_size * model_parallel
        self.alone = self.size == 1
        # None is the default group, the only possible group of a two-dimensional mesh.
        self.group: dist.ProcessGroup | None = None
        if model_parallel == 1:
            self.group = getattr(engine.comm, "process_group", None)
        self.rank = 0 if self.alone else dist.get_rank(self.group)
        self._message_prefix = message_prefix
        if not self.alone and dist.get_world_size(self.group) != self.size:
            raise RuntimeError(
                f"{message_prefix}: the default process group does not have the mesh's {self.size} ranks"
            )

    def run_on_all(self, action: Callable[[], T]) -> T:
        """Run ``action`` on every rank; if it fails on one, all raise the same one-line error."""
        try:
            failure, result = None, action()
        except Exception as error:
            failure, result = self._make_failure(error, self.rank), None
        for first_failure in self._exchange(failure):
            if first_failure is not None:
                raise first_failure
        return result  # type: ignore[return-value]  # no rank failed

    def run_on_first(self, action: Callable[[], None]) -> None:
        """Run ``action`` on the first rank, and wait for it on all ranks."""
        self.run_on_all(action if self.rank == 0 else lambda: None)

    def collect(self, action: Callable[[], T]) -> list[T]:
        """Run ``action`` on every rank, and return all results."""
        return self._exchange(self.run_on_all(action))

    def call(self, action: Callable[[], Any]) -> None:
        """Run an action that communicates itself (DCP), and reduce its errors to one line."""
        try:
            action()
            return
        except CheckpointException as error:
            rank, (cause, _) = min(error.failures.items())
            failure = self._make_failure(cause, rank)
        except Exception as error:
            failure = self._make_failure(error, self.rank)
        # Raised outside of the handler: the frames of the caught error would keep the process group alive.
        raise failure

    def _exchange(self, value: T) -> list[T]:
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(values, value, group=self.group)
            return values
        except RuntimeError as error:
            failure = self._make_failure(error, self.rank)
        raise failure

    def _make_failure(self, error: BaseException, rank: int) -> Exception:
        """Return the error to raise on all ranks: one line, and nothing of ``error`` that cannot be sent."""
        text = str(error).strip().split("\n")[0] or type(error).__name__
        if not isinstance(error, ValueError | RuntimeError):
            text = f"{type(error).__name__}: {text}"
        suffix = "" if self.alone else f" (rank {rank})"
        line = f"{self._message_prefix}: {text}{suffix}"
        return ValueError(line) if isinstance(error, ValueError) else RuntimeError(line)
