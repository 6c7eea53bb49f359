"""Define the kinds of collectives, their traffic per byte, and the kernels that run them (``KERNELS``).

Bus-bandwidth factors follow NCCL's performance tests: an all-reduce of S bytes over N ranks moves 2 S (N-1)/N
through each rank, an all-gather or reduce-scatter with a full tensor of S bytes moves S (N-1)/N.

The name of a kernel is parsed as a C++ signature: return type, template arguments and parameters are dropped,
so a word in them (a user's type, a functor) never turns a compute kernel into a collective. A row's pattern
must match the full function name, or its end after a ``::``. To support another library, add a row; specific
rows come before general ones.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

#: Name of a group if neither its ranks nor their number was recorded.
UNKNOWN_GROUP = "unknown"
#: Description of the group that a recording uses to compare clocks; it is not part of the program.
CLOCK_GROUP = "zprof_clocks"
#: Bytes per element, by the name of its type.
BYTES_PER_ELEMENT: Mapping[str, int] = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "int64": 8, "int32": 4, "int8": 1, "uint8": 1,
}  # fmt: skip
#: Function names are short; longer names are not searched.
_MAX_NAME, _MAX_FUNCTION, _MAX_NESTING = 4096, 200, 64
_MANGLED = re.compile(r"_Z(NK?)?(?=\d)", re.ASCII)
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")
_INNERMOST = re.compile(r"<[^<>]*>")


class CollectiveKind(StrEnum):
    """Operation of a collective."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"
    RECV = "recv"
    BARRIER = "barrier"
    OTHER = "other"


#: Prefixes of operators that run collectives.
OPERATOR_PREFIXES = ("c10d::", "gloo:", "nccl:", "_c10d_functional::")
#: Kinds that no rank can leave before all ranks have entered.
FULL_SYNC = frozenset(
    {
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.BARRIER,
    }
)


def bus_factor(kind: CollectiveKind, group_size: int) -> float:
    """Return the bytes that pass through each rank per byte of the full tensor."""
    if group_size <= 1:
        return 0.0
    share = (group_size - 1) / group_size
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * share
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL):
        return share
    return 0.0 if kind is CollectiveKind.BARRIER else 1.0


def is_unknown_size(kind: str, size_bytes: int) -> bool:
    """Return True if 0 bytes mean an unknown size: only a barrier moves no bytes."""
    return size_bytes == 0 and kind != CollectiveKind.BARRIER


class KnownKernel(Struct, frozen=True, kw_only=True):
    """Kernels of one library that match one pattern.

    ``kind`` is None if the name does not determine it. ``full_sync``: no rank can leave before all ranks have
    entered.
    """

    library: str
    pattern: str
    kind: CollectiveKind | None = None
    full_sync: bool = False


def _make_row(
    library: str, pattern: str, kind: CollectiveKind | None = None, *, full_sync: bool | None = None
) -> KnownKernel:
    """Return a row; by default, ``full_sync`` is True if the kind is in ``FULL_SYNC``."""
    is_full_sync = kind in FULL_SYNC if full_sync is None else full_sync
    return KnownKernel(library=library, pattern=pattern, kind=kind, full_sync=is_full_sync)


_AG, _RS, _AR = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE
_A2A, _BARRIER = CollectiveKind.ALL_TO_ALL, CollectiveKind.BARRIER
_NCCL_WORDS = {
    "AllGather": _AG,
    "ReduceScatter": _RS,
    "AllReduce": _AR,
    "AllToAll": _A2A,
    "AlltoAll": _A2A,
    "Broadcast": CollectiveKind.BROADCAST,
    "Reduce": CollectiveKind.REDUCE,
    "Gather": CollectiveKind.GATHER,
    "Scatter": CollectiveKind.SCATTER,
}


def _list_nccl_kernels() -> Iterator[KnownKernel]:
    """Yield the rows of NCCL and RCCL.

    Kernels are named ``ncclKernel_``, since 2.19 ``ncclDevKernel_``, and symmetric ones ``ncclSym…`` since
    2.27.
    """
    for word, kind in _NCCL_WORDS.items():
        yield _make_row("nccl", rf"nccl(?:Dev|SymDev|SymkDev|Symk)?Kernel_{word}(?:V|Pivot)?(?:_\w+)?", kind)
        # until 2.6: ncclAllReduceRingLLKernel_sum_f32
        yield _make_row("nccl", rf"nccl{word}(?:Ring|Tree|CollNet)[A-Z0-9]*Kernel(?:_\w+)?", kind)
        yield _make_row("rccl", rf"rccl(?:Dev)?Kernel_{word}(?:_\w+)?", kind)
    # SendRecv (also used for all-to-all) and Generic: kind and synchronization are only in the metadata
    yield _make_row("nccl", r"nccl(?:Dev|SymDev|SymkDev|Symk)?Kernel_\w+")
    yield _make_row("nccl", r"nccl(?:SendRecv|Send|Recv)[A-Za-z0-9]*Kernel(?:_\w+)?")
    yield _make_row("rccl", r"rccl[A-Z]\w*")
    yield _make_row("msccl", r"mscclKernel_\w+")


