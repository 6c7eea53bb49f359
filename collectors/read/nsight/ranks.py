"""Split an Nsight export into ranks: one per process and device, with the events of a Kineto trace."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from msgspec import Struct

from zprof.base.errors import BadInput
from zprof.collectors.read.kineto.trace import ABSENT, Int64s, Mask
from zprof.collectors.read.nsight.database import HINT, ROW, NsightDatabase
from zprof.collectors.read.nsight.nccl import (
    BYTES_DTYPE,
    INITIALIZERS,
    KNOWN,
    Call,
    Range,
    find_calls,
    read_payload,
)

KERNELS, COPIES, FILLS, CALLS, NVTX = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
)
#: The columns of an event, as in ``kineto.trace.Trace``; ``name`` and ``category`` are texts.
NUMBERS = ("start_ns", "duration_ns", "process", "thread", "stream", "correlation", "bytes")
_ON_DEVICE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_COPY_NAMES = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    10: "PtoP",
}
_RANGE = ("start", "end", "globalTid", "textId", ROW, "jsonTextId")
#: Lowest bits of a thread's id; the higher ones are the process.
_THREAD_BITS = 24
_THREAD_MASK = (1 << _THREAD_BITS) - 1
_VERSION = re.compile(r"_v\d+\Z", re.ASCII)
#: What torch.autograd.profiler.emit_nvtx appends to an operator's name.
_OPERATOR = re.compile(r"(?P<name>[^,]{1,400}), (?:seq = \d+, )?op_id = \d+.*", re.ASCII | re.DOTALL)
_STEP_WORDS = r"(?:train(?:ing)?[ _-]?)?(?:step|iteration|iter|batch)"
_STEP = re.compile(rf"{_STEP_WORDS}[ #:_=-]{{0,3}}(\d{{1,15}})", re.IGNORECASE | re.ASCII)
_REPEATED_STEP = re.compile(_STEP_WORDS, re.IGNORECASE | re.ASCII)
_MAX_RANKS, _MAX_NAME = 1024, 400
#: Times since the start of a session, and that start since 1970: together they fit into 63 bits.
_MAX_TIME_NS = 1 << 61
_BATCH, _RECORD = "nccl:coalesced", "record_param_comms"


class RankEvents(Struct, frozen=True, kw_only=True):
    """The events of one rank, and what describes it.

    ``numbers``: by column of ``NUMBERS``. ``categories``, ``names``: text of each event. ``arguments``: those
    of a few events, by row, as keys of ``kineto.trace.Arguments``. ``rank`` and ``world_size`` are None if no
    communicator tells them.
    """

    numbers: dict[str, Int64s]
    categories: list[str]
    names: list[str]
    arguments: dict[int, dict[str, Any]]
    rank: int | None
    world_size: int | None
    devices: tuple[str, ...]
    host: str
    has_nccl: bool


class _Part(Struct, frozen=True):
    """A process and its device; ``process`` is ``ABSENT`` if the file does not tell processes apart."""

    process: int
    device: int


class _Rows:
    """Events of a rank, in pieces."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[Int64s]] = {name: [] for name in NUMBERS}
        self.categories: list[str] = []
        self.names: list[str] = []

    def add(self, category: str | Sequence[str], names: Sequence[str], **numbers: Int64s) -> None:
        """Append events; columns that are not given are absent."""
        size = len(names)
        for name, pieces in self.pieces.items():
            pieces.append(numbers.get(name, np.full(size, ABSENT, dtype=np.int64)))
        self.categories += [category] * size if isinstance(category, str) else list(category)
        self.names += names


