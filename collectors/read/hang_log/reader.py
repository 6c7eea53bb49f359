"""Read logs as evidence: what the lines of each rank prove about each of its groups."""

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.collectors.read.hang_log.forms import GATHERS, KINDS, SCATTERS, UNSET_ELEMENTS
from zprof.collectors.read.hang_log.records import Record, RecordIterator
from zprof.model.findings import SourceLocation
from zprof.run.files import open_plain
from zprof.run.log_evidence import (
    DEFAULT_DESCRIPTION,
    DEFAULT_GROUP,
    Basis,
    LogEvidence,
    RankEnding,
    RankLines,
    Standing,
    is_default_group,
)

#: Number of ranks of the largest plausible job.
MAX_RANKS = 1 << 17
_MAX_RANK = MAX_RANKS - 1
#: Maximum number of ranks and groups; a larger log cannot belong to a single job.
_MAX_LINES = 100_000
_MAX_STACKS = 4096
#: Maximum number of records without a rank that wait for the end of their log.
_MAX_NAMELESS = 20_000
#: Number of a process's last calls per communicator that are kept.
_MAX_CALLS = 64
_TOO_MANY = f"more than {_MAX_LINES} ranks and groups in the logs"


class LogFile(Struct, frozen=True, kw_only=True):
    """A log; ``local_rank``: rank on its node by its folder (torchrun --log-dir), None if it has none."""

    path: Path
    local_rank: int | None = None


