"""Read the text of ncclras; prefixes that a log or a launcher puts before its lines do not matter."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from zprof.base.errors import BadInput
from zprof.collectors.read.ras.report import ALL_KINDS, Process, RasCommunicator, RasRank, RasReport

_MAX_SIZE, _MAX_COMMUNICATORS, _MAX_NUMBER = 1 << 20, 1 << 16, 1 << 62
#: Of 16,000 ranks in 100 communicators each there are 1.6 million places.
_MAX_PLACES = 4 << 20
_START = re.compile(r"NCCL version \S{1,40} compiled with CUDA|\bJob summary$|Communicators\.\.\.")
_WARNINGS = re.compile(r"\bWarnings$")
_TOTAL = re.compile(r"\(total\)")
_NUMBERS = re.compile(r"(?:\s{1,12}\d{1,9}){3,5}$")
_GROUP = re.compile(
    r"\s(?P<group>\d{1,7}) +(?P<comms>\d{1,7}) +\d{1,7} +[\d-]{1,15} +(?P<size>\d{1,7}) +\d{1,7} +"
    r"(?:NOCOMM|UNKNOWN|INIT|RUNNING|FINALIZE|ABORT) +(?P<errors>[A-Z,]{2,30})$"
)
_PROCESSES = re.compile(r"(?:^|[\s:])(?:INCOMPLETE|DEAD)$")
_COMMUNICATOR = re.compile(
    r"#(?P<group>\d{1,7})-(?P<number>\d{1,7}) \((?P<hash>[0-9a-f]{1,16})\) (?:INCOMPLETE|ERROR|MISMATCH)$"
)
_PROCESS = re.compile(r"Process (?P<pid>\d{1,10}) on node (?P<host>\S{1,64}) managing GPUs? ")
_COUNTED = re.compile(r"ranks have different (?P<kind>\w{1,30}) operation counts$")
_MISSING = re.compile(r"Missing communicator data from \d{1,7} ranks?$")
_MISSING_RANKS = re.compile(r"The missing ranks?: (?P<ranks>[\d, ]{1,2000})$")
#: What several ranks have in common; the ranks follow one by one, or are not listed.
_BLOCK = re.compile(
    r"(?P<number>\d{1,7}) ranks (?:have (?:launched up to operation (?P<count>\d{1,18})|"
    r"(?P<none>not launched any operations)|status (?P<status>[A-Z]{4,10}))|reported (?P<error>[\w ]{1,40}))$"
)
_RANK = re.compile(
    r"Rank (?P<rank>\d{1,7})(?: has launched up to operation (?P<count>\d{1,18})|"
    r"(?P<none> has not launched any operations)| has status (?P<status>[A-Z]{4,10})|"
    r" reported (?P<error>[\w ]{1,40}))? -- (?:GPU (?P<device>\d{1,4})(?: \(NVML (?P<nvml>\d{1,4})\))? "
    r"managed by process (?P<pid>\d{1,10}) on node (?P<host>\S{1,64})|\[process information not found\])$"
)
#: Words of older versions for what is now called otherwise.
_ALL = "collective"


def read_text(lines: Sequence[str]) -> Iterator[RasReport]:
    """Yield the reports in a text, in their order.

    Raises:
        BadInput: It names more communicators or ranks than any job has.
    """
    parser, seen = _Parser(), set[str]()
    for line in lines:
        start = _START.search(line)
        if start is not None:
            section = start[0].split()[0]
            if section in seen:
                yield parser.finish()
                parser, seen = _Parser(), set()
            seen.add(section)
        parser.read(line.rstrip())
    if seen or parser.communicators:
        yield parser.finish()


class _Communicator:
    """What the sections about one communicator say."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.processes: dict[int, Process] = {}
        self.missing: set[int] = set()
        #: Ranks of which a status is listed: some may not know the communicator any more.
        self.stated: set[int] = set()
        self.errors: dict[int, str] = {}
        #: By kind: ranks with a count, and how many other ranks have one.
        self.counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self.unlisted: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)

    def finish(self) -> RasCommunicator:
        """Return the communicator; a single count of unlisted ranks is that of all ranks not listed."""
        for kind, blocks in self.unlisted.items():
            left = set(range(self.size)) - self.counts[kind].keys() - self.missing - self.stated
            if len(blocks) == 1 and blocks[0][0] == len(left):
                self.counts[kind] |= dict.fromkeys(left, blocks[0][1])
        by_kind = {kind: counts for kind, counts in self.counts.items() if counts}
        known = {rank for counts in by_kind.values() for rank in counts}
        return RasCommunicator(
            name=self.name,
            size=self.size,
            ranks=tuple(
                RasRank(
                    rank=rank,
                    process=self.processes.get(rank),
                    counts={kind: counts[rank] for kind, counts in by_kind.items() if rank in counts},
                    error=self.errors.get(rank, ""),
                    is_missing=rank in self.missing,
                )
                for rank in sorted(known | self.missing | self.stated | self.errors.keys())
            ),
        )


