"""Define one row of the ``collectives`` table, and parse the spellings of collectives and element types in
traces.

``_allgather_base``, ``all_gather_into_tensor_coalesced`` and ``nccl:_all_gather_base`` are all all-gathers:
underscores and case are ignored, and the prefix decides. To support another spelling, add a table entry.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from zprof.model.collectives import CollectiveKind

#: Upper limit, because the shapes in a file may have any product.
_MAX_BYTES = 1 << 62
#: The first prefix that matches decides, so longer ones come before their own prefixes.
_KIND_PREFIXES: tuple[tuple[str, CollectiveKind | None], ...] = (
    ("allreducebarrier", CollectiveKind.BARRIER),
    ("allgather", CollectiveKind.ALL_GATHER),
    ("reducescatter", CollectiveKind.REDUCE_SCATTER),
    ("allreduce", CollectiveKind.ALL_REDUCE),
    ("sparseallreduce", CollectiveKind.ALL_REDUCE),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("broadcast", CollectiveKind.BROADCAST),
    ("reduce", CollectiveKind.REDUCE),
    ("gather", CollectiveKind.GATHER),
    ("scatter", CollectiveKind.SCATTER),
    ("barrier", CollectiveKind.BARRIER),
    ("monitoredbarrier", CollectiveKind.BARRIER),
    ("sendrecv", CollectiveKind.OTHER),
    ("send", CollectiveKind.SEND),
    ("recv", CollectiveKind.RECV),
    ("receive", CollectiveKind.RECV),
    ("batchisendirecv", CollectiveKind.OTHER),
    # torch's symmetric memory: a product whose operand is gathered, or whose result is scattered, by copies
    ("fusedallgather", CollectiveKind.ALL_GATHER),
    ("fusedmatmulreducescatter", CollectiveKind.REDUCE_SCATTER),
    ("fusedscaledmatmulreducescatter", CollectiveKind.REDUCE_SCATTER),
    ("coalesced", CollectiveKind.OTHER),
    # entries that move no data
    ("wait", None),
    ("init", None),
    ("abort", None),
    ("shutdown", None),
    ("finalize", None),
    ("split", None),
    ("commsplit", None),
    ("startcoalescing", None),
)
_NAMESPACES = re.compile(
    r"(?:c10d|symm_mem|_c10d_functional)::|(?:nccl|gloo|xccl):|(?:multimem_|one_shot_|two_shot_|_low_contention_)"
)
#: Maximum length of a name read from a file.
_MAX_TEXT = 400
#: torch's name and the bytes per element.
_ELEMENT_TYPES = {
    "float": ("float32", 4),
    "f64": ("float64", 8),
    "f32": ("float32", 4),
    "f16": ("float16", 2),
    "bf16": ("bfloat16", 2),
    "__nv_bfloat16": ("bfloat16", 2),
    "double": ("float64", 8),
    "bfloat16": ("bfloat16", 2),
    "half": ("float16", 2),
    "long int": ("int64", 8),
    "long": ("int64", 8),
    "int": ("int32", 4),
    "short int": ("int16", 2),
    "short": ("int16", 2),
    "signed char": ("int8", 1),
    "char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "byte": ("uint8", 1),
    # of a size without a type
    "bytes of unknown type": ("unknown", 1),
    "bool": ("bool", 1),
    "uint16": ("uint16", 2),
    "unsigned short": ("uint16", 2),
    "uint32": ("uint32", 4),
    "unsigned int": ("uint32", 4),
    "uint64": ("uint64", 8),
    "unsigned long": ("uint64", 8),
    "complexfloat": ("complex64", 8),
    "complex<float>": ("complex64", 8),
    "complexdouble": ("complex128", 16),
    "complex<double>": ("complex128", 16),
    "fp64": ("float64", 8),
    "fp32": ("float32", 4),
    "fp16": ("float16", 2),
    "bfp16": ("bfloat16", 2),
    "int64": ("int64", 8),
    "int32": ("int32", 4),
    "int16": ("int16", 2),
    "int8": ("int8", 1),
    "uint8": ("uint8", 1),
    "float8_e4m3fn": ("float8_e4m3fn", 1),
    "float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "float8_e5m2": ("float8_e5m2", 1),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "float8_e8m0fnu": ("float8_e8m0fnu", 1),
    "float4_e2m1fn_x2": ("float4_e2m1fn_x2", 1),
}
#: Kernels that reduce are compiled per element type; those that only move data are not.
_REDUCING_KERNEL = re.compile(
    r"(?:nccl|rccl)\w*Kernel_(?:ReduceScatter|AllReduce|Reduce)_(?:[A-Z][A-Z0-9]*_)*"
    r"(?:Sum|Prod|Max|Min|MinMax|PreMulSum|SumPostDiv)_(\w+?)(?:_[A-Z]\w*)?(?:\(.*)?",
    re.ASCII,
)


class CollectiveRow(Struct, frozen=True, kw_only=True):
    """A collective as executed by one rank; the fields are the columns of ``zprof.run.schema``."""

    kind: str
    group: str
    group_size: int
    sequence: int
    dtype: str
    bytes: int
    start_ns: int
    end_ns: int
    launch_start_ns: int | None = None
    launch_end_ns: int | None = None
    wait_start_ns: int | None = None
    wait_end_ns: int | None = None
    unit: str | None = None
    stream: int | None = None
    peer_rank: int | None = None
    method: str


def build_collective_columns(rows: Sequence[CollectiveRow]) -> dict[str, list[Any]]:
    """Return the columns of the ``collectives`` table, by start."""
    rows = sorted(rows, key=lambda row: (row.start_ns, row.end_ns))
    columns = {field.name: [getattr(row, field.name) for row in rows] for field in fields(CollectiveRow)}
    return columns | {"bytes": [min(size, _MAX_BYTES) for size in columns["bytes"]]}


def parse_collective_kind(name: object) -> CollectiveKind | None:
    """Return the kind given by a name: OTHER for an unknown collective, None if it is not a collective."""
    return _parse_kind(name) if isinstance(name, str) else None


@lru_cache(maxsize=1 << 10)
def _parse_kind(name: str) -> CollectiveKind | None:
    plain = _NAMESPACES.sub("", name).replace("_", "").lower()
    if not plain:
        return None
    for prefix, kind in _KIND_PREFIXES:
        if plain.startswith(prefix):
            return kind
    return CollectiveKind.OTHER


def parse_reduced_type(kernel: str) -> tuple[str, int] | None:
    """Return torch's name and the bytes per element of the type that a kernel reduces, or None."""
    match = _REDUCING_KERNEL.fullmatch(kernel[:_MAX_TEXT])
    return parse_element_type(match[1]) if match else None


def parse_element_type(name: object) -> tuple[str, int] | None:
    """Return torch's name and the bytes per element of a type, or None if it is unknown."""
    return _ELEMENT_TYPES.get(name.strip().lower().removeprefix("c10::")) if isinstance(name, str) else None