class LogReader:
    """Collects evidence from one log after the other."""

    def __init__(self) -> None:
        self._files = self._unread = self._skipped = 0
        self._speakers: set[int] = set()
        self._stuck: set[int] = set()
        self._timeouts: dict[_Speaker, list[tuple[_GroupName | None, Standing]]] = defaultdict(list)
        self._counters: dict[tuple[_Speaker, str], RankLines] = {}
        self._connections: set[_Speaker] = set()
        self._has_other_places = self._has_names = False
        self._places: dict[int, set[int]] = defaultdict(set)
        self._groups: dict[tuple[str, int], int] = {}
        self._descriptions: dict[str, str] = {}
        self._calls: dict[tuple[bytes, bytes, bytes], deque[_Call]] = {}
        self._communicators: dict[tuple[bytes, bytes, bytes], _Communicator] = {}
        self._endings: dict[int, RankEnding] = {}
        self._stacks: dict[int, tuple[SourceLocation, ...]] = {}

    def read(self, file: BinaryIO, local_rank: int | None = None) -> None:
        """Read one log.

        Raises:
            BadInput: it names more ranks and groups than any job has.
            OSError: it cannot be read.
        """
        self._files += 1
        records = RecordIterator(file)
        nameless: list[Record] = []
        speakers: set[int] = set()
        for record in records:
            said_by = record.list_speakers()
            speakers.update(said_by)
            if record.frames:
                # Only the first stack of a rank counts: its watchdog ends at the first failure.
                if said_by and len(self._stacks) < _MAX_STACKS:
                    self._stacks.setdefault(min(said_by[-1], _MAX_RANK), tuple(record.frames))
            elif record.is_evidence and record.is_of_rank and not said_by and len(nameless) < _MAX_NAMELESS:
                nameless.append(record)
            elif record.is_evidence:
                self._read_record(record, None)
            elif record.is_unread:
                self._unread += 1
            if len(self._counters) + len(self._timeouts) + len(self._calls) > _MAX_LINES:
                raise BadInput(_TOO_MANY, hint="pass the logs of one job")
        self._skipped += records.has_skipped
        # A line without a rank belongs to the only rank that writes to the log, or else to the rank of its
        # folder.
        owner = min(speakers) if len(speakers) == 1 else None if speakers else local_rank
        for record in nameless:
            self._read_record(record, owner if self._may_be_of(record, owner) else None)

    def _may_be_of(self, record: Record, owner: int | None) -> bool:
        """Return True unless the record's group rank contradicts all lines of its owner."""
        known = self._places.get(owner, set()) if owner is not None else set[int]()
        places = {_read_rank(token["work_rank"]) for token in record.tokens if token.lastgroup == "work_rank"}
        return not known or not places or bool(places & known)

    def finish(self) -> LogEvidence:
        """Return the combined evidence of all logs."""
        lines = [*self._join_timeouts()]
        if not self._has_names:
            # A group of torch 2.3 has only a number, which each process counts for itself.
            lines = [
                each
                if each.group == DEFAULT_GROUP or each.description or each.basis is Basis.CALL
                else replace(each, group="", group_rank=None)
                for each in lines
            ]
        if not lines:
            lines = [*self._list_calls()]
        sizes = _find_sizes(lines)
        stated = [communicator.size for communicator in self._communicators.values()]
        stated += [calls[-1].size for calls in self._calls.values()]
        possible = [size for size in stated if size <= MAX_RANKS]
        return LogEvidence(
            files=self._files,
            lines=tuple(sorted(lines, key=lambda each: (each.rank is None, each.rank or 0, each.group))),
            endings=tuple(self._endings.values()),
            speakers=tuple(sorted(self._speakers)),
            sizes=sizes,
            world_size=max(possible, default=None),
            unread=self._unread,
            skipped=self._skipped,
            stuck_watchdogs=tuple(sorted(self._stuck)),
            stacks=self._stacks,
        )

    def _read_record(self, record: Record, owner: int | None) -> None:
        """Apply the tokens in order: the speaker, its group, and the statement.

        ``owner``: the rank that writes if no token shows it.
        """
        rank = owner
        group: _GroupName | None = None
        work_rank: int | None = None
        process: tuple[bytes, bytes, int] | None = None
        for token in record.tokens:
            speaker = _Speaker(rank=rank, group=group, work_rank=work_rank)
            match token.lastgroup:
                case "speaker":
                    rank, group, work_rank = _read_rank(token["speaker"]), None, None
                    self._speakers.add(rank)
                case "pg_rank":
                    group = self._read_group(token, rank)
                case "work_rank":
                    work_rank = _read_rank(token["work_rank"])
                    self._has_other_places |= rank is not None and rank != work_rank
                    if rank is not None:
                        self._places[rank].add(work_rank)
                case "device":
                    process = (token["host"], token["pid"], int(token["device"]))
                case "t_timeout":
                    standing = _read_standing(token)
                    kept = self._timeouts[speaker.without_group if rank is not None else speaker]
                    if (group, standing) not in kept[-4:]:
                        kept.append((group, standing))
                case "c_end":
                    self._has_names |= token["c_detected"] is not None
                    if group is not None:
                        self._add_counters(speaker, group, _read_counters(token))
                case "s_end":
                    if group is not None:
                        self._add_counters(speaker, group, _read_signal(token))
                case "stuck":
                    if rank is not None:
                        self._stuck.add(rank)
                case "connection":
                    if rank is not None:
                        self._connections.add(speaker.without_group)
                case "o_size" if process is not None:
                    key = (process[0], process[1], token["o_comm"])
                    calls = self._calls.setdefault(key, deque(maxlen=_MAX_CALLS))
                    calls.append(_read_call(token, process[2]))
                case "n_size" | "n_id" if process is not None:
                    key = (process[0], process[1], token["n_comm"])
                    self._communicators[key] = _read_communicator(token)
                case "e_local":
                    self._add_ending(None, int(token["e_local"]), int(token["e_code"]))
                case "f_code":
                    self._add_ending(int(token["f_rank"]), int(token["f_local"]), int(token["f_code"]))

    def _read_group(self, token: "re.Match[bytes]", rank: int | None) -> "_GroupName":
        name = (token["pg_guid"] or token["pg_name"]).decode("utf-8", "replace")
        group = _GroupName(name=name, rank=_read_rank(token["pg_rank"]))
        description = token["pg_description"]
        if description:
            self._descriptions[name] = description.decode("utf-8", "replace")
        if rank is not None:
            self._groups[name, group.rank] = rank
        return group

    def _add_counters(self, speaker: "_Speaker", group: "_GroupName", lines: RankLines) -> None:
        """Keep a rank's statement about a group; a timeout in it proves more than an answer to a signal."""
        key = (speaker.without_work_rank, group.name)
        known = self._counters.get(key)
        if known is None:
            self._counters[key] = lines
            return
        is_newer = known.basis is Basis.SIGNAL or lines.basis is not Basis.SIGNAL
        self._counters[key] = replace(
            lines if is_newer else known,
            local_timeout=lines.local_timeout or known.local_timeout,
            signalled_by=known.signalled_by if lines.signalled_by is None else lines.signalled_by,
        )

    def _add_ending(self, rank: int | None, local_rank: int, code: int) -> None:
        known = self._endings.get(local_rank)
        if known is None or (known.rank is None and rank is not None):
            self._endings[local_rank] = RankEnding(rank=rank, local_rank=local_rank, exit_code=code)

    def _join_timeouts(self) -> Iterator[RankLines]:
        """Yield one record for each rank and group; timeouts do not name the group, but their counters do."""
        counters: dict[tuple[int | None, str, int | None], RankLines] = {}
        for (speaker, name), lines in self._counters.items():
            rank, group_rank = self._resolve(speaker)
            described = replace(
                lines,
                rank=rank,
                group=name,
                group_rank=group_rank,
                description=self._describe(name),
            )
            counters.setdefault((rank, name, group_rank if rank is None else None), described)
        alone: list[tuple[int | None, int | None, Standing]] = []
        for speaker, timeouts in self._timeouts.items():
            if self._has_other_places and speaker.rank is None and speaker.group is None:
                self._unread += len(timeouts)  # a rank of some group
                continue
            for group, standing in timeouts:
                rank, group_rank = self._resolve(replace(speaker, group=group or speaker.group))
                key = self._find_counters(counters, rank, group_rank, group, standing)
                if key is None:
                    alone.append((rank, group_rank, standing))
                    continue
                lines = counters.get(key) or self._make_lines(rank, group_rank, key[1])
                counters[key] = replace(lines, standing=standing, basis=Basis.TIMEOUT)
        yield from counters.values()
        yield from self._place_alone(alone, list(counters.values()))
        said = {key[0] for key in counters} | {rank for rank, _, _ in alone}
        for speaker in self._connections:
            if speaker.rank not in said:
                yield RankLines(rank=speaker.rank, group="", basis=Basis.CONNECTION)

    def _find_counters(
        self,
        counters: "Mapping[tuple[int | None, str, int | None], RankLines]",
        rank: int | None,
        group_rank: int | None,
        group: "_GroupName | None",
        standing: Standing,
    ) -> tuple[int | None, str, int | None] | None:
        """Return the record that a timeout belongs to; None if it cannot be determined."""
        own_rank = group_rank if rank is None else None
        if group is not None:
            return (rank, group.name, own_rank)
        fitting = [
            key
            for key, lines in counters.items()
            if key[0] == rank
            and (rank is not None or key[2] == own_rank)
            and lines.standing is not None
            and lines.standing.sequence == standing.sequence
        ]
        return fitting[0] if len(fitting) == 1 else None

    def _place_alone(
        self, alone: "Sequence[tuple[int | None, int | None, Standing]]", placed: Sequence[RankLines]
    ) -> Iterator[RankLines]:
        """Yield timeouts without counters, assigned to the only group in which others wait in the same
        operation.
        """
        groups: dict[Standing, set[str]] = defaultdict(set)
        for lines in placed:
            if lines.standing is not None and lines.standing.kind:
                groups[_forget_timeout(lines.standing)].add(lines.group)
        seen = {(lines.rank, lines.standing and _forget_timeout(lines.standing)) for lines in placed}
        for rank, group_rank, standing in alone:
            bare = _forget_timeout(standing)
            if (rank, bare) in seen:
                continue
            seen.add((rank, bare))
            fitting = groups.get(bare, set())
            name = next(iter(fitting)) if len(fitting) == 1 else ""
            lines = self._make_lines(rank, group_rank, name)
            yield replace(lines, standing=standing, basis=Basis.TIMEOUT)

    def _make_lines(self, rank: int | None, group_rank: int | None, name: str) -> RankLines:
        return RankLines(rank=rank, group=name, group_rank=group_rank, description=self._describe(name))

    def _describe(self, name: str) -> str:
        return self._descriptions.get(name, DEFAULT_DESCRIPTION if name == DEFAULT_GROUP else "")

    def _resolve(self, speaker: "_Speaker") -> tuple[int | None, int | None]:
        """Return a speaker's global rank, and its rank in the group that it mentions."""
        group = speaker.group
        if speaker.rank is not None:
            return speaker.rank, group.rank if group is not None else None
        if group is None:  # before torch 2.3 a line has nothing else
            return speaker.work_rank, None
        if is_default_group(group.name, self._describe(group.name)):
            return group.rank, group.rank
        return self._groups.get((group.name, group.rank)), group.rank

    def _list_calls(self) -> Iterator[RankLines]:
        """Yield a call of each process in each communicator: the first that differs, or else the last."""
        world_size = max((calls[-1].size for calls in self._calls.values()), default=0)
        is_one_host = len({host for host, _, _ in self._calls}) == 1
        named: dict[str, list[tuple[int | None, deque[_Call]]]] = defaultdict(list)
        for key, calls in self._calls.items():
            communicator, last = self._communicators.get(key), calls[-1]
            rank = communicator.rank if communicator is not None else None
            if rank is None and is_one_host and last.device < last.size:
                rank = last.device  # one host: the device has the rank's number
            has_id = communicator is not None and communicator.id
            name = communicator.id if has_id and communicator is not None else f"of {last.size} ranks"
            named[name].append((rank, calls))
        for name, members in named.items():
            differing = _find_differing_call([calls for _, calls in members])
            for rank, calls in members:
                call = next((each for each in calls if each.standing.sequence == differing), calls[-1])
                yield RankLines(
                    rank=rank if call.size == world_size else None,
                    group=name,
                    group_rank=rank,
                    description=f"communicator of {call.size} ranks",
                    standing=call.standing,
                    basis=Basis.CALL,
                )


