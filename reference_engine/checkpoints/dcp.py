"""Adapt torch.distributed.checkpoint (DCP): planners over parts, a safe index reader, errors on all ranks.

DCP compares every part's boxes with the stored boxes and reads the overlaps.  That is how another number of
ranks, another stage and another split into units read the same checkpoint.

DCP keeps its index (``.metadata``) as a pickle, and unpickling may call anything that the pickle names.  The
reader here accepts only the index's own record types.
"""

import io
import pickle
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
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

from zprof.reference_engine.checkpoints.parts import Box, CheckpointedModel, Part


class PartsSavePlanner(DefaultSavePlanner):
    """Write parts.  DCP checks that the parts of all ranks fill every tensor without overlaps."""

    def __init__(self, parts: Iterable[Part]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._items: list[WriteItem] = []
        self._memory: dict[MetadataIndex, torch.Tensor] = {}
        for part in parts:
            for box, values in part.chunks():
                self._add(part, box, values)

    def create_local_plan(self) -> SavePlan:
        """Return a plan with one item per box."""
        self.plan = SavePlan(self._items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        """Return the memory of a box."""
        return self._memory[index]

    def _add(self, part: Part, box: Box, values: torch.Tensor) -> None:
        index = MetadataIndex(part.key, box.offsets)
        data = TensorWriteData(
            chunk=_make_chunk(box),
            properties=TensorProperties(dtype=values.dtype),
            size=torch.Size(part.shape),
        )
        self._items.append(WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data))
        self._memory[index] = values


class PartsLoadPlanner(DefaultLoadPlanner):
    """Read into the memory of parts, and raise before the first read if anything would be left unread."""

    def __init__(self, parts: Iterable[Part]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._parts = tuple(parts)
        self._memory: dict[MetadataIndex, torch.Tensor] = {}

    def create_local_plan(self) -> LoadPlan:
        """Return a plan with one item per overlap of a part's box with a stored one."""
        assert self.metadata is not None  # DCP has called set_up_planner
        return LoadPlan([item for part in self._parts for item in self._reads(part, self.metadata)])

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Return the memory of a box."""
        return self._memory[index]

    def _reads(self, part: Part, metadata: Metadata) -> list[ReadItem]:
        stored = get_stored_record(metadata, part.key, part.shape)
        chunks = []
        for box, values in part.chunks():
            self._memory[MetadataIndex(part.key, box.offsets)] = values
            chunks.append(_make_chunk(box))
        items = create_read_items_for_chunk_list(part.key, stored, chunks)
        found = sum(item.lengths.numel() for item in items)
        if found != part.values.numel():
            raise ValueError(f"of {part.values.numel()} elements of {part.key} it holds {found}")
        return items


def get_stored_record(metadata: Metadata, key: str, shape: tuple[int, ...]) -> TensorStorageMetadata:
    """Return the record of a tensor.

    Raises:
        ValueError: the tensor is missing or has another shape.
    """
    stored = metadata.state_dict_metadata.get(key)
    if not isinstance(stored, TensorStorageMetadata):
        raise ValueError(f"it has no tensor {key}")
    if tuple(stored.size) != shape:
        raise ValueError(f"its {key} has shape {tuple(stored.size)}, the model's {shape}")
    return stored


def _make_chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(box.offsets), sizes=torch.Size(box.sizes))


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


def read_metadata(folder: Path, files: Collection[str]) -> Metadata:
    """Return DCP's index of a checkpoint.

    Raises:
        ValueError: it is damaged, names types that are not part of an index, or points outside of ``files``.
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
            f"its index {METADATA} points to {sorted(stored - set(files))[0]}, not one of its files"
        )
    return metadata


class IndexedReader(FileSystemReader):
    """Read tensors by an index that has already been read and checked; tensors are read as weights only."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *arguments: Any, **named: Any) -> Metadata:
        """Return the given index."""
        return self._metadata


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("builtins", "getattr"):
            return _get_enum_member
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of an index")
        return super().find_class(module, name)


def _get_enum_member(kind: object, name: str) -> Enum:
    """Stand in for getattr, by which Python before 3.11.4 pickles a member of an enumeration."""
    if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
        return kind[name]
    raise pickle.UnpicklingError("it asks for an attribute, which is no part of an index")


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    line: str
    is_value_error: bool


class RankGroup:
    """All ranks of the mesh.  ``what`` is the start of every error message."""

    def __init__(self, engine: CheckpointedModel, what: str) -> None:
        model_parallel = 1 if engine.mp is None else engine.mp.world_size
        self.size = engine.comm.world_size * model_parallel
        self.alone = self.size == 1
        # None is the default group, the only possible group of a two-dimensional mesh.
        self.group: dist.ProcessGroup | None = None
        if model_parallel == 1:
            self.group = getattr(engine.comm, "process_group", None)
        self.rank = 0 if self.alone else dist.get_rank(self.group)
        self._what = what
        if not self.alone and dist.get_world_size(self.group) != self.size:
            raise RuntimeError(f"{what}: the default process group is not the mesh of {self.size} ranks")

    def together(self, action: Callable[[], T]) -> T:
        """Run ``action`` on every rank; if one fails, all raise the same one-line error."""
        mine, result = self._try(action)
        self._raise_first(self._exchange(mine))
        return result  # type: ignore[return-value]  # no rank failed, this one neither

    def run_on_first(self, action: Callable[[], None]) -> None:
        """Run ``action`` on the first rank, and continue everywhere when it is done."""
        self.together(action if self.rank == 0 else lambda: None)

    def collect(self, action: Callable[[], T]) -> list[T]:
        """Run ``action`` on every rank, and return the results of all ranks."""
        return self._exchange(self.together(action))

    def call(self, action: Callable[[], Any]) -> None:
        """Call something that communicates by itself (DCP), with its errors reduced to one line."""
        try:
            action()
            return
        except CheckpointException as error:
            rank, (cause, _) = min(error.failures.items())
            failure = self._failure(cause, rank)
        except Exception as error:
            failure = self._failure(error, self.rank)
        # Outside of the handler: the frames of the error keep the process group, which must be released.
        raise _make_exception(failure)

    def _try(self, action: Callable[[], T]) -> tuple[_Failure | None, T | None]:
        try:
            return None, action()
        except Exception as error:
            return self._failure(error, self.rank), None

    def _exchange(self, mine: T) -> list[T]:
        if self.alone:
            return [mine]
        everyone: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(everyone, mine, group=self.group)
            return everyone
        except RuntimeError as error:
            failure = self._failure(error, self.rank)
        raise _make_exception(failure)

    def _failure(self, error: BaseException, rank: int) -> _Failure:
        text = str(error).strip().split("\n")[0] or type(error).__name__
        if not isinstance(error, ValueError | RuntimeError):
            text = f"{type(error).__name__}: {text}"
        where = "" if self.alone else f" (rank {rank})"
        return _Failure(line=f"{self._what}: {text}{where}", is_value_error=isinstance(error, ValueError))

    def _raise_first(self, failures: list[_Failure | None]) -> None:
        for failure in failures:
            if failure is not None:
                raise _make_exception(failure)


def _make_exception(failure: _Failure) -> Exception:
    return ValueError(failure.line) if failure.is_value_error else RuntimeError(failure.line)
