"""DCP's reader without its pickle's powers.

DCP keeps its index (``.metadata``) as a pickle, and unpickling may call anything that the pickle names.  Here
it may name the index's own record types and nothing else.
"""

import io
import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

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
    """DCP's index of a checkpoint.

    Raises:
        ValueError: it is damaged, names what is no part of an index, or points outside of ``files``.
    """
    content = (folder / METADATA).read_bytes()
    try:
        metadata = _MetadataUnpickler(io.BytesIO(content)).load()
        stored = {info.relative_path for info in metadata.storage_data.values()}
        assert isinstance(metadata, Metadata)
        assert isinstance(metadata.state_dict_metadata, dict)
    except Exception as error:  # whatever a broken pickle can raise
        raise ValueError(f"its index {METADATA} cannot be used: {error}") from None
    if not stored <= set(files):
        raise ValueError(
            f"its index {METADATA} points to {sorted(stored - set(files))[0]}, not one of its files"
        )
    return metadata


class IndexedReader(FileSystemReader):
    """Reads tensors by an index that was read and checked before; tensors are read as weights only."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *arguments: Any, **named: Any) -> Metadata:
        """The index that was given."""
        return self._metadata


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of an index")
        return super().find_class(module, name)