class _GroupName(Struct, frozen=True):
    """A group by its name, and the rank of the speaker in it."""

    name: str
    rank: int


class _Speaker(Struct, frozen=True, kw_only=True):
    """Who wrote a line: the global rank, or else the rank in a group, or in whichever group came first."""

    rank: int | None
    group: _GroupName | None = None
    work_rank: int | None = None

    @property
    def without_group(self) -> "_Speaker":
        """The same rank, whatever group it mentions."""
        return _Speaker(rank=self.rank, work_rank=None if self.rank is not None else self.work_rank)

    @property
    def without_work_rank(self) -> "_Speaker":
        """The same rank and group."""
        return _Speaker(rank=self.rank, group=self.group)


class _Call(Struct, frozen=True, kw_only=True):
    """A call that NCCL logged; ``device`` is that of the process on its host."""

    standing: Standing
    size: int
    device: int


class _Communicator(Struct, frozen=True, kw_only=True):
    rank: int
    size: int
    id: str


def read_logs(files: Sequence[LogFile]) -> LogEvidence:
    """Return the combined evidence of the logs.

    Raises:
        BadInput: a log cannot be read, or the logs do not belong to a single job.
    """
    reader = LogReader()
    for log in files:
        try:
            with open_plain(log.path) as file:
                reader.read(file, log.local_rank)
        except OSError as error:
            raise BadInput(
                f"{log.path}: cannot be read ({error.strerror})", hint="pass readable files"
            ) from None
    return reader.finish()


