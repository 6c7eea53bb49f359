"""Describe a collective from its launch: from the arguments of PyTorch's ``record_param_comms``, else from
the operators and annotations around it.

Metadata exists since torch 2.2, first with ``Process Group ID`` instead of a name; ``Seq`` since 2026. Lists
are written as text ("[0, 1]"); long ones are truncated with dots and unusable. Without metadata,
``c10d::_allgather_base_`` and similar operators have the shapes of their tensors, ``nccl:all_reduce`` has the
shape of its input.

Device work is understood if it is a ``kernel``. Other lanes next to the host may show the device's work, its
queue, or either one twice, so they count neither as work nor as idle time.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

from zprof.base.formatting import printable, shorten
from zprof.collectors.read.kineto.collectives import parse_collective_kind, parse_element_type
from zprof.collectors.read.kineto.device.ascend import is_ascend
from zprof.collectors.read.kineto.trace import ABSENT, Arguments, Trace, count_elements, int64_or_none
from zprof.model.collectives import CollectiveKind

_MAX_RANKS = 1 << 16
_MISSING = (None, "", ())
_LIST = re.compile(r"\[\s*(?:\d{1,15}(?:\s*,\s*\d{1,15})*)?\s*\]", re.ASCII)
_ROOTED_KINDS = frozenset(
    {CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER}
)
_OPERATOR_PREFIXES = ("c10d::", "_c10d_functional::", "symm_mem::")
_FUSED_PREFIX = "symm_mem::fused_"
#: Prefixes of the ranges that torch writes around collectives of NCCL and of oneCCL
#: (intel/torch-xpu-ops: src/xccl/ProcessGroupXCCL.cpp).
RANGE_PREFIXES = ("nccl:", "xccl:")
_MAX_TENSORS = 1 << 10
_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
#: Profiler categories that do not belong to one accelerator. ``""``: an event without a category.
_HOST = frozenset(
    {
        "cpu_op",
        "user_annotation",
        "gpu_user_annotation",
        "cuda_runtime",
        "cuda_driver",
        "cuda_sync",
        "cuda_profiler_range",
        "cpu_instant_event",
        "python_function",
        "overhead",
        "collective_comm",
        "external_correlation",
        "ac2g",
        "fwdbwd",
    }
)
_UNDERSTOOD = _HOST | _WORK | {"Trace"}
#: Accelerators with their own profiler categories, also on the host.
_OWN_CATEGORY = re.compile(r"(mtia|xpu|hpu|privateuse1|glow)_")
_HOST_PROCESS = re.compile(r"\bcpu\b|host|loader|worker", re.IGNORECASE)
_NPU_PROCESS = re.compile(r"ascend|\bcann\b", re.IGNORECASE)
_MAX_MODEL = 80
#: Fewer events outside the host's process are treated as damaged: their process id is wrong.
_MIN_SHARE = 0.05


class LaunchDescription(Struct, frozen=True, kw_only=True):
    """Description of a collective, from its launch; None or empty if unknown.

    ``ranks`` are global, in group order. They are a range if they are given as one: each of thousands of
    collectives may list thousands of ranks. ``peer`` is global too.
    """

    kind: CollectiveKind | None = None
    dtype: str | None = None
    element_bytes: int | None = None
    elements: int | None = None
    group: str | None = None
    description: str = ""
    ranks: tuple[int, ...] | range = ()
    group_size: int | None = None
    sequence: int | None = None
    peer: int | None = None

    def fill_missing(self, other: "LaunchDescription") -> "LaunchDescription":
        """Return this description with unknown fields filled from another description of the same
        collective.
        """
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        missing = [name for name, value in values.items() if value in _MISSING]
        filled = {name: value for name in missing if (value := getattr(other, name)) not in _MISSING}
        return LaunchDescription(**(values | filled)) if filled else self


def describe_arguments(arguments: Arguments) -> LaunchDescription | None:
    """Return the description from an event's arguments; None if it is not a collective (for
    example, a wait).
    """
    kind = parse_collective_kind(arguments.collective)
    if kind is None:
        return None
    dtype, element_bytes = parse_element_type(arguments.dtype) or (None, None)
    description = arguments.group_description
    ranks, size = _read_ranks(arguments), _read_group_size(arguments)
    return LaunchDescription(
        kind=kind,
        dtype=dtype,
        element_bytes=element_bytes,
        elements=_count_metadata_elements(kind, arguments, len(ranks) or size),
        group=_text_or_none(arguments.group) or _text_or_none(arguments.group_id),
        description=description if isinstance(description, str) else "",
        ranks=ranks,
        group_size=size,
        sequence=_nonnegative_or_none(arguments.sequence),
        peer=_find_peer(kind, arguments, ranks),
    )


def parse_numbers(text: object) -> tuple[int, ...] | None:
    """Parse ``"[0, 1]"`` as numbers; None if it is not such a list or is truncated."""
    if isinstance(text, list):
        return tuple(text) if all(int64_or_none(entry) is not None for entry in text) else None
    return _parse_list(text) if isinstance(text, str) else None


@lru_cache(maxsize=64)  # thousands of collectives of a few groups, each with all ranks
def _parse_list(text: str) -> tuple[int, ...] | None:
    if _LIST.fullmatch(text) is None:
        return None
    return tuple(map(int, re.findall(r"\d+", text)))


def _count_metadata_elements(kind: CollectiveKind, arguments: Arguments, size: int | None) -> int | None:
    """Return the elements of the full tensor: gathered, scattered, or sent by this rank to all ranks."""
    input_elements, output_elements = (
        int64_or_none(arguments.elements_in),
        int64_or_none(arguments.elements_out),
    )
    if kind is CollectiveKind.BARRIER:
        return 0
    if kind is CollectiveKind.ALL_TO_ALL:
        splits = parse_numbers(arguments.split_in)
        return input_elements or (sum(splits) if splits else None)
    known = [count for count in (input_elements, output_elements) if count is not None and count >= 0]
    if len(known) == 2 or kind not in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return max(known, default=None)
    shard = input_elements if kind is CollectiveKind.ALL_GATHER else output_elements
    if shard is None:
        return max(known, default=None)
    return shard * size if size else None


def _read_ranks(arguments: Arguments) -> tuple[int, ...] | range:
    listed_ranks = parse_numbers(arguments.group_ranks)
    if listed_ranks:
        return listed_ranks if len(set(listed_ranks)) == len(listed_ranks) else ()
    first, stride = int64_or_none(arguments.first_global_rank), int64_or_none(arguments.global_rank_stride)
    size = _read_group_size(arguments)
    if first is None or stride is None or size is None or first < 0 or stride <= 0:
        return ()
    return range(first, first + stride * size, stride)


def _read_group_size(arguments: Arguments) -> int | None:
    size = int64_or_none(arguments.group_size)
    return size if size is not None and 0 < size <= _MAX_RANKS else None


def _find_peer(kind: CollectiveKind, arguments: Arguments, ranks: Sequence[int]) -> int | None:
    """Return the global rank of the peer, or of the root, which is given as a group rank."""
    if kind is CollectiveKind.SEND:
        return _nonnegative_or_none(arguments.destination_rank)
    if kind is CollectiveKind.RECV:
        return _nonnegative_or_none(arguments.source_rank)
    root = _nonnegative_or_none(arguments.rank) if kind in _ROOTED_KINDS else None
    return ranks[root] if root is not None and root < len(ranks) else None


def _nonnegative_or_none(value: object) -> int | None:
    found = int64_or_none(value)
    return found if found is not None and found >= 0 else None


def _text_or_none(value: object) -> str | None:
    found = int64_or_none(value)
    return str(found) if found is not None else value if isinstance(value, str) else None


def merge_descriptions(found: Iterable[LaunchDescription | None]) -> LaunchDescription | None:
    """Return the first description, with unknown fields filled from the later ones."""
    output_elements: LaunchDescription | None = None
    for description in found:
        if description is not None:
            output_elements = (
                description if output_elements is None else output_elements.fill_missing(description)
            )
    return output_elements


def is_collective_operator(name: str) -> bool:
    """Return True if a host operator launches collectives."""
    return name.startswith(_OPERATOR_PREFIXES) and parse_collective_kind(name) not in (
        None,
        CollectiveKind.OTHER,
    )


def is_nccl_annotation(name: str) -> bool:
    """Return True if a range is one that torch writes around a collective of NCCL or oneCCL."""
    return name.startswith(RANGE_PREFIXES) and parse_collective_kind(name) is not None


def describe_operator(name: str, arguments: Arguments | None) -> LaunchDescription:
    """Return the description from an operator's name and tensor shapes."""
    kind = parse_collective_kind(name)
    types = arguments.types if arguments is not None and isinstance(arguments.types, list) else []
    found = (parse_element_type(text) for text in types[:_MAX_TENSORS])
    dtype, element_bytes = next((known for known in found if known is not None), (None, None))
    return LaunchDescription(
        kind=kind,
        dtype=dtype,
        element_bytes=element_bytes,
        elements=_count_operator_elements(name, kind, arguments),
    )


