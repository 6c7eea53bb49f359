"""``zero.json``: what a checkpoint holds besides tensors, and what it must hold to be whole.

    {"format": "zero.checkpoint", "version": 1, "crc32": <of content>, "content": {
        "stage", "data_parallel", "model_parallel"   of the engine that saved
        "optimizer"    step count, loss scale, the groups' numbers; in "steps" the counts of parameters that
                       lacked a gradient in some steps: {name: count}
        "progress"     the caller's
        "parameters"   {name: {"shape", "trainable", "split", "group"}}
        "buffers"      {name: {"shape", "dtype"}}
        "files"        {name: {"bytes", "crc32"}}
    }}

Without "group" all trainable parameters are in the first, without "steps" all have one count.

It is written last: a folder without it is no checkpoint.  The checksums find damage, not malice.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MANIFEST = "zero.json"
FORMAT = "zero.checkpoint"
VERSION = 1
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content; see the module."""

    stage: int
    data_parallel: int
    model_parallel: int
    optimizer: Mapping[str, Any]
    progress: Mapping[str, int | float | str]
    parameters: Mapping[str, dict[str, Any]]
    buffers: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``zero.json``; whoever publishes the folder must flush it to disk."""
    content = asdict(manifest)
    head = {"format": FORMAT, "version": VERSION, "crc32": _crc32_of(content)}
    (folder / MANIFEST).write_text(json.dumps({**head, "content": content}, indent=1))


def read_manifest(folder: Path) -> Manifest:
    """Read ``zero.json``.

    Raises:
        ValueError: there is none, it is damaged, or this version cannot read it.
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
    return _content(whole)


def checksums(folder: Path, pattern: str) -> dict[str, dict[str, int]]:
    """Size and checksum of the files that match."""
    return {path.name: _checksum(path) for path in sorted(folder.glob(pattern))}


def check_file(folder: Path, name: str, expected: Mapping[str, int]) -> None:
    """Compare a file with what the manifest says of it.

    Raises:
        ValueError: it is missing or damaged.
    """
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise ValueError(f"its file {name} is missing")
    if path.stat().st_size != expected["bytes"]:
        raise ValueError(f"its file {name} has {path.stat().st_size} bytes, not {expected['bytes']}")
    if _checksum(path) != expected:
        raise ValueError(f"its file {name} is damaged: the checksum differs")


def _content(whole: Mapping[str, Any]) -> Manifest:
    if whole.get("crc32") != _crc32_of(whole.get("content")):
        raise ValueError(f"its {MANIFEST} is damaged: the checksum differs")
    try:
        manifest = Manifest(**whole["content"])
        for record in manifest.parameters.values():
            record.setdefault("group", 0 if record["trainable"] else None)
        return manifest
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its {MANIFEST} is damaged: {error}") from None


def _crc32_of(content: object) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _checksum(path: Path) -> dict[str, int]:
    value = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            value = zlib.crc32(block, value)
    return {"bytes": path.stat().st_size, "crc32": value}
