"""Write and read a checkpoint's folder: manifest `zero.json`, checksums, atomic replacement of an older one.

The folder is written as `.NAME.saving`, flushed and renamed, so that a complete checkpoint can be loaded at
any time.

    {"format": "zero.checkpoint", "version": 1, "crc32": <of content>, "content": {
        "stage", "data_parallel", "model_parallel"   of the engine that saved
        "optimizer"    step count, loss scale, the groups' numbers; in "steps" the counts of parameters that
                       lacked a gradient in some steps: {name: count}
        "progress"     the caller's
        "parameters"   {name: {"shape", "trainable", "split", "group"}}
        "buffers"      {name: {"shape", "dtype"}}
        "files"        {name: {"bytes", "crc32"}}
    }}

Without "group", all trainable parameters are in the first group.  Without "steps", all have one count.

`zero.json` is written last: a folder without it is no checkpoint.  The checksums detect damage, not
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

from zprof.reference_engine.checkpoints.parts import CheckpointedModel, is_split, iter_persistent_buffers

MANIFEST = "zero.json"
FORMAT = "zero.checkpoint"
VERSION = 1
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of ``zero.json``; see the module."""

    stage: int
    data_parallel: int
    model_parallel: int
    optimizer: Mapping[str, Any]
    progress: Mapping[str, int | float | str]
    parameters: Mapping[str, dict[str, Any]]
    buffers: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``zero.json``; the code that publishes the folder must flush it to disk."""
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
        there = "there is no such folder" if not folder.is_dir() else f"it has no {MANIFEST}"
        raise ValueError(f"it is not a checkpoint: {there}")
    try:
        whole = json.loads(path.read_bytes())
        found, version = whole["format"], whole["version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"its {MANIFEST} is damaged: {error!r}") from None
    if found != FORMAT or not isinstance(version, int):
        raise ValueError(f"it is not a checkpoint: the format in its {MANIFEST} is {found!r}")
    if version > VERSION:
        raise ValueError(
            f"it has format version {version}; this engine reads up to {VERSION}: use a newer one"
        )
    return _parse_content(whole)


def compute_checksums(folder: Path, pattern: str) -> dict[str, dict[str, int]]:
    """Return size and checksum of the files that match."""
    return {path.name: _compute_checksum(path) for path in sorted(folder.glob(pattern))}


def check_file(folder: Path, name: str, expected: Mapping[str, int]) -> None:
    """Compare a file with its entry in the manifest.

    Raises:
        ValueError: it is missing or damaged.
    """
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise ValueError(f"its file {name} is missing")
    if path.stat().st_size != expected["bytes"]:
        raise ValueError(f"its file {name} has {path.stat().st_size} bytes, not {expected['bytes']}")
    if _compute_checksum(path) != expected:
        raise ValueError(f"its file {name} is damaged: the checksum differs")


def _parse_content(whole: Mapping[str, Any]) -> Manifest:
    if whole.get("crc32") != _compute_crc32(whole.get("content")):
        raise ValueError(f"its {MANIFEST} is damaged: the checksum differs")
    try:
        manifest = Manifest(**whole["content"])
        for record in manifest.parameters.values():
            record.setdefault("group", 0 if record["trainable"] else None)
        return manifest
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its {MANIFEST} is damaged: {error}") from None


def _compute_crc32(content: object) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _compute_checksum(path: Path) -> dict[str, int]:
    value = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            value = zlib.crc32(block, value)
    return {"bytes": path.stat().st_size, "crc32": value}


class CheckpointFolder:
    """The folder of one checkpoint.  Only the first rank may call methods that change anything."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        self.draft = self.path.with_name(f".{self.path.name}.saving")
        self._replaced = self.path.with_name(f".{self.path.name}.replaced")

    def recover(self) -> None:
        """Restore a checkpoint whose replacement was interrupted."""
        if self._replaced.is_dir() and not self.path.exists():
            self._replaced.rename(self.path)

    def begin(self, *, overwrite: bool) -> None:
        """Create an empty draft.

        Raises:
            ValueError: something exists there that may not be replaced, or the folder is not writable.
        """
        self.recover()
        self.check(overwrite=overwrite)
        shutil.rmtree(self.draft, ignore_errors=True)
        self.draft.mkdir(parents=True)

    def check(self, *, overwrite: bool) -> None:
        """Check that a checkpoint can be written here; changes nothing.

        Raises:
            ValueError: something exists there that may not be replaced, or the folder is not writable.
        """
        if self.path.exists():
            if not overwrite:
                raise ValueError("it exists; choose another folder or pass overwrite=True")
            if not (self.path / MANIFEST).is_file():
                raise ValueError(
                    f"what is there is not a checkpoint (it has no {MANIFEST}); remove it yourself"
                )
        nearest = next(parent for parent in self.path.parents if parent.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise ValueError(f"nothing can be written in {nearest}; choose another folder")

    def publish(self) -> None:
        """Flush the draft to disk and move it into place."""
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
        """Remove an unfinished draft; an earlier checkpoint stays in place."""
        shutil.rmtree(self.draft, ignore_errors=True)
        self.recover()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe_parameters(engine: CheckpointedModel) -> dict[str, dict[str, Any]]:
    """Return every logical parameter; with tensor parallelism the shape is that of a slice."""
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


def describe_buffers(engine: CheckpointedModel) -> dict[str, dict[str, Any]]:
    """Return every persistent buffer."""
    return {
        name: {"shape": list(buffer.shape), "dtype": str(buffer.dtype).removeprefix("torch.")}
        for name, buffer in iter_persistent_buffers(engine.module)
    }


def check_matches_model(manifest: Manifest, engine: CheckpointedModel) -> None:
    """Compare a checkpoint with the model that loads it.

    Raises:
        ValueError: the one-line message names the first difference.
    """
    model_parallel = 1 if engine.mp is None else engine.mp.world_size
    if manifest.model_parallel != model_parallel:
        raise ValueError(
            f"it was saved with a model-parallel degree of {manifest.model_parallel}, and this mesh has "
            f"{model_parallel}; another degree cannot be loaded"
        )
    _compare_entries("parameter", manifest.parameters, describe_parameters(engine))
    _compare_entries("buffer", manifest.buffers, describe_buffers(engine))


def _compare_entries(
    kind: str, saved: Mapping[str, Mapping[str, Any]], here: Mapping[str, Mapping[str, Any]]
) -> None:
    if missing := [name for name in here if name not in saved]:
        raise ValueError(f"it lacks the model's {kind} {missing[0]}{_format_more(missing)}")
    if unexpected := [name for name in saved if name not in here]:
        raise ValueError(
            f"it has a {kind} {unexpected[0]}, which the model has not{_format_more(unexpected)}"
        )
    for name, record in here.items():
        for key, value in record.items():
            if saved[name].get(key) != value:
                raise ValueError(
                    f"{kind} {name}: {key} is {saved[name].get(key)} there and {value} in the model"
                )


def _format_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
