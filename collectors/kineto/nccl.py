"""Collectives that NCCL or RCCL ran: kernels that carry the launch's metadata (method "nccl").

Kernels without metadata make no row; the rest of the vendors' ways is read elsewhere.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from zprof.collectors.kineto.arguments import Arguments, dtype_of, number
from zprof.collectors.kineto.groups import GroupNames, ranks_name
from zprof.collectors.kineto.rows import CollectiveRow
from zprof.collectors.kineto.trace import TraceColumns
from zprof.model.collectives import CollectiveKind

METHOD = "nccl"
METHOD_BY_ORDER = "nccl_order"
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
_KINDS = (
    ("allgather", CollectiveKind.ALL_GATHER),
    ("reducescatter", CollectiveKind.REDUCE_SCATTER),
    ("allreduce", CollectiveKind.ALL_REDUCE),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("broadcast", CollectiveKind.BROADCAST),
    ("reduce", CollectiveKind.REDUCE),
    ("gather", CollectiveKind.GATHER),
    ("scatter", CollectiveKind.SCATTER),
    ("barrier", CollectiveKind.BARRIER),
    ("send", CollectiveKind.SEND),
    ("recv", CollectiveKind.RECV),
)


def nccl_rows(trace: TraceColumns, groups: GroupNames) -> list[CollectiveRow]:
    """A row for each kernel with a ``Collective name``, by start."""
    calls = _calls(trace)
    ordinals: dict[str, int] = defaultdict(int)
    kernels = [
        row for row, a in trace.arguments.items() if trace.category[row] == "kernel" and _is_collective(a)
    ]
    rows: list[CollectiveRow] = []
    for row in sorted(kernels, key=lambda row: int(trace.start_ns[row])):
        arguments = trace.arguments[row]
        group, size = _group(arguments, groups)
        rows.append(_row(trace, row, group, size, ordinals[group], calls))
        ordinals[group] += 1
    return rows


def _row(
    trace: TraceColumns,
    row: int,
    group: str,
    size: int,
    ordinal: int,
    calls: Mapping[int, tuple[int, int]],
) -> CollectiveRow:
    arguments = trace.arguments[row]
    kind = _kind(str(arguments.collective))
    name, element_bytes = dtype_of(arguments.dtype) or ("unknown", 0)
    sequence = number(arguments.sequence)
    start = int(trace.start_ns[row])
    call = calls.get(number(arguments.correlation) or 0)
    gathered = arguments.elements_out if kind is CollectiveKind.ALL_GATHER else arguments.elements_in
    return CollectiveRow(
        kind=str(kind),
        group=group,
        group_size=size,
        sequence=ordinal if sequence is None else sequence,
        dtype=name,
        bytes=(number(gathered) or 0) * element_bytes,
        start_ns=start,
        end_ns=start + int(trace.duration_ns[row]),
        launch_start_ns=call[0] if call else None,
        launch_end_ns=call[1] if call else None,
        stream=number(arguments.stream),
        method=METHOD_BY_ORDER if sequence is None else METHOD,
    )


def _calls(trace: TraceColumns) -> dict[int, tuple[int, int]]:
    """Start and end of the runtime call of each correlation id."""
    found: dict[int, tuple[int, int]] = {}
    for row, arguments in trace.arguments.items():
        correlation = number(arguments.correlation)
        if correlation and trace.category[row] in _RUNTIME:
            start = int(trace.start_ns[row])
            found[correlation] = (start, start + int(trace.duration_ns[row]))
    return found


def _is_collective(arguments: Arguments) -> bool:
    return isinstance(arguments.collective, str) and arguments.collective not in ("", "wait")


def _kind(name: str) -> CollectiveKind:
    """``_allgather_base`` and ``all_gather_into_tensor_coalesced`` alike are an all-gather."""
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in _KINDS if part in plain), CollectiveKind.OTHER)


def _group(arguments: Arguments, groups: GroupNames) -> tuple[str, int]:
    ranks = _ranks(arguments.group_ranks)
    if ranks:
        return ranks_name(ranks), len(ranks)
    name = arguments.group if isinstance(arguments.group, str) else None
    group, size = groups.resolve(name)
    return group, size or number(arguments.group_size) or 0


def _ranks(text: object) -> Sequence[int]:
    """``"[0, 1]"`` as numbers; long lists may be cut short with dots, and then say nothing."""
    if not isinstance(text, str) or not re.fullmatch(r"\[\s*\d{1,9}(\s*,\s*\d{1,9})*\s*\]", text):
        return ()
    return [int(rank) for rank in re.findall(r"\d+", text)]