class NsightReader:
    """The tables of one export, and its ranks."""

    def __init__(self, database: NsightDatabase) -> None:
        self._database = database
        self._texts = database.read_texts("StringIds", "id", "value")
        self._kernels = database.read_numbers(KERNELS, (*_ON_DEVICE, "demangledName", "shortName"))
        self._copies = database.read_numbers(COPIES, (*_ON_DEVICE, "bytes", "copyKind"))
        self._fills = database.read_numbers(FILLS, (*_ON_DEVICE, "bytes"))
        self._calls = database.read_numbers(CALLS, ("start", "end", "globalTid", "correlationId", "nameId"))
        self._nvtx = database.read_numbers(NVTX, ("start", "end", "globalTid", "textId", ROW, "jsonTextId"))
        self._nvtx_texts = database.read_texts(NVTX, ROW, "text")
        self._payloads = database.read_texts(NVTX, ROW, "jsonText")
        self._parts = self._list_parts()
        epoch = database.read_numbers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"]
        self._origin_ns = int(epoch[0]) if len(epoch) and 0 < epoch[0] <= _MAX_TIME_NS else 0
        self._nccl = self._list_nccl_ranges()
        self._communicators = self._list_communicators()

    def list_ranks(self) -> list[RankEvents]:
        """Return the events of each rank, by process and device."""
        return [self._make_rank(at) for at in range(len(self._parts))]

    def _list_parts(self) -> list[_Part]:
        """Return the processes that ran kernels, with their device.

        Raises:
            BadInput: No process ran kernels.
        """
        timed = _have_times(self._kernels)
        pairs = np.unique(
            np.stack((self._kernels["globalPid"][timed], self._kernels["deviceId"][timed])), axis=1
        )
        if not pairs.shape[1]:
            raise BadInput("it has no kernels", hint="profile with nsys profile --trace cuda,nvtx")
        if pairs.shape[1] > _MAX_RANKS:
            raise BadInput(f"it has kernels of {pairs.shape[1]} processes and devices", hint=HINT)
        parts = [_Part(process, device) for process, device in pairs.T.tolist()]
        return sorted(parts, key=lambda part: (part.device, part.process))

    def _list_nccl_ranges(self) -> dict[int, list[Range]]:
        """Return NCCL's ranges by global thread id."""
        found: dict[int, list[Range]] = defaultdict(list)
        columns = (
            self._nvtx[name].tolist() for name in ("start", "end", "globalTid", "textId", ROW, "jsonTextId")
        )
        for start, end, thread, text, row, payload in zip(*columns, strict=True):
            name = self._nvtx_texts.get(row) or self._texts.get(text, "")
            if name in KNOWN and 0 <= start <= end <= _MAX_TIME_NS:
                json_text = self._payloads.get(row) or self._texts.get(payload, "")
                found[thread].append(Range(name=name, start_ns=start, end_ns=end, payload=json_text))
        return found

    def _list_communicators(self) -> dict[str, dict[int, int]]:
        """Return the members of each communicator: part by rank in it, and its size as key -1."""
        members: dict[str, dict[int, int]] = defaultdict(dict)
        place = {part.process: at for at, part in enumerate(self._parts)}
        for thread, ranges in self._nccl.items():
            part = place.get(thread & ~_THREAD_MASK)
            for each in ranges:
                payload = read_payload(each.payload) if each.name in INITIALIZERS else None
                if part is None or payload is None or payload.communicator is None or not payload.ranks:
                    continue
                members[payload.communicator][-1] = payload.ranks
                if payload.rank is not None:
                    members[payload.communicator][payload.rank] = part
        return members

    def _find_world(self) -> dict[str, int] | None:
        """Return the largest communicator that all ranks of the file are in; None without one."""
        parts = set(range(len(self._parts)))
        whole = {
            name: found[-1]
            for name, found in self._communicators.items()
            if parts == {part for rank, part in found.items() if rank >= 0} and found[-1] >= len(parts)
        }
        return dict([max(whole.items(), key=lambda item: item[1])]) if whole else None

    def _rank_parts(self) -> tuple[list[int | None], int | None]:
        """Return the global rank of each part, and the number of ranks."""
        world = self._find_world()
        if world is not None:
            ((name, size),) = world.items()
            ranks = {part: rank for rank, part in self._communicators[name].items() if rank >= 0}
            return [ranks[at] for at in range(len(self._parts))], size
        return [None] * len(self._parts), None

    def _make_rank(self, at: int) -> RankEvents:
        part, rows = self._parts[at], _Rows()
        ranks, world_size = self._rank_parts()
        self._add_device_work(part, rows)
        self._add_calls(part, rows)
        self._add_ranges(part, rows)
        described = self._add_collectives(part, rows, ranks, world_size)
        numbers = {name: np.concatenate(pieces) for name, pieces in rows.pieces.items()}
        numbers["start_ns"] = numbers["start_ns"] + self._origin_ns
        return RankEvents(
            numbers=numbers,
            categories=rows.categories,
            names=rows.names,
            arguments=described,
            rank=ranks[at],
            world_size=world_size,
            devices=tuple(self._database.read_texts("TARGET_INFO_GPU", "id", "name").values())[:1],
            host=self._find_host(),
            has_nccl=any(name.startswith("nccl") for name in rows.names),
        )

    def _find_host(self) -> str:
        texts = self._database.read_texts("TARGET_INFO_SYSTEM_ENV", ROW, "name")
        values = self._database.read_texts("TARGET_INFO_SYSTEM_ENV", ROW, "value")
        return next((values.get(row, "") for row, name in texts.items() if name == "Hostname"), "")[
            :_MAX_NAME
        ]

    def _add_device_work(self, part: _Part, rows: _Rows) -> None:
        for table, category in (
            (self._kernels, "kernel"),
            (self._copies, "gpu_memcpy"),
            (self._fills, "gpu_memset"),
        ):
            own = (table["globalPid"] == part.process) & (table["deviceId"] == part.device)
            own &= _have_times(table)
            found = {name: values[own] for name, values in table.items()}
            if category == "kernel":
                text = np.where(found["demangledName"] != ABSENT, found["demangledName"], found["shortName"])
                names = [self._texts.get(number, "unknown kernel") for number in text.tolist()]
            elif category == "gpu_memcpy":
                names = [f"Memcpy {_COPY_NAMES.get(kind, 'Unknown')}" for kind in found["copyKind"].tolist()]
            else:
                names = ["Memset (Device)"] * len(found["start"])
            extra = {} if category == "kernel" else {"bytes": found["bytes"]}
            rows.add(
                category,
                names,
                start_ns=found["start"],
                duration_ns=found["end"] - found["start"],
                process=found["deviceId"],
                thread=found["streamId"],
                stream=found["streamId"],
                correlation=found["correlationId"],
                **extra,
            )

    def _add_calls(self, part: _Part, rows: _Rows) -> None:
        own = _is_of(self._calls["globalTid"], part) & _have_times(self._calls)
        found = {name: values[own] for name, values in self._calls.items()}
        names = [_VERSION.sub("", self._texts.get(number, "")) for number in found["nameId"].tolist()]
        rows.add(
            ["cuda_runtime" if name.startswith("cuda") else "cuda_driver" for name in names],
            names,
            start_ns=found["start"],
            duration_ns=found["end"] - found["start"],
            process=found["globalTid"] >> _THREAD_BITS & _THREAD_MASK,
            thread=found["globalTid"] & _THREAD_MASK,
            correlation=found["correlationId"],
        )

    def _add_ranges(self, part: _Part, rows: _Rows) -> None:
        """Add the program's ranges: operators of emit_nvtx, steps under one name, and the rest as it is."""
        table = self._nvtx
        own = _is_of(table["globalTid"], part) & _have_times(table)
        found = {name: values[own] for name, values in table.items()}
        order = np.argsort(found["start"], kind="stable")
        found = {name: values[order] for name, values in found.items()}
        categories, names, kept = [], [], []
        numbers: dict[tuple[int, str], Any] = defaultdict(count)
        for at, (row, text, thread) in enumerate(
            zip(*(found[name].tolist() for name in (ROW, "textId", "globalTid")), strict=True)
        ):
            name = self._nvtx_texts.get(row) or self._texts.get(text, "")
            if not name or name in KNOWN:
                continue
            operator = _OPERATOR.fullmatch(name)
            step = _STEP.fullmatch(name.strip())
            if step is not None:
                name = f"Iteration {step[1]}"
            elif _REPEATED_STEP.fullmatch(name.strip()):
                name = f"Iteration {next(numbers[thread, name])}"
            kept.append(at)
            categories.append("cpu_op" if operator is not None else "user_annotation")
            names.append(operator["name"] if operator is not None else name)
        rows.add(
            categories,
            names,
            start_ns=found["start"][kept],
            duration_ns=(found["end"] - found["start"])[kept],
            process=found["globalTid"][kept] >> _THREAD_BITS & _THREAD_MASK,
            thread=found["globalTid"][kept] & _THREAD_MASK,
        )

    def _add_collectives(
        self, part: _Part, rows: _Rows, ranks: Sequence[int | None], world_size: int | None
    ) -> dict[int, dict[str, Any]]:
        """Add NCCL's calls as a Kineto trace has them; return the arguments of each row."""
        arguments: dict[int, dict[str, Any]] = {}
        size = world_size or len(self._parts)
        for thread, ranges in self._nccl.items():
            if part.process not in (ABSENT, thread & ~_THREAD_MASK):
                continue
            calls, batches = find_calls(ranges, size if self._has_one_size() else None)
            first = len(rows.names)
            arguments |= {first + at: self._describe(call, ranks) for at, call in enumerate(calls)}
            spans = [(call.start_ns, call.end_ns) for call in calls]
            spans += [(batch.start_ns, batch.end_ns) for batch in batches]
            times = np.array(spans, dtype=np.int64).reshape(-1, 2)
            rows.add(
                ["cpu_op"] * len(calls) + ["user_annotation"] * len(batches),
                [_RECORD] * len(calls) + [_BATCH] * len(batches),
                start_ns=times[:, 0],
                duration_ns=times[:, 1] - times[:, 0],
                process=np.full(len(times), thread >> _THREAD_BITS & _THREAD_MASK),
                thread=np.full(len(times), thread & _THREAD_MASK),
            )
        return arguments

    def _has_one_size(self) -> bool:
        """Return True if all communicators have all ranks: there are two ranks, or all say so."""
        sizes = {found[-1] for found in self._communicators.values()}
        return len(sizes) == 1 if sizes else len(self._parts) == 2

    def _describe(self, call: Call, ranks: Sequence[int | None]) -> dict[str, Any]:
        payload = call.payload
        found: dict[str, Any] = {"Collective name": call.collective}
        members = self._communicators.get(payload.communicator or "")
        size = payload.bytes
        if call.is_per_peer and size is not None:
            size = size * members[-1] if members else None
        if size is not None:
            scattered = call.collective == "reduce_scatter"
            found |= {"dtype": BYTES_DTYPE, "Out msg nelems" if scattered else "In msg nelems": size}
        if payload.communicator is not None:
            found["Process Group Name"] = f"comm {payload.communicator}"
        if members:
            found["Group size"] = members[-1]
            known = [ranks[members[rank]] for rank in range(members[-1]) if rank in members]
            if len(known) == members[-1] and None not in known:
                found["Process Group Ranks"] = known
                if payload.peer is not None and payload.peer < len(known):
                    key = {"send": "Dst Rank", "recv": "Src Rank"}.get(call.collective, "Rank")
                    found[key] = known[payload.peer] if key != "Rank" else payload.peer
        return found


def _have_times(table: Mapping[str, Int64s]) -> Mask:
    """Mark the rows with a start and an end after it."""
    found: Mask = (table["start"] >= 0) & (table["end"] >= table["start"]) & (table["end"] <= _MAX_TIME_NS)
    return found


def _is_of(threads: Int64s, part: _Part) -> Mask:
    """Mark the threads of a process."""
    if part.process == ABSENT:
        return np.ones(len(threads), dtype=np.bool_)
    is_own: Mask = (threads & ~np.int64(_THREAD_MASK)) == part.process
    return is_own
