"""All file formats: how a file is recognized, what reads it, and in which sandbox.

Files are recognized by their first bytes; file names are not trusted. ``FORMATS`` lists the formats that are
read, ``FOREIGN_FORMATS`` those that are refused with a hint on what to pass instead.
"""

import re
import zlib
from enum import StrEnum
from typing import BinaryIO

from msgspec import Struct

_HEAD_BYTES = 64 << 10
#: A zstd block holds up to 128 KiB and cannot be decoded before its end.
_ZSTD_HEAD_BYTES = 256 << 10
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
#: Keys at the top level of a trace or in its first event.
_TRACE_KEY = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|traceName|displayTimeUnit'
    rb"|baseTimeNanoseconds|record_shapes|profile_memory|with_(?:stack|flops|modules)|trace_id|ph"
    rb'|(?:cupti|roctracer|hip_runtime|cuda_runtime)_version)"\s*:'
)
#: Keys of a flight-recorder dump; in JSON the entries come first, and their first key is
#: ``collective_seq_id``.
_DUMP_KEY = re.compile(rb'"(?:pg_config|pg_status|collective_seq_id)"\s*:')
#: The first of these keys distinguishes dumps from snapshots. In a snapshot a list follows the key, after an
#: optional memoize opcode. A pickle with neither is rejected without starting a reader process.
_PICKLE_KEY = re.compile(
    rb"(pg_config|pg_status|collective_seq_id)|(?:segments|device_traces)(?:\x94|q.|r.{4})?[\](]", re.DOTALL
)
#: Keys of the times of one pipeline stage, as Primus dumps them.
_STAGE_KEY = re.compile(rb'"(?:fwd|bwd)_start"\s*:')
#: A line of NCCL's Inspector: header, metadata, and an operation or the counts of a dump.
_INSPECTOR_LINE = re.compile(
    rb'(?m)^[ \t]{0,8}\{[ \t]{0,8}"header"[ \t]{0,8}:[ \t]{0,8}\{'
    rb'[^\n]{0,8192}"(?:coll_perf|p2p_perf|dump_stats|proxy_trace)"[ \t]{0,8}:'
)
_SQLITE = b"SQLite format 3\x00"
_NSIGHT_TABLE = re.compile(rb"CREATE TABLE \W?(?:CUPTI_ACTIVITY_KIND_KERNEL|NVTX_EVENTS|META_DATA_EXPORT)\b")
_MAX_SCHEMA_BYTES = 4 << 20
_PARQUET = b"PAR1"
#: Names of the columns that only an operation timeline has, in the footer of a Parquet file.
_OPERATION_COLUMNS = (b"dp_rank", b"stage", b"optype", b"start_ts", b"duration", b"seq_id")
_MAX_FOOTER_BYTES = 1 << 20
#: The start of what ncclras writes, and its section about communicators.
_RAS = re.compile(
    rb'"nccl_version"\s*:\s*"[^"\n]{1,40}",?\s{1,99}"cuda_runtime_version"|'
    rb"NCCL version \S{1,40} compiled with CUDA \S{1,40}\s+(?:\S{1,200}\s){0,9}?CUDA runtime version \d|"
    rb"Communicators\.{3} ?\(\d|#\d{1,7}-\d{1,7} \([0-9a-f]{16}\) (?:INCOMPLETE|ERROR|MISMATCH)"
)
#: A log that would look like JSON ("[rank0]:", "[E ProcessGroupNCCL.cpp:474]"), or has such a line.
_LOG_LINE = re.compile(
    rb"\A\s*\[(?:rank\d+\]:|[A-Za-z]\w* ?\d*\]|[EWIF]\d* \S)|ProcessGroupNCCL\.cpp:\d|"
    rb"\] Watchdog caught collective operation timeout: WorkNCCL\("
)


class FileKind(StrEnum):
    """Kinds of files, by their first bytes. ``JSON`` may be a trace that they do not reveal."""

    SNAPSHOT = "snapshot"
    GZIP_SNAPSHOT = "gzip snapshot"
    TRACE = "trace"
    DUMP = "flight-recorder dump"
    LOG = "log"
    RAS = "answer of NCCL's RAS"
    OPERATIONS = "operation timeline"
    STAGE_TIMES = "times of a pipeline stage"
    NSIGHT = "Nsight export"
    INSPECTOR = "NCCL Inspector file"
    JSON = "json"
    PICKLE = "other pickle"
    TORCH_ARCHIVE = "torch archive"
    OTHER = "other"