def _find_differing_call(members: Sequence[Iterable[_Call]]) -> int | None:
    """Return the first number under which processes made different calls; a batch of calls shares one
    number.
    """
    called: dict[int, list[Standing]] = defaultdict(list)
    shared: set[int] = set()
    for calls in members:
        own = [call.standing for call in calls]
        numbers = [standing.sequence for standing in own]
        shared |= {number for number in numbers if numbers.count(number) > 1}
        for standing in own:
            called[standing.sequence].append(standing)
    return min(
        (number for number, each in called.items() if number not in shared and len(set(each)) > 1),
        default=None,
    )


def _read_rank(text: bytes) -> int:
    return min(int(text), _MAX_RANK)


def _read_standing(token: "re.Match[bytes]") -> Standing:
    name = token["t_kind"].decode("ascii", "replace")
    return Standing(
        sequence=int(token["t_sequence"]),
        kind=KINDS.get(name, name.lower()),
        inputs=_read_elements(token["t_inputs"]),
        outputs=_read_elements(token["t_outputs"]),
        timeout_ms=int(token["t_timeout"]),
    )


def _read_elements(text: bytes | None) -> int | None:
    count = None if text is None else int(text)
    return None if count is None or count >= UNSET_ELEMENTS else count


def _read_count(text: bytes) -> int:
    """Return a counter; -1 means none yet."""
    return max(0, min(int(text), (1 << 62)))


