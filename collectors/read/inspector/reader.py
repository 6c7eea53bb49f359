"""Read the files of NCCL's Inspector plugin (and RCCL's, which writes the same) into one table.

A line is one completed operation of one rank, with three objects: ``header`` (communicator, rank in it,
number of ranks and nodes), ``metadata`` (format version, time of the dump, host, process), and ``coll_perf``
or ``p2p_perf`` (kind, number, bytes, kernel time, bandwidths). From format version 4.3 on, header and
metadata are only in the line ``dump_stats`` before the operations of a communicator; it also counts lost
operations.

A collective is numbered per communicator *and kind*. Its bytes are those of one rank (sent for all-gather,
received for reduce-scatter). Lines are decoded one by one; a damaged line is counted and left out.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta, Struct

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, shorten
from zprof.collectors.read.kineto.reading.text import TraceText
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.run.files import open_plain
from zprof.run.schema import INSPECTOR
from zprof.run.table_reader import make_array, make_masked, make_texts

_HINT = "pass the folder that NCCL_INSPECTOR_DUMP_DIR names, with the files of all ranks (HOST-pidPID.log)"
#: A line with the event trace of 64 channels has 15 KB.
_MAX_LINE_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
#: A file that starts with so many unusable lines is not read further.
_MAX_BARREN_LINES = 100_000
_MAX_ROWS = 8_000_000
_MAX_COMMUNICATORS = 4_096
_MAX_NAMES = 65_536
#: Columns of names: a hostile file may have a new one in each line.
_NAMES = ("communicator", "name", "host", "operation", "algorithm", "timing")
_Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
_Micros = Annotated[float, Meta(ge=0, le=1e12)]
_Number = Annotated[int, Meta(ge=0, le=1 << 40)]
_Size = Annotated[int, Meta(ge=1, le=1 << 20)]
_Text = Annotated[str, Meta(max_length=256)]


class _Header(Struct):
    id: _Text
    rank: _Number
    n_ranks: _Size
    nnodes: _Number = 0
    comm_name: str | None = None


class _Metadata(Struct):
    dump_timestamp_us: _Count = 0
    hostname: _Text = ""
    pid: _Number = 0


class _KernelTimes(Struct):
    kernel_start_ts: _Count = 0


class _EventTimes(Struct):
    kernel_events: Annotated[list[_KernelTimes], Meta(max_length=1024)] = []


class _Collective(Struct):
    coll: _Text
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_exec_time_us: _Micros
    coll_timing_source: _Text = ""
    coll_busbw_gbs: float | str | None = None
    coll_algo: _Text = ""
    coll_proto: _Text = ""
    event_trace_ts: _EventTimes | None = None


class _Message(Struct):
    p2p: _Text
    p2p_sn: _Count
    p2p_msg_size_bytes: _Count
    p2p_exec_time_us: _Micros
    p2p_peer: _Number = 0
    p2p_timing_source: _Text = ""
    p2p_busbw_gbs: float | str | None = None
    event_trace_ts: _EventTimes | None = None


class _DumpStats(Struct):
    coll_dropped_total: _Count = 0
    p2p_dropped_total: _Count = 0


class _Line(Struct):
    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Collective | None = None
    p2p_perf: _Message | None = None
    dump_stats: _DumpStats | None = None


_DECODE = msgspec.json.Decoder(_Line).decode


def read_inspector(
    paths: Sequence[Path], on_bytes: Callable[[int], None], on_file: Callable[[], None]
) -> tuple[pa.Table, tuple[Gap, ...]]:
    """Return the table ``inspector`` of a run, and gaps.

    Args:
        paths: Files of one job.
        on_bytes: Called with the bytes of all files read so far.
        on_file: Called after each file.

    Raises:
        BadInput: No file has a usable line, or one cannot be read.
    """
    rows, done_bytes, refused = _Rows(_MAX_ROWS // len(paths)), 0, list[tuple[Path, str]]()
    for path in paths:
        before = len(rows)
        try:
            with open_plain(path) as file:
                rows.read_file(TraceText(file, partial(_report_bytes, on_bytes, done_bytes)))
            done_bytes += path.stat().st_size
        except OSError as error:
            raise BadInput(f"{path}: cannot be read ({error.strerror or error})", hint=_HINT) from None
        except BadInput as error:
            raise BadInput(f"{path}: {error.message}", hint=error.hint) from None
        if len(rows) == before:
            refused.append((path, rows.reason or "no completed operation in it"))
        on_file()
    if not len(rows):
        path, reason = refused[0]
        raise BadInput(f"{path}: no usable line of NCCL's Inspector ({printable(reason)})", hint=_HINT)
    gaps = [
        make_gap("file_refused_without_hint", file=path.name, reason=reason) for path, reason in refused[:3]
    ]
    if len(refused) > len(gaps):
        gaps.append(make_gap("files_refused", files=len(refused) - len(gaps)))
    return rows.to_table(), (*gaps, *rows.list_gaps())


def _report_bytes(on_bytes: Callable[[int], None], before: int, read: int) -> None:
    on_bytes(before + read)


class _Rows:
    """The rows read so far, as columns, and what was left out."""

    def __init__(self, max_rows_per_file: int) -> None:
        self._max_rows_per_file = max(1, max_rows_per_file)
        self._columns: dict[str, array[Any]] = {
            field.name: array("d" if field.type == pa.float64() else "q") for field in INSPECTOR
        }
        self._words: dict[str, dict[str, int]] = {name: {} for name in _NAMES}
        self._lost: dict[tuple[object, ...], int] = {}
        self.reason = self._first_reason = ""
        self.damaged = self.lines = self.unfinished = self.excess = self.full_files = 0

    def __len__(self) -> int:
        return len(self._columns["rank"])

    def read_file(self, text: TraceText) -> None:
        """Read the lines of a file; a line without header belongs to the last header of its file.

        Raises:
            BadInput: the text is far larger than its packed file.
            OSError: the file cannot be read.
        """
        first = len(self)
        context: tuple[_Header, _Metadata] | None = None
        barren, self.reason = 0, ""
        for content in _iter_lines(text):
            self.lines += 1
            try:
                line = _DECODE(content or b"")
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                reason = "a line is too long" if content is None else str(error) or type(error).__name__
                self.reason = self.reason or shorten(reason.splitlines()[0], 100)
                self.damaged, barren = self.damaged + 1, barren + 1
                if barren > _MAX_BARREN_LINES and len(self) == first:
                    return
                continue
            if line.header is not None:
                context = (line.header, line.metadata or _Metadata())
            if context is None or context[0].rank >= context[0].n_ranks:
                self.reason = self.reason or "no communicator, or a rank that it does not have"
                self.damaged += 1
                continue
            header, metadata = context
            if line.dump_stats is not None:
                place = (metadata.hostname, metadata.pid, header.id, header.rank)
                total = line.dump_stats.coll_dropped_total + line.dump_stats.p2p_dropped_total
                self._lost[place] = max(self._lost.get(place, 0), total)
            if line.coll_perf is not None or line.p2p_perf is not None:
                if len(self) - first >= self._max_rows_per_file:
                    self.full_files += 1
                    return
                self._add(header, metadata, line.coll_perf, line.p2p_perf)
        self.damaged += text.is_damaged
        self._first_reason = self._first_reason or self.reason

    def _add(
        self, header: _Header, metadata: _Metadata, collective: _Collective | None, message: _Message | None
    ) -> None:
        if collective is not None:
            operation, sequence, peer = collective.coll, collective.coll_sn, -1
            size, time_us = collective.coll_msg_size_bytes, collective.coll_exec_time_us
            timing, bandwidth = collective.coll_timing_source, collective.coll_busbw_gbs
            algorithm = "/".join(filter(None, (collective.coll_algo, collective.coll_proto)))
            events = collective.event_trace_ts
        else:
            assert message is not None
            operation, sequence, peer = message.p2p, message.p2p_sn, message.p2p_peer
            size, time_us = message.p2p_msg_size_bytes, message.p2p_exec_time_us
            timing, bandwidth, algorithm = message.p2p_timing_source, message.p2p_busbw_gbs, ""
            events = message.event_trace_ts
        communicators = self._words["communicator"]
        if time_us <= 0:
            self.unfinished += 1
            return
        if header.id not in communicators and len(communicators) >= _MAX_COMMUNICATORS:
            self.excess += 1
            return
        starts = [each.kernel_start_ts for each in events.kernel_events] if events else []
        add = self._columns
        for name, word in (
            ("communicator", header.id),
            ("name", (header.comm_name or "")[:256]),
            ("host", metadata.hostname),
            ("operation", operation),
            ("algorithm", algorithm),
            ("timing", timing),
        ):
            words = self._words[name]
            if len(words) >= _MAX_NAMES and word not in words:
                word = ""
            add[name].append(words.setdefault(word, len(words)))
        add["rank"].append(header.rank)
        add["ranks"].append(header.n_ranks)
        add["nodes"].append(header.nnodes)
        add["process"].append(metadata.pid)
        add["sequence"].append(sequence)
        add["peer"].append(peer)
        add["bytes"].append(size)
        add["duration_ns"].append(round(time_us * 1000))
        rate = bandwidth * 1e9 if isinstance(bandwidth, float) and bandwidth > 0 else float("nan")
        add["bus_bytes_per_s"].append(rate)
        add["dumped_ns"].append(metadata.dump_timestamp_us * 1000)
        add["start_ns"].append(min((start * 1000 for start in starts if start > 0), default=-1))

    def to_table(self) -> pa.Table:
        """Return the rows as Arrow; an unknown start, peer or bandwidth is null."""
        arrays = []
        for field in INSPECTOR:
            kind = pa.float64() if field.type == pa.float64() else pa.int64()
            values = np.frombuffer(self._columns[field.name], "f8" if kind == pa.float64() else "i8")
            if field.name in self._words:
                codes = make_array(values.astype(np.int32), pa.int32())
                words = make_texts(list(self._words[field.name]))
                arrays.append(pa.DictionaryArray.from_arrays(codes, words))
            else:
                unknown = np.isnan(values) if kind == pa.float64() else values < 0
                arrays.append(make_masked(values, kind, unknown))
        return pa.Table.from_arrays(arrays, schema=INSPECTOR)

    def list_gaps(self) -> Iterator[Gap]:
        """Yield what was left out."""
        if self.damaged:
            yield make_gap(
                "inspector_lines_damaged", count=self.damaged, lines=self.lines, reason=self._first_reason
            )
        if self.unfinished:
            yield make_gap("inspector_without_time", count=self.unfinished)
        if lost := sum(self._lost.values()):
            yield make_gap("inspector_operations_lost", count=lost, communicators=len(self._lost))
        if self.excess:
            yield make_gap("inspector_communicators_excess", count=self.excess, most=_MAX_COMMUNICATORS)
        if self.full_files:
            yield make_gap("inspector_files_cut", files=self.full_files, rows=self._max_rows_per_file)


def _iter_lines(text: TraceText) -> Iterator[bytes | None]:
    """Yield the lines with content; None for a line that is too long, of which nothing is kept."""
    buffer, rest, is_skipping = bytearray(_CHUNK_BYTES), b"", False
    with memoryview(buffer) as view:
        while size := text.readinto(view):
            lines = (rest + buffer[:size]).split(b"\n")
            rest = bytes(lines.pop())
            if is_skipping and lines:
                lines[0], is_skipping = b"", False
            for line in lines:
                if len(line) > _MAX_LINE_BYTES:
                    yield None
                elif line.strip():
                    yield bytes(line)
            if is_skipping:
                rest = b""
            elif len(rest) > _MAX_LINE_BYTES:
                yield None
                rest, is_skipping = b"", True
    if rest.strip():
        yield rest