#: The table. If several rows match, the first one wins.
KERNELS: tuple[KnownKernel, ...] = (
    *_list_nccl_kernels(),
    # torch's symmetric memory and kernels derived from it
    _make_row("symm_mem", r"multimem_all_gather\w*", _AG),
    _make_row("symm_mem", r"(?:multimem|one_shot|two_shot)_reduce_scatter\w*", _RS),
    _make_row("symm_mem", r"multimem_(?:one_shot_|two_shot_)?(?:all_)?reduce\w*", _AR),
    _make_row("symm_mem", r"(?:one|two)_shot_all_reduce\w*", _AR),
    _make_row("symm_mem", r"symmetric_memory::barrier_kernel", _BARRIER),
    _make_row("symm_mem", r"symmetric_memory::put_signal_kernel", CollectiveKind.SEND),
    _make_row("symm_mem", r"symmetric_memory::wait_signal_kernel", CollectiveKind.RECV),
    # vLLM, SGLang, AITER
    _make_row("custom_all_reduce", r"cross_device_reduce_\w+", _AR),
    _make_row("custom_all_reduce", r"reduce_scatter_cross_device_store\w*", _RS),
    _make_row("quick_reduce", r"allreduce_prototype(?:_\w+)?", _AR),
    _make_row("flashinfer", r"allreduce_fusion_kernel_(?:one|two)shot\w*", _AR),
    _make_row("tensorrt_llm", r"(?:one|two)[Ss]hotAll[Rr]educe(?:Fusion)?Kernel", _AR),
    # all-to-all with uneven splits: a rank need not wait for a rank from which it receives nothing
    _make_row("nvshmem", r"exchangeSplitAndOffset(?:_2d)?", _A2A),
    _make_row("nvshmem", r"allToAllV(?:_2d)?", _A2A, full_sync=False),
    _make_row("nvshmem", r"(?:nv|roc)shmemx?i?_barrier\w*", _BARRIER),
    _make_row("nvshmem", r"barrier(?:_all)?_on_stream_kernel(?:_\w+)?", _BARRIER),
    _make_row("nvshmem", r"(?:nv|roc)shmemx?i?_\w+"),
    _make_row("deep_ep", r"(?:intranode|internode|internode_ll)::barrier\w*", _BARRIER),
    _make_row("deep_ep", r"(?:intranode|internode|internode_ll)::(?:cached_)?notify(?:_\w+)?", _BARRIER),
    _make_row(
        "deep_ep", r"(?:intranode|internode|internode_ll)::(?:dispatch|combine)", _A2A, full_sync=False
    ),
    # Transformer Engine
    _make_row("userbuffers", r"k?userbuffers_\w+"),
    _make_row("mscclpp", r"mscclpp::(?:\w+::)*\w+"),
)
#: All rows as one pattern; each row is a group named after its index.
_ROWS = "|".join(f"(?P<r{index}>{row.pattern})" for index, row in enumerate(KERNELS))
_ANY = re.compile(rf"(?:\w+::)*(?:{_ROWS})(?:\.kd)?", re.ASCII)


def is_collective_kernel(name: str) -> bool:
    """Return True if a kernel belongs to a communication library."""
    return identify_kernel(name) is not None


def identify_kernel(name: str) -> KnownKernel | None:
    """Return the table row of a kernel by its name, or None if it is not from a communication library."""
    return _identify_cached(name[:_MAX_NAME])


@lru_cache(maxsize=1 << 12)
def _identify_cached(name: str) -> KnownKernel | None:
    """Return the table row of a name, cached: thousands of ranks run the same few hundred kernels."""
    function = parse_function_name(name)
    match = _ANY.fullmatch(function) if len(function) <= _MAX_FUNCTION else None
    return KERNELS[int((match.lastgroup or "r0")[1:])] if match is not None else None


def parse_function_name(name: str) -> str:
    """Return the qualified function name of a kernel whose name may be mangled.

    ``void a::(anonymous namespace)::f<nccl::T>(int)`` becomes ``a::f``.
    """
    name = name[:_MAX_NAME].strip()
    mangled = _MANGLED.match(name)
    if mangled is not None:
        return "::".join(_split_mangled(name[mangled.end() :], nested=mangled[1] is not None))
    name, passes = _ANONYMOUS.sub("", name), 0
    while passes < _MAX_NESTING and (shorter := _INNERMOST.sub("", name)) != name:
        name, passes = shorter, passes + 1
    words = re.split(r"[(<]", name, maxsplit=1)[0].split()
    return re.sub(r":{3,}", "::", words[-1]).strip(":") if words else ""


def _split_mangled(text: str, *, nested: bool) -> Iterator[str]:
    """Yield the parts of a mangled name: ``4vllm3foo`` has two; a name without nesting has one."""
    while (digits := re.match(r"\d{1,4}", text)) is not None:
        end = digits.end() + int(digits[0])
        yield text[digits.end() : end]
        text = text[end:]
        if not nested:
            return