def _count_operator_elements(
    name: str, kind: CollectiveKind | None, arguments: Arguments | None
) -> int | None:
    """Return the elements of the largest tensor; for an all-to-all, of the input.

    An annotation has inputs only.
    """
    if kind is CollectiveKind.BARRIER:
        return 0
    if name.startswith(_FUSED_PREFIX):  # the largest tensor may be the other operand
        return None
    dims = arguments.dims if arguments is not None and isinstance(arguments.dims, list) else []
    if name.startswith(RANGE_PREFIXES):
        return None if kind is CollectiveKind.ALL_GATHER else count_elements(dims)
    if kind is CollectiveKind.ALL_TO_ALL:
        return count_elements(dims, 1)
    counts = (count_elements(dims, argument) for argument in range(min(len(dims), _MAX_TENSORS)))
    return max((count for count in counts if count is not None), default=None)


def find_unknown_lanes(trace: Trace) -> list[tuple[str, int]]:
    """Return the lanes that are not understood, largest first; none if the trace has kernels.

    A lane is the process name (or else the category) of events that may belong to a device, and their count.
    """
    categories = trace.category.texts
    if "kernel" in categories:
        return []
    # Row count per process and category; a process whose id is a word has none.
    processes, position = np.unique(trace.process, return_inverse=True)
    width = max(1, len(trace.category.texts))
    keys, counts = np.unique(position * width + trace.category.codes, return_counts=True)
    counts = {
        (int(processes[key // width]), trace.category.texts[key % width]): count
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True)
    }
    host = {process for process, category in counts if category in _HOST} - {ABSENT}
    own, others = Counter[str](), Counter[str]()
    for (process, category), count in counts.items():
        name = trace.process_names.get(process, "")
        if _OWN_CATEGORY.match(category):
            own[category] += count
        elif category not in _UNDERSTOOD and process not in host and not _HOST_PROCESS.search(name):
            others[name or category or "a process without a name"] += count
    if others.total() >= _MIN_SHARE * max(1, len(trace)):
        own += others
    return own.most_common()


def detect_device(trace: Trace, lanes: list[tuple[str, int]]) -> str:
    """Return the device of a trace.

    ``cuda`` or ``hip``, with the model in brackets if the trace has only one; torch's name of another
    accelerator; ``npu`` (Ascend); ``unknown``; or ``cpu`` if nothing ran on a device.
    """
    categories = trace.category.texts
    own = next((found[1] for category in categories if (found := _OWN_CATEGORY.match(category))), None)
    if own is not None:
        return own
    if not lanes and is_ascend(trace):
        return "npu"
    if lanes:
        names = trace.process_names.values()
        return "npu" if any(_NPU_PROCESS.search(name) for name in names) else "unknown"
    if _WORK.isdisjoint(categories):
        return "cpu"
    is_amd = any("AMD" in name or "Instinct" in name for name in trace.header.devices)
    kind = "hip" if is_amd or any(text.startswith("hip") for text in trace.name.texts) else "cuda"
    models = {name for name in trace.header.devices if name}
    return f"{kind} ({shorten(printable(models.pop()), _MAX_MODEL)})" if len(models) == 1 else kind