class _Parser:
    """Reads the lines of one report."""

    def __init__(self) -> None:
        self.communicators: dict[str, _Communicator] = {}
        self._sizes: dict[int, int] = {}
        #: Sizes of the communicators that differ by the table, which "Warnings" ends.
        self._differing, self._has_whole_table = set[int](), False
        self._world_size: int | None = None
        self._silent: list[Process] = []
        self._is_in_processes = False
        #: Ranks of all communicators together.
        self._places = 0
        self._current: _Communicator | None = None
        self._kind = ALL_KINDS
        #: What the ranks listed next have in common, and how many more of them are to come.
        self._common: dict[str, str | int] = {}
        self._is_total = False

    def read(self, line: str) -> None:
        """Read one line; a line that is of no known form is skipped."""
        if self._is_total and (match := _NUMBERS.search(line)):
            self._world_size = int(match[0].split()[-1])
        self._is_total = _TOTAL.search(line) is not None
        if match := _GROUP.search(line):
            self._sizes[int(match["group"])] = min(int(match["size"]), _MAX_SIZE)
            if "MISMATCH" in match["errors"]:
                self._differing.add(self._sizes[int(match["group"])])
        elif _WARNINGS.search(line):
            self._has_whole_table = bool(self._sizes)
        elif match := _COMMUNICATOR.search(line):
            self._open(match)
        elif match := _PROCESSES.search(line):
            self._is_in_processes, self._current = True, None
        elif self._is_in_processes and (match := _PROCESS.search(line)):
            self._silent.append(Process(host=match["host"], number=int(match["pid"])))
        elif self._current is not None:
            self._read_of_communicator(self._current, line)

    def finish(self) -> RasReport:
        """Return the report."""
        sizes = set(self._sizes.values())
        return RasReport(
            communicators=tuple(each.finish() for each in self.communicators.values()),
            world_size=self._world_size,
            silent=tuple(self._silent),
            level_sizes=frozenset(sizes - self._differing if self._has_whole_table else ()),
        )

    def _open(self, match: "re.Match[str]") -> None:
        name, size = match["hash"], self._sizes.get(int(match["group"]), 0)
        if name not in self.communicators:
            self._places += size
        if len(self.communicators) >= _MAX_COMMUNICATORS or self._places > _MAX_PLACES:
            raise BadInput("more communicators than any job has", hint="pass what one ncclras wrote")
        self._is_in_processes = False
        self._common, self._kind = {}, ALL_KINDS
        self._current = self.communicators.setdefault(name, _Communicator(name, size))

    def _read_of_communicator(self, current: _Communicator, line: str) -> None:
        if match := _RANK.search(line):
            self._read_rank(current, match)
        elif match := _BLOCK.search(line):
            self._common = _read_common(match)
            if "count" in self._common:
                number = int(match["number"])
                current.unlisted[self._kind].append((number, int(self._common["count"])))
        elif match := _COUNTED.search(line):
            self._kind, self._common = ALL_KINDS if match["kind"] == _ALL else match["kind"], {}
        elif _MISSING.search(line):
            self._common = {"missing": 1}
        elif match := _MISSING_RANKS.search(line):
            current.missing |= {int(each) for each in match["ranks"].replace(",", " ").split()}

    def _read_rank(self, current: _Communicator, match: "re.Match[str]") -> None:
        rank, own = int(match["rank"]), _read_common(match)
        if not own and "count" in self._common:
            self._take_from_block(current, int(self._common["count"]))
        said = own or self._common
        if match["pid"] is not None:
            device = int(match["nvml"] or match["device"])
            current.processes[rank] = Process(host=match["host"], number=int(match["pid"]), device=device)
        if "count" in said:
            current.counts[self._kind][rank] = int(said["count"])
        if "status" in said:
            current.stated.add(rank)
        if "error" in said:
            current.errors[rank] = str(said["error"])
        if "missing" in said:
            current.missing.add(rank)

    def _take_from_block(self, current: _Communicator, count: int) -> None:
        """Note that a rank of the last block is listed: a block whose ranks are all listed has none left."""
        blocks = current.unlisted[self._kind]
        if blocks and blocks[-1][1] == count:
            left = blocks.pop()[0] - 1
            if left:
                blocks.append((left, count))


def _read_common(match: "re.Match[str]") -> dict[str, str | int]:
    if match["count"] is not None:
        return {"count": min(int(match["count"]), _MAX_NUMBER)}
    if match["none"] is not None:
        return {"count": 0}
    if match["status"] is not None:
        return {"status": match["status"]}
    return {} if match["error"] is None else {"error": match["error"]}