class SourceKind(StrEnum):
    """What files of a kind become. The files of one source make one run; an import takes only one source."""

    TRACE = "trace"
    SNAPSHOT = "snapshot"
    DUMP = "hang dump or log"
    OPERATIONS = "operation timeline"
    NSIGHT = "Nsight export"
    INSPECTOR = "NCCL Inspector file"


class Answer(StrEnum):
    """Questions that a file answers; the values are the heads of the matrix in the documentation."""

    TIME = "step time"
    COLLECTIVES = "collectives"
    MEMORY = "memory"
    HANG = "hangs"


class Format(Struct, frozen=True, kw_only=True):
    """A format that zprof reads. The matrix in README.md and docs/support.md is made from these.

    Attributes:
        title: What users call the files; empty if another format has the same title and says the rest.
        answers: What they tell.
        tested: On what reading them was tested.
        page: Page of the documentation, relative to docs/; empty if there is none.
        source: What its files become.
        reader: ``module:function`` that writes a run of its files.
        sandbox: Module of the child process that parses it under limits. Empty: zprof's own reader, which
            executes nothing and takes memory in proportion to the file.
    """

    title: str
    source: SourceKind
    reader: str
    answers: tuple[Answer, ...] = ()
    tested: str = ""
    page: str = ""
    sandbox: str = ""


_IMPORTS = "zprof.collectors.read.imports"
_TRACES, _SNAPSHOTS = f"{_IMPORTS}.traces:write_traces", f"{_IMPORTS}.snapshots:write_snapshots"
_DUMPS = f"{_IMPORTS}.flight_dumps:write_dumps"
_OPERATIONS = f"{_IMPORTS}.operations:write_operations"
_SNAPSHOT_CHILD = "zprof.collectors.read.snapshot.child"
_DUMP_CHILD = "zprof.collectors.read.flight_recorder.child"

#: Formats that are read. ``LOG`` also needs a line about a stuck collective; its text may have no known form.
FORMATS: dict[FileKind, Format] = {
    FileKind.TRACE: Format(
        title="Kineto traces (torch.profiler), `.json`, `.gz`, `.zst`",
        answers=(Answer.TIME, Answer.COLLECTIVES),
        tested="NVIDIA, 2020 to 2026, and AMD: public files of one or two ranks, and simulated ones",
        page="traces.md",
        source=SourceKind.TRACE,
        reader=_TRACES,
    ),
    FileKind.SNAPSHOT: Format(
        title="CUDA memory snapshots, pickle",
        answers=(Answer.MEMORY,),
        tested="public files",
        page="memory.md",
        source=SourceKind.SNAPSHOT,
        reader=_SNAPSHOTS,
        sandbox=_SNAPSHOT_CHILD,
    ),
    FileKind.GZIP_SNAPSHOT: Format(
        title="", source=SourceKind.SNAPSHOT, reader=_SNAPSHOTS, sandbox=_SNAPSHOT_CHILD
    ),
    FileKind.NSIGHT: Format(
        title="Nsight Systems exports (`nsys export --type sqlite`)",
        answers=(Answer.TIME, Answer.COLLECTIVES),
        tested="one public file of two ranks, and simulated ones",
        page="traces.md#nsight-systems",
        source=SourceKind.NSIGHT,
        reader=f"{_IMPORTS}.nsight:write_nsight",
        sandbox="zprof.collectors.read.nsight.child",
    ),
    FileKind.INSPECTOR: Format(
        title="NCCL and RCCL Inspector, JSON lines",
        answers=(Answer.COLLECTIVES,),
        tested="written from the sources of the plugin; simulated files",
        page="traces.md#nccl-inspector",
        source=SourceKind.INSPECTOR,
        reader=f"{_IMPORTS}.inspector:write_inspector",
    ),
    FileKind.OPERATIONS: Format(
        title="Operation timelines of pipelines, Parquet",
        answers=(Answer.TIME,),
        tested="two public files of production jobs, and simulated ones",
        page="traces.md#operation-timelines-of-pipelines",
        source=SourceKind.OPERATIONS,
        reader=_OPERATIONS,
        sandbox="zprof.collectors.read.operations.child",
    ),
    FileKind.STAGE_TIMES: Format(
        title="Times of pipeline stages (Primus `dump_pp_data`), JSON",
        answers=(Answer.TIME,),
        tested="one public job",
        page="traces.md#operation-timelines-of-pipelines",
        source=SourceKind.OPERATIONS,
        reader=_OPERATIONS,
    ),
    FileKind.DUMP: Format(
        title="Flight-recorder dumps of NCCL and gloo, pickle, JSON",
        answers=(Answer.HANG,),
        tested="32 public files of one job, NCCL, and simulated ones",
        page="hangs.md",
        source=SourceKind.DUMP,
        reader=_DUMPS,
        sandbox=_DUMP_CHILD,
    ),
    FileKind.LOG: Format(
        title="Logs of torchrun, Slurm, Ray, or pasted text",
        answers=(Answer.HANG,),
        tested="the forms of torch 2.1 to 2.13, written by hand; public threads",
        page="hangs.md#i-only-have-a-log",
        source=SourceKind.DUMP,
        reader=_DUMPS,
    ),
    FileKind.RAS: Format(
        title="Answers of NCCL's RAS (`ncclras`), text, JSON",
        answers=(Answer.HANG,),
        tested="written from the sources of NCCL 2.24 to 2.30; simulated ones",
        page="hangs.md#ask-nccl-while-it-hangs",
        source=SourceKind.DUMP,
        reader=_DUMPS,
    ),
}


