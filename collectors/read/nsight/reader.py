"""Read an Nsight export in a child process under limits, as one trace per rank."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from zprof.base.errors import BadInput
from zprof.collectors.read.file_sandbox import FileReader
from zprof.collectors.read.formats import FORMATS, FileKind
from zprof.collectors.read.kineto.trace import ABSENT, Arguments, TextColumn, Trace, TraceHeader
from zprof.collectors.read.nsight.child import ARGUMENTS, FACTS
from zprof.collectors.read.nsight.database import HINT
from zprof.collectors.read.nsight.ranks import NUMBERS
from zprof.process.sandbox import Limits
from zprof.run.table_reader import join_chunks, read_numbers

_MAX_FILE_BYTES = 8 << 30
_MAX_RANKS = 1024
#: Time to read a file: a part for every file, and a part for its size.
_CPU_S, _CPU_S_PER_GIB = 20, 300
#: Errors of a table that is not as the child writes it.
_INVALID = (OSError, ValueError, KeyError, TypeError, pa.ArrowException, msgspec.MsgspecError)


class _Facts(Struct, frozen=True, kw_only=True):
    rank: int | None = None
    world_size: int | None = None
    devices: tuple[str, ...] = ()
    host: str = ""
    has_nccl: bool = False


class NsightRank(Struct, frozen=True, kw_only=True):
    """A rank of an export; ``header.rank`` is None if no communicator tells its number.

    ``part``: the table of its events, which exists while the export is open.
    """

    path: Path
    part: Path
    header: TraceHeader

    def load(self, header: TraceHeader) -> Trace:
        """Return its trace, with this header.

        Raises:
            BadInput: What the reader of the export wrote is not valid.
        """
        return _load_trace(self, header)


@contextmanager
def read_nsight(path: Path) -> Iterator[list[NsightRank]]:
    """Yield the ranks of the export at ``path``, by process and device; valid until the context ends.

    Raises:
        BadInput: It is no export, is damaged or malicious, or exceeds the limits.
    """
    with _READER.read(path) as folder:
        ranks: list[NsightRank] = []
        while (part := folder / f"rank{len(ranks)}.arrow").exists() and len(ranks) < _MAX_RANKS:
            ranks.append(NsightRank(path=path, part=part, header=_read_header(path, part)))
        if not ranks:
            raise BadInput(f"{path}: its reader wrote no rank", hint=HINT)
        yield ranks


def _make_limits(size: int) -> Limits:
    """Return the limits for a file of this size in bytes."""
    cpu_s = _CPU_S + _CPU_S_PER_GIB * size // (1 << 30)
    return Limits(memory_bytes=12 << 30, cpu_s=cpu_s, wall_s=4.0 * cpu_s, output_bytes=8 << 30, open_files=64)


_READER = FileReader(
    module=FORMATS[FileKind.NSIGHT].sandbox,
    make_limits=_make_limits,
    max_bytes=_MAX_FILE_BYTES,
    too_large_hint="export fewer steps: nsys export --times start/end",
    hint=HINT,
)


def _read_header(path: Path, part: Path) -> TraceHeader:
    """Return what describes the rank whose events the child wrote."""
    try:
        with pa.memory_map(os.fspath(part)) as source:
            metadata = pa.ipc.open_file(source).schema.metadata or {}
            facts = msgspec.json.decode(metadata.get(FACTS, b""), type=_Facts)
    except _INVALID:
        raise BadInput(f"{path}: its reader wrote no valid events", hint=HINT) from None
    return TraceHeader(
        rank=facts.rank,
        world_size=facts.world_size,
        backend="nccl" if facts.has_nccl else "",
        devices=facts.devices,
        host=facts.host,
    )


def _load_trace(rank: NsightRank, header: TraceHeader) -> Trace:
    """Return the trace that the child wrote for a rank, checked."""
    try:
        with pa.memory_map(os.fspath(rank.part)) as source:
            table = pa.ipc.open_file(source).read_all()
            table.validate(full=True)
            numbers = {name: np.array(read_numbers(table.column(name)), dtype=np.int64) for name in NUMBERS}
            texts = {name: _read_texts(table.column(name)) for name in ("category", "name")}
            content = (table.schema.metadata or {}).get(ARGUMENTS, b"")
        arguments = _read_arguments(content, len(numbers["start_ns"]))
    except _INVALID:
        raise BadInput(f"{rank.path}: its reader wrote no valid events", hint=HINT) from None
    return Trace(
        start_ns=numbers["start_ns"],
        duration_ns=numbers["duration_ns"],
        category=texts["category"],
        name=texts["name"],
        process=numbers["process"],
        thread=numbers["thread"],
        stream=numbers["stream"],
        correlation=numbers["correlation"],
        external_id=np.full(len(numbers["start_ns"]), ABSENT, dtype=np.int64),
        bytes=numbers["bytes"],
        arguments=arguments,
        thread_names={},
        header=header,
    )


def _read_texts(column: pa.ChunkedArray) -> TextColumn:
    values = join_chunks(column)
    words = tuple(values.dictionary.to_pylist())
    if None in words or values.null_count:
        raise ValueError("a text is missing")
    return TextColumn(codes=read_numbers(values.indices).astype(np.int32), texts=words)


def _read_arguments(content: bytes, rows: int) -> Mapping[int, Arguments]:
    """Return the arguments by row; equal ones are one object."""
    known: dict[str, Arguments] = {}
    found = {}
    for row, values in msgspec.json.decode(content, type=list[tuple[int, dict[str, Any]]]):
        if 0 <= row < rows:
            key = json.dumps(values, sort_keys=True)
            found[row] = known.setdefault(key, msgspec.convert(values, Arguments))
    return found