def _read_counters(token: "re.Match[bytes]") -> RankLines:
    sequence, completed = int(token["c_sequence"]), _read_count(token["c_completed"])
    # At the end of a line that a terminal cut, digits may be missing.
    is_whole = bool(token["c_end"]) or completed == sequence - 1
    return RankLines(
        rank=None,
        group="",
        standing=Standing(sequence=sequence),
        enqueued=_read_count(token["c_enqueued"]),
        completed=completed if is_whole else None,
    )


def _read_signal(token: "re.Match[bytes]") -> RankLines:
    return RankLines(
        rank=None,
        group="",
        enqueued=_read_count(token["s_enqueued"]),
        completed=_read_count(token["s_completed"]) if token["s_end"] else None,
        basis=Basis.SIGNAL,
        local_timeout=token["s_own"] is not None,
        signalled_by=None if token["s_rank"] is None else _read_rank(token["s_rank"]),
    )


def _read_call(token: "re.Match[bytes]", device: int) -> _Call:
    name = token["o_kind"].decode("ascii", "replace")
    elements = int(token["o_elements"])
    return _Call(
        standing=Standing(
            sequence=int(token["o_count"], 16), kind=KINDS.get(name, name.lower()), inputs=elements
        ),
        size=int(token["o_size"]),
        device=device,
    )


def _read_communicator(token: "re.Match[bytes]") -> _Communicator:
    return _Communicator(
        rank=_read_rank(token["n_rank"]),
        size=int(token["n_size"]),
        id=(token["n_id"] or b"").decode("ascii", "replace"),
    )


def _forget_timeout(standing: Standing) -> Standing:
    return replace(standing, timeout_ms=None)


def _find_sizes(lines: Sequence[RankLines]) -> dict[str, int]:
    """Return the sizes of groups that gathers and scatters state, where all agree."""
    stated: dict[str, set[int]] = defaultdict(set)
    for each in lines:
        if each.standing is None or not each.group or each.standing.kind not in {*GATHERS, *SCATTERS}:
            continue
        many, few = each.standing.outputs, each.standing.inputs
        if each.standing.kind in SCATTERS:
            many, few = few, many
        if few and many and not many % few and many // few <= MAX_RANKS:
            stated[each.group].add(many // few)
    return {name: next(iter(sizes)) for name, sizes in stated.items() if len(sizes) == 1}
