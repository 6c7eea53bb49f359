"""Split an Nsight export into ranks: one per process and device, with the events of a Kineto trace."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_CALL = ("start", "end", "globalTid", "correlationId", "nameId")
#: Lowest bits of a thread's id; the higher ones are the process.
_THREAD_BITS = 24
_THREAD_MASK = (1 << _THREAD_BITS) - 1
_VERSION = re.compile(r"_v\d+\Z", re.ASCII)
#: What torch.autograd.profiler.emit_nvtx appends to an operator's name.
_OPERATOR = re.compile(r"(?P<name>[^,]{1,400}), (?:seq = \d+, )?op_id = \d+.*", re.ASCII | re.DOTALL)
_STEP_WORDS = r"(?:train(?:ing)?[ _-]?)?(?:step|iteration|iter|batch)"
_STEP = re.compile(rf"{_STEP_WORDS}[ #:_=-]{{0,3}}(\d{{1,15}})", re.IGNORECASE | re.ASCII)
_REPEATED_STEP = re.compile(_STEP_WORDS, re.IGNORECASE | re.ASCII)
_MAX_RANKS, _MAX_NAME, _MAX_NAMES = 1024, 400, 1000
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


class _Communicator(Struct):
    """Number of ranks, and the part of the file that is each of them, as far as the file has them."""

    size: int
    parts: dict[int, int]


class NsightReader:
    """One export, and its ranks. Of the large tables only the rows of one rank are in memory at a time."""

    def __init__(self, database: NsightDatabase) -> None:
        self._database = database
        self._texts = database.read_texts("StringIds", "id", "value")
        self._parts = self._list_parts()
        epoch = database.read_numbers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"]
        self._origin_ns = int(epoch[0]) if len(epoch) and 0 < epoch[0] <= _MAX_TIME_NS else 0
        self._nccl = self._list_nccl_ranges()
        self._communicators = self._list_communicators()
        self._ranks, self._world_size = self._find_ranks()
        self._devices = tuple(database.read_texts("TARGET_INFO_GPU", "id", "name").values())[:1]
        self._host = self._find_host()

    def iterate_ranks(self) -> Iterator[RankEvents]:
        """Yield the events of each rank, by process and device."""
        yield from map(self._make_rank, range(len(self._parts)))

    def _list_parts(self) -> list[_Part]:
        """Return the processes that ran kernels, with their device.

        Raises:
            BadInput: No process ran kernels.
        """
        kernels = self._database.read_numbers(KERNELS, ("start", "end", "globalPid", "deviceId"))
        timed = _have_times(kernels)
        pairs = np.unique(np.stack((kernels["globalPid"][timed], kernels["deviceId"][timed])), axis=1)
        if not pairs.shape[1]:
            raise BadInput("it has no kernels", hint="profile with nsys profile --trace cuda,nvtx")
        if pairs.shape[1] > _MAX_RANKS:
            raise BadInput(f"it has kernels of {pairs.shape[1]} processes and devices", hint=HINT)
        parts = [_Part(process, device) for process, device in pairs.T.tolist()]
        return sorted(parts, key=lambda part: (part.device, part.process))

    def _list_nccl_ranges(self) -> dict[int, list[Range]]:
        """Return NCCL's ranges by global thread id."""
        where = self._select_names(KNOWN)
        if not where:
            return {}
        texts = self._database.read_texts(NVTX, ROW, "text", where)
        payloads = self._database.read_texts(NVTX, ROW, "jsonText", where)
        table = self._database.read_numbers(NVTX, _RANGE, where)
        found: dict[int, list[Range]] = defaultdict(list)
        for start, end, thread, text, row, payload in zip(
            *(table[name].tolist() for name in _RANGE), strict=True
        ):
            name = texts.get(row) or self._texts.get(text, "")
            if name in KNOWN and 0 <= start <= end <= _MAX_TIME_NS:
                json_text = payloads.get(row) or self._texts.get(payload, "")
                found[thread].append(Range(name=name, start_ns=start, end_ns=end, payload=json_text))
        return found

    def _select_names(self, names: Iterable[str]) -> str:
        """Return the condition on ranges that they have one of the names; empty if the file has none."""
        numbers = [number for number, text in self._texts.items() if text in names][:_MAX_NAMES]
        conditions = []
        if self._database.has(NVTX, "text"):
            words = ", ".join(f"'{name}'" for name in names)
            conditions.append(f'"text" IN ({words})')
        if numbers and self._database.has(NVTX, "textId"):
            conditions.append(f'"textId" IN ({", ".join(map(str, numbers))})')
        return " OR ".join(conditions)

    def _read_device_table(self, table: str, part: _Part, columns: Sequence[str]) -> dict[str, Int64s]:
        """Return the work of a process on its device."""
        known = {"globalPid": part.process, "deviceId": part.device}
        where = " AND ".join(
            f'"{column}" = {value}'
            for column, value in known.items()
            if value != ABSENT and self._database.has(table, column)
        )
        found = self._database.read_numbers(table, (*_ON_DEVICE, *columns), where)
        own = (found["globalPid"] == part.process) & (found["deviceId"] == part.device) & _have_times(found)
        return {name: values[own] for name, values in found.items()}

    def _read_host_table(self, table: str, part: _Part, columns: Sequence[str]) -> dict[str, Int64s]:
        """Return the rows of the threads of a process."""
        found = self._database.read_numbers(table, columns, self._select_threads(table, part))
        own = _is_of(found["globalTid"], part) & _have_times(found)
        return {name: values[own] for name, values in found.items()}

    def _select_threads(self, table: str, part: _Part) -> str:
        if part.process == ABSENT or not self._database.has(table, "globalTid"):
            return ""
        return f'"globalTid" BETWEEN {part.process} AND {part.process + _THREAD_MASK}'

    def _list_communicators(self) -> dict[str, _Communicator]:
        """Return the communicators by their id."""
        found: dict[str, _Communicator] = {}
        place = {part.process: at for at, part in enumerate(self._parts)}
        for thread, ranges in self._nccl.items():
            part = place.get(thread & ~_THREAD_MASK)
            for each in ranges:
                payload = read_payload(each.payload) if each.name in INITIALIZERS else None
                if part is None or payload is None or payload.communicator is None or not payload.ranks:
                    continue
                communicator = found.setdefault(payload.communicator, _Communicator(payload.ranks, {}))
                communicator.size = payload.ranks
                if payload.rank is not None:
                    communicator.parts[payload.rank] = part
        return found

    def _find_ranks(self) -> tuple[list[int | None], int | None]:
        """Return the global rank of each part, and the number of ranks; None if no communicator tells them.

        The world is the largest communicator that all parts of the file are in.
        """
        places = range(len(self._parts))
        whole = [
            each
            for each in self._communicators.values()
            if set(each.parts.values()) == set(places) and each.size >= len(places)
        ]
        if not whole:
            return [None] * len(places), None
        world = max(whole, key=lambda each: each.size)
        ranks = {part: rank for rank, part in world.parts.items()}
        return [ranks[at] for at in places], world.size

    def _make_rank(self, at: int) -> RankEvents:
        part, rows = self._parts[at], _Rows()
        self._add_device_work(part, rows)
        self._add_calls(part, rows)
        self._add_ranges(part, rows)
        described = self._add_collectives(part, rows)
        numbers = {name: np.concatenate(pieces) for name, pieces in rows.pieces.items()}
        numbers["start_ns"] = numbers["start_ns"] + self._origin_ns
        return RankEvents(
            numbers=numbers,
            categories=rows.categories,
            names=rows.names,
            arguments=described,
            rank=self._ranks[at],
            world_size=self._world_size,
            devices=self._devices,
            host=self._host,
            has_nccl=any(name.startswith("nccl") for name in rows.names),
        )

    def _find_host(self) -> str:
        names = self._database.read_texts("TARGET_INFO_SYSTEM_ENV", ROW, "name")
        values = self._database.read_texts("TARGET_INFO_SYSTEM_ENV", ROW, "value")
        host = next((values.get(row, "") for row, name in names.items() if name == "Hostname"), "")
        return host[:_MAX_NAME]

    def _add_device_work(self, part: _Part, rows: _Rows) -> None:
        for category, table, columns in (
            ("kernel", KERNELS, ("demangledName", "shortName")),
            ("gpu_memcpy", COPIES, ("bytes", "copyKind")),
            ("gpu_memset", FILLS, ("bytes",)),
        ):
            found = self._read_device_table(table, part, columns)
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
        found = self._read_host_table(CALLS, part, _CALL)
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
        found = self._read_host_table(NVTX, part, _RANGE)
        texts = self._database.read_texts(NVTX, ROW, "text", self._select_threads(NVTX, part))
        order = np.argsort(found["start"], kind="stable")
        found = {name: values[order] for name, values in found.items()}
        categories, names, kept = [], [], []
        numbers: dict[tuple[int, str], Any] = defaultdict(count)
        for at, (row, text, thread) in enumerate(
            zip(*(found[name].tolist() for name in (ROW, "textId", "globalTid")), strict=True)
        ):
            name = texts.get(row) or self._texts.get(text, "")
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

    def _add_collectives(self, part: _Part, rows: _Rows) -> dict[int, dict[str, Any]]:
        """Add NCCL's calls as a Kineto trace has them; return the arguments of each row."""
        arguments: dict[int, dict[str, Any]] = {}
        for thread, ranges in self._nccl.items():
            if part.process not in (ABSENT, thread & ~_THREAD_MASK):
                continue
            calls, batches = find_calls(ranges, self._find_size)
            first = len(rows.names)
            arguments |= {first + at: self._describe(call) for at, call in enumerate(calls)}
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

    def _find_size(self, communicator: str | None) -> int | None:
        """Return the ranks of a communicator; without payloads only two ranks are known to have one."""
        if communicator in self._communicators:
            return self._communicators[communicator].size
        return 2 if not self._communicators and len(self._parts) == 2 else None

    def _describe(self, call: Call) -> dict[str, Any]:
        payload = call.payload
        found: dict[str, Any] = {"Collective name": call.collective}
        communicator = self._communicators.get(payload.communicator or "")
        size = payload.bytes
        if call.is_per_peer and size is not None:
            size = size * communicator.size if communicator is not None else None
        if size is not None:
            scattered = call.collective == "reduce_scatter"
            found |= {"dtype": BYTES_DTYPE, "Out msg nelems" if scattered else "In msg nelems": size}
        if payload.communicator is not None:
            found["Process Group Name"] = f"comm {payload.communicator}"
        if communicator is not None:
            found["Group size"] = communicator.size
            known = [self._ranks[part] for _, part in sorted(communicator.parts.items())]
            if [*sorted(communicator.parts)] == [*range(communicator.size)] and None not in known:
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