def detect_file_kind(file: BinaryIO) -> FileKind:
    """Return the kind of ``file``. Reads from its start and rewinds it."""
    head = _read_head(file)
    if head.startswith(_GZIP):
        content_kind = _detect_by_head(_inflate_head(head))
        return FileKind.GZIP_SNAPSHOT if content_kind is FileKind.SNAPSHOT else content_kind
    if head.startswith(_ZSTD):
        content_kind = _detect_by_head(_unpack_zstd_head(head))
        is_read_packed = content_kind not in (FileKind.SNAPSHOT, FileKind.DUMP)
        return content_kind if is_read_packed else FileKind.OTHER
    if head.startswith(_PARQUET):
        return FileKind.OPERATIONS if _has_operation_columns(file) else FileKind.OTHER
    if head.startswith(_SQLITE):
        return FileKind.NSIGHT if _has_nsight_tables(file) else FileKind.OTHER
    return _detect_by_head(head)


def _read_head(file: BinaryIO) -> bytes:
    head = file.read(_HEAD_BYTES) or b""  # None: a non-blocking file without data yet
    if head.startswith(_ZSTD):
        head += file.read(_ZSTD_HEAD_BYTES)
    file.seek(0)
    return head


def _has_operation_columns(file: BinaryIO) -> bool:
    """Return True if the footer of a Parquet file names all columns of an operation timeline."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _MAX_FOOTER_BYTES))
    end = file.read(_MAX_FOOTER_BYTES) or b""
    file.seek(0)
    footer_bytes = int.from_bytes(end[-8:-4], "little") if end.endswith(_PARQUET) else 0
    footer = end[-8 - footer_bytes : -8] if footer_bytes + 8 <= len(end) else b""
    return all(name in footer for name in _OPERATION_COLUMNS)


def _has_nsight_tables(file: BinaryIO) -> bool:
    """Return True if the schema of an SQLite file, which lies near its start, has a table of nsys export."""
    schema = file.read(_MAX_SCHEMA_BYTES) or b""
    file.seek(0)
    return _NSIGHT_TABLE.search(schema) is not None


def _detect_by_head(head: bytes) -> FileKind:
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        key = _PICKLE_KEY.search(head)
        if key is None:
            return FileKind.PICKLE
        return FileKind.DUMP if key[1] else FileKind.SNAPSHOT
    if head.startswith(b"PK\x03\x04"):
        return FileKind.TORCH_ARCHIVE
    if _RAS.search(head):
        return FileKind.RAS
    if _INSPECTOR_LINE.search(head):
        return FileKind.INSPECTOR
    if _LOG_LINE.search(head):
        return FileKind.LOG
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        if _TRACE_KEY.search(head):
            return FileKind.TRACE
        if _DUMP_KEY.search(head):
            return FileKind.DUMP
        return FileKind.STAGE_TIMES if _STAGE_KEY.search(head) else FileKind.JSON
    return FileKind.OTHER


def _inflate_head(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""


def _unpack_zstd_head(head: bytes) -> bytes:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(head), "zstd") as stream:
            return bytes(stream.read(_HEAD_BYTES))
    except (OSError, pa.ArrowException):
        return b""


class ForeignFormat(Struct, frozen=True, kw_only=True):
    """A format that zprof does not read: ``pattern`` in its first bytes, or else a suffix of its name.

    ``title`` is its name with an article; ``instead`` is what to pass.
    """

    title: str
    instead: str
    pattern: re.Pattern[bytes] | None = None
    suffixes: tuple[str, ...] = ()


_TRACE_INSTEAD = (
    "pass a Kineto trace of the same steps: torch.profiler.profile(activities=[CPU, CUDA]) and "
    "export_chrome_trace(), also on ROCm"
)
_STACKS_INSTEAD = "pass a Kineto trace: torch.profiler with with_stack=True has the lines of the program, too"
_UNPACK = "unpack it, and pass the folder"
_WEIGHTS_INSTEAD = (
    "pass a trace or a memory snapshot of the job; zprof plan says what a model of its size takes"
)
_SQLITE_HEAD = rb"\ASQLite format 3\x00"


def _foreign(title: str, instead: str, pattern: bytes = b"", *suffixes: str) -> ForeignFormat:
    compiled = re.compile(pattern, re.DOTALL) if pattern else None
    return ForeignFormat(title=title, instead=instead, pattern=compiled, suffixes=suffixes)


#: The first match counts. Patterns come before suffixes, which are for formats that bytes do not identify.
FOREIGN_FORMATS: tuple[ForeignFormat, ...] = (
    _foreign("output of rocprofv3 (JSON)", _TRACE_INSTEAD, rb'"rocprofiler-sdk[\w-]*"\s*:'),
    _foreign(
        "a table of rocprof (CSV)",
        _TRACE_INSTEAD,
        rb'\A"?(?:Kind|Domain|Guid|Index|Name|Node_Id|Agent_Id|Dispatch_Id|Correlation_Id|Counter_\w+)"?,'
        rb"[^\n]*(?:Correlation_Id|Kernel_?Name|TotalDurationNs|Start_Timestamp|Agent_Type|BeginNs)",
    ),
    _foreign("a database of rocprofv3 (rocpd)", _TRACE_INSTEAD, _SQLITE_HEAD + rb".*\brocpd_"),
    _foreign("an SQLite database", _TRACE_INSTEAD, _SQLITE_HEAD),
    _foreign(
        "an execution trace of PyTorch or Chakra (operators and their order, without the times of kernels)",
        _TRACE_INSTEAD,
        rb'"schema"\s*:\s*"[^"]*chakra|"(?:ctrl_deps|data_deps|ctrlDeps|dataDeps)"\s*:|"COMM_\w+_NODE"',
    ),
    _foreign(
        "a Chakra execution trace (protobuf)",
        _TRACE_INSTEAD,
        rb"\A[\x04-\x7f][\x00-\x7f]?\x0a[\x03-\x10]\d+\.\d+[.\d]*[^\x20-\x7e]",
    ),
    _foreign("a profile of Nsight Compute", _TRACE_INSTEAD, rb"\ANVR\x00"),
    _foreign("events of TensorBoard", _TRACE_INSTEAD, rb"\A.{8,40}brain\.Event:\d"),
    _foreign("a recording of perf", _STACKS_INSTEAD, rb"\A(?:PERFILE2|2ELIFREP)"),
    _foreign(
        "a profile of py-spy or speedscope",
        _STACKS_INSTEAD,
        rb'speedscope\.app/file-format-schema|"exporter"\s*:\s*"py-spy|\A<svg[^>]*>.*py-spy',
    ),
    _foreign("a recording of memray", _STACKS_INSTEAD, rb"\Amemray"),
    _foreign("a Perfetto trace (protobuf)", _TRACE_INSTEAD, b"", ".pftrace", ".perfetto-trace"),
    _foreign("a profile of XLA", _TRACE_INSTEAD, b"", ".xplane.pb"),
    _foreign(
        "a DeepSpeed configuration",
        "zprof plan says what its stage takes (zprof plan --help); pass a trace or a run to see what it took",
        rb'\A\s*\{.*"(?:zero_optimization|train_micro_batch_size_per_gpu|train_batch_size)"\s*:.*\}\s*\Z',
    ),
    _foreign(
        "the configuration of a Hugging Face model",
        "zprof plan takes its sizes: zprof plan --layers num_hidden_layers --hidden hidden_size",
        rb'\A\s*\{.*"(?:model_type|architectures|transformers_version|num_hidden_layers)"\s*:.*\}\s*\Z',
    ),
    _foreign("a file of weights (safetensors)", _WEIGHTS_INSTEAD, rb'\A.{5}\x00{3}\s*\{.*"data_offsets"'),
    _foreign("a file of weights (GGUF)", _WEIGHTS_INSTEAD, rb"\AGGUF"),
    _foreign(
        "a checkpoint of torch.save",
        _WEIGHTS_INSTEAD,
        rb"\APK\x03\x04.*\bdata\.pkl|\A\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19",
    ),
    _foreign("a zip archive", _UNPACK, rb"\APK\x03\x04"),
    _foreign("a tar archive", _UNPACK, rb"\A.{257}ustar"),
    _foreign("a packed file (xz, bzip2 or 7z)", _UNPACK, rb"\A(?:\xfd7zXZ\x00|BZh[1-9]|7z\xbc\xaf)"),
    _foreign(
        "a Parquet table, but neither a run nor an operation timeline (columns dp_rank, stage, rank, step, "
        "optype, start_ts, duration, seq_id)",
        "pass the folder of the run (NAME.zprof)",
        rb"\APAR1",
    ),
    _foreign("an executable or a core dump", _TRACE_INSTEAD, rb"\A\x7fELF"),
    _foreign(
        "a report of Nsight Systems",
        "export it, and pass the result: nsys export --type sqlite --include-json true REPORT.nsys-rep",
        b"",
        ".nsys-rep",
        ".qdrep",
        ".qdstrm",
    ),
    _foreign("a report of Nsight Compute", _TRACE_INSTEAD, b"", ".ncu-rep"),
    _foreign("a Chakra execution trace (protobuf)", _TRACE_INSTEAD, b"", ".et"),
    _foreign(
        "the message of an allocation that failed, in text",
        "pass a memory snapshot of that moment: torch.cuda.memory._record_memory_history() at the start, "
        "torch.cuda.memory._dump_snapshot() where it fails; or a run of zprof record",
        rb'\A(?!\s*(?:\{|\[\s*[\[{"\]])).*'
        rb"(?:out of memory\. Tried to allocate|OutOfMemoryError|CUDA error: out of memory)",
    ),
)


def identify_foreign(file: BinaryIO, name: str) -> ForeignFormat | None:
    """Identify a file that no reader accepts; None if it is unknown. Rewinds the file."""
    head = _read_head(file)
    if head.startswith(_GZIP):
        head = _inflate_head(head)
    elif head.startswith(_ZSTD):
        head = _unpack_zstd_head(head)
    elif len(head) == _HEAD_BYTES and head.lstrip()[:1] != b"{":
        # the schema of a database, and the last lines of a log, lie further on
        size = file.seek(0, 2)
        file.seek(max(_HEAD_BYTES, size - _HEAD_BYTES) if not head.startswith(b"SQLite") else _HEAD_BYTES)
        head += b"\n" + file.read(_HEAD_BYTES)
        file.seek(0)
    lowered = name.lower()
    for entry in FOREIGN_FORMATS:
        if entry.pattern is not None and entry.pattern.search(head):
            return entry
        if entry.suffixes and lowered.removesuffix(".gz").endswith(entry.suffixes):
            return entry
    return None
