"""Read the JSON of ``ncclras -f json``."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from zprof.base.errors import BadInput
from zprof.collectors.read.ras.report import Process, RasCommunicator, RasRank, RasReport

_Number = Annotated[int, Meta(ge=-1, lt=1 << 62)]
_Size = Annotated[int, Meta(ge=0, le=1 << 20)]
_Name = Annotated[str, Meta(max_length=256)]
#: ncclResult_t: success, and an operation in progress.
_FINE = (0, 7)
_ERRORS = (
    "",
    "Unhandled CUDA error",
    "System error",
    "Internal error",
    "Invalid argument",
    "Invalid usage",
    "Remote process error",
)


class _Status(Struct, frozen=True):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False

    @property
    def error(self) -> str:
        code = next((each for each in (self.init_state, self.async_error) if each not in _FINE), 0)
        return _ERRORS[code] if 0 <= code < len(_ERRORS) else "Unexpected error"


class _Reach(Struct, frozen=True):
    unresponsive: bool = True
    considered_dead: bool = False

    @property
    def has_answered(self) -> bool:
        return not (self.unresponsive or self.considered_dead)


class _Place(Struct, frozen=True):
    rank: _Size
    host: _Name = ""
    pid: _Number = -1
    cuda_dev: _Number = -1
    nvml_dev: _Number = -1

    @property
    def process(self) -> Process:
        return Process(host=self.host, number=self.pid, device=self.nvml_dev)


class _Rank(_Place, frozen=True):
    status: _Status = _Status()
    collective_counts: dict[_Name, _Number] = {}


class _MissingRank(_Place, frozen=True):
    status: _Reach = _Reach()


class _Communicator(Struct, frozen=True):
    hash: _Name
    size: _Size
    ranks: list[_Rank]
    missing_ranks: list[_MissingRank] = []


class _Report(Struct, frozen=True):
    nccl_version: _Name
    communicators: list[_Communicator]
    timestamp: _Name = ""


def read_structured(content: bytes) -> Iterator[RasReport]:
    """Yield the reports in a file: one JSON document, or several one after the other.

    Raises:
        BadInput: It is damaged.
    """
    decoder = msgspec.json.Decoder(_Report)
    try:
        for document in _split_documents(content):
            yield _make_report(decoder.decode(document))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadInput(f"damaged JSON of ncclras ({error})", hint="pass what ncclras -f json wrote") from None


def _split_documents(content: bytes) -> Iterator[bytes]:
    """Yield documents: NCCL writes the braces of a document, and of nothing else, at the start of a line."""
    begin = 0
    while (end := content.find(b"\n}\n", begin)) >= 0:
        yield content[begin : end + 3]
        begin = end + 3
    if content[begin:].strip():
        yield content[begin:]


def _make_report(read: _Report) -> RasReport:
    missing = [rank for each in read.communicators for rank in each.missing_ranks]
    devices = {rank.process for each in read.communicators for rank in (*each.ranks, *each.missing_ranks)}
    return RasReport(
        communicators=tuple(_make_communicator(each) for each in read.communicators),
        world_size=len(devices),
        time=read.timestamp,
        silent=tuple(dict.fromkeys(rank.process for rank in missing if not rank.status.has_answered)),
        is_complete=True,
    )


def _make_communicator(read: _Communicator) -> RasCommunicator:
    ranks = [
        RasRank(
            rank=each.rank,
            process=each.process,
            counts=each.collective_counts,
            error=each.status.error,
        )
        for each in read.ranks
    ]
    ranks += [
        RasRank(rank=each.rank, process=each.process, is_missing=not each.status.has_answered)
        for each in read.missing_ranks
    ]
    ranks.sort(key=lambda each: each.rank)
    return RasCommunicator(name=read.hash.removeprefix("0x"), size=read.size, ranks=tuple(ranks))
