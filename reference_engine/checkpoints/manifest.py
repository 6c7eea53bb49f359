"""Write and read a checkpoint's folder: manifest `zero.json`, checksums, atomic replacement of an older one.

The folder is written as `.NAME.saving`, flushed and renamed, so that a complete checkpoint is loadable at any
time.

    {"format": "zero.checkpoint", "version": 1, "crc32": <of content>, "content": {
        "stage", "data_parallel", "model_parallel"   of the saving engine
        "optimizer"    step count, loss scale, hyperparameters of the groups; "steps" has the counts of
                       parameters without a gradient in some steps: {name: count}
        "progress"     of the caller
        "parameters"   {name: {"shape", "trainable", "split", "group"}}
        "buffers"      {name: {"shape", "dtype"}}
        "files"        {name: {"bytes", "crc32"}}
    }}

Without "group", all trainable parameters are in the first group.  Without "steps", all have the same count.

`zero.json` is written last: a folder without it is not a checkpoint.  The checksums detect damage, not
manipulation.
"""

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zprof.reference_engine.checkpoints.saved_tensors import is_split, iter_persistent_buffers
from zprof.reference_engine.engine import ZeroModel

MANIFEST = "zero.json"
FORMAT = "zero.checkpoint"
VERSION = 1
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of ``zero.json``; see the module's docstring."""

    stage: int
    data_parallel: int
    model_parallel: int
    optimizer: Mapping[str, Any]
    progress: Mapping[str, int | float | str]
    parameters: Mapping[str, dict[str, Any]]
    buffers: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``zero.json``; :meth:`CheckpointFolder.publish` flushes it to disk."""
    content = asdict(manifest)
    head = {"format": FORMAT, "version": VERSION, "crc32": _compute_crc32(content)}
    (folder / MANIFEST).write_text(json.dumps({**head, "content": content}, indent=1))


def read_manifest(folder: Path) -> Manifest:
    """Read ``zero.json``.

    Raises:
        ValueError: it is missing or damaged, or this version cannot read it.
    """
    path = folder / MANIFEST
    if not path.is_file():
        reason = "the folder does not exist" if not folder.is_dir() else f"it has no {MANIFEST}"
        raise ValueError(f"it is not a checkpoint: {reason}")
    try:
        document = json.loads(path.read_bytes())
        format_name, version = document["format"], document["version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"its {MANIFEST} is damaged: {error!r}") from None
    if format_name != FORMAT or not isinstance(version, int):
        raise ValueError(f"it is not a checkpoint: the format in its {MANIFEST} is {format_name!r}")
    if version > VERSION:
        raise ValueError(
            f"it has format version {version}, but this engine reads only up to {VERSION}: use a newer engine"
        )
    if document.get("crc32") != _compute_crc32(document.get("content")):
        raise ValueError(f"its {MANIFEST} is damaged: the checksum differs")
    try:
        manifest = Manifest(**document["content"])
        for record in manifest.parameters.values():
            record.setdefault("group", 0 if record["trainable"] else None)
        return manifest
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its {MANIFEST} is damaged: {error}") from None


def compute_checksums(folder: Path, pattern: str) -> dict[str, dict[str, int]]:
    """Compute size and checksum of the files that match a glob pattern."""
    return {path.name: _compute_checksum(path) for path in sorted(folder.glob(pattern))}


def check_file(folder: Path, name: str, expected: Mapping[str, int]) -> None:
    """Check a file against its entry in the manifest.

    Raises:
        ValueError: the file is missing or damaged.
    """
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise ValueError(f"its file {name} is missing")
    if path.stat().st_size != expected["bytes"]:
        raise ValueError(f"its file {name} has {path.stat().st_size} bytes, not {expected['bytes']}")
    if _compute_checksum(path) != expected:
        raise ValueError(f"its file {name} is damaged: the checksum differs")


def _compute_crc32(content: object) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _compute_checksum(path: Path) -> dict[str, int]:
    value = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            value = zlib.crc32(block, value)
    return {"bytes": path.stat().st_size, "crc32": value}


class CheckpointFolder:
    """The folder of a checkpoint; only the first rank may call methods that change it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        self.draft = self.path.with_name(f".{self.path.name}.saving")
        self._replaced = self.path.with_name(f".{self.path.name}.replaced")

    def recover(self) -> None:
        """Restore a checkpoint whose replacement was interrupted."""
        if self._replaced.is_dir() and not self.path.exists():
            self._replaced.rename(self.path)

    def start_draft(self, *, overwrite: bool) -> None:
        """Create an empty draft.

        Raises:
            ValueError: the path exists and may not be replaced, or the folder is not writable.
        """
        self.recover()
        self.check(overwrite=overwrite)
        shutil.rmtree(self.draft, ignore_errors=True)
        self.draft.mkdir(parents=True)

    def check(self, *, overwrite: bool) -> None:
        """Check that a checkpoint can be written to this path, without changing anything.

        Raises:
            ValueError: the path exists and may not be replaced, or the folder is not writable.
        """
        if self.path.exists():
            if not overwrite:
                raise ValueError("it exists; choose another folder or pass overwrite=True")
            if not (self.path / MANIFEST).is_file():
                raise ValueError(
                    f"the existing path is not a checkpoint (it has no {MANIFEST}); remove it yourself"
                )
        nearest = next(parent for parent in self.path.parents if parent.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise ValueError(f"{nearest} is not writable; choose another folder")

    def publish(self) -> None:
        """Flush the draft to disk and rename it to its final path."""
        for file in self.draft.iterdir():
            _flush(file)
        _flush(self.draft)
        shutil.rmtree(self._replaced, ignore_errors=True)
        if self.path.exists():
            self.path.rename(self._replaced)
        self.draft.rename(self.path)
        _flush(self.path.parent)
        shutil.rmtree(self._replaced, ignore_errors=True)

    def abandon(self) -> None:
        """Remove an unfinished draft; an earlier checkpoint is kept."""
        shutil.rmtree(self.draft, ignore_errors=True)
        self.recover()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe_parameters(engine: ZeroModel) -> dict[str, dict[str, Any]]:
    """Return the entry of every parameter by name; with tensor parallelism the shape is that of this rank's
    slice.
    """
    return {
        slot.name: {
            "shape": list(slot.shape),
            "trainable": unit.trainable,
            "split": is_split(unit, slot.name),
            "group": unit.group if unit.trainable else None,
        }
        for unit in engine.units
        for slot in unit.layout.slots
    }


def describe_buffers(engine: ZeroModel) -> dict[str, dict[str, Any]]:
    """Return the entry of every persistent buffer by name."""
    return {
        name: {"shape": list(buffer.shape), "dtype": str(buffer.dtype).removeprefix("torch.")}
        for name, buffer in iter_persistent_buffers(engine.module)
    }


def check_matches_model(manifest: Manifest, engine: ZeroModel) -> None:
    """Check that a checkpoint matches the model that loads it.

    Raises:
        ValueError: it does not; the one-line message has the first difference.
    """
    model_parallel = 1 if engine.mp is None else engine.mp.world_size
    if manifest.model_parallel != model_parallel:
        raise ValueError(
            f"it was saved with a model-parallel degree of {manifest.model_parallel}, but this mesh has "
            f"{model_parallel}; the degree must be the same"
        )
    _compare_entries("parameter", manifest.parameters, describe_parameters(engine))
    _compare_entries("buffer", manifest.buffers, describe_buffers(engine))


def _compare_entries(
    kind: str, saved: Mapping[str, Mapping[str, Any]], model_entries: Mapping[str, Mapping[str, Any]]
) -> None:
    if missing := [name for name in model_entries if name not in saved]:
        raise ValueError(f"it does not have the model's {kind} {missing[0]}{_format_more(missing)}")
    if unexpected := [name for name in saved if name not in model_entries]:
        raise ValueError(
            f"it has a {kind} {unexpected[0]}, which the model does not have{_format_more(unexpected)}"
        )
    for name, record in model_entries.items():
        for key, value in record.items():
            if saved[name].get(key) != value:
                raise ValueError(
                    f"{kind} {name}: {key} is {saved[name].get(key)} in it and {value} in the model"
                )


def _format_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
