"""Turn the answers of NCCL's RAS into evidence: which ranks are behind, silent or failed."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.collectors.read.hang_log.forms import KINDS
from zprof.collectors.read.ras.report import ALL_KINDS, Process, RasCommunicator, RasRank, RasReport
from zprof.collectors.read.ras.structured import read_structured
from zprof.collectors.read.ras.text import read_text
from zprof.run.files import open_plain
from zprof.run.log_evidence import Basis, LogEvidence, RankHealth, RankLines, Standing

_MAX_FILE_BYTES = 256 << 20
_MAX_UNPLACED = 1 << 20


def add_reports(evidence: LogEvidence, paths: Sequence[Path]) -> LogEvidence:
    """Return the evidence with that of the answers in files: the last one, and what changed since the first.

    Raises:
        BadInput: A file is damaged or too large, or the answers are of several jobs.
    """
    reports = [report for path in paths for report in _read_file(path)]
    if not reports:
        return evidence
    if all(report.time for report in reports):
        reports.sort(key=lambda report: report.time)
    first, last = reports[0], reports[-1]
    _refuse_other_job(first, last)
    has_moved = _has_moved(first, last) if len(reports) > 1 else None
    world = _find_world(last)
    places = {rank.process: rank.rank for rank in world.ranks if rank.process} if world is not None else {}
    has_silent = any(rank.is_missing for each in last.communicators for rank in each.ranks)
    # Who waits for a silent process is behind elsewhere, so counts would accuse the victims.
    held = [] if has_silent else [each for each in last.communicators if _list_differing(each)]
    lines = tuple(
        lines for each in held for lines in _list_lines(each, places, is_world=_is_world(each, last))
    )
    health = tuple(_list_health(last, places))
    return replace(
        evidence,
        files=evidence.files + len(paths),
        lines=(*evidence.lines, *lines),
        sizes=evidence.sizes | {each.name: each.size for each in held if each.size},
        world_size=evidence.world_size or last.world_size,
        ras_reports=1 if has_moved is None else len(reports),
        health=health,
        is_moving=has_moved is True,
        unplaced=min(_MAX_UNPLACED, _count_unplaced(last, health)),
    )


def _read_file(path: Path) -> list[RasReport]:
    try:
        with open_plain(path) as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="pass readable files") from None
    if len(content) > _MAX_FILE_BYTES:
        raise BadInput(f"{path}: larger than what ncclras writes", hint="pass its output alone")
    try:
        if content.lstrip().startswith(b"{"):
            return list(read_structured(content))
        return list(read_text(content.decode("utf-8", "replace").splitlines()))
    except BadInput as error:
        raise BadInput(f"{path}: {error.message}", hint=error.hint) from None


def _refuse_other_job(first: RasReport, last: RasReport) -> None:
    """Refuse complete answers without a common communicator.

    Raises:
        BadInput: There is none.
    """
    names = [{each.name for each in report.communicators} for report in (first, last)]
    if first.is_complete and last.is_complete and all(names) and not names[0] & names[1]:
        raise BadInput("the answers of RAS have no communicator in common", hint="pass those of one job")


def _has_moved(first: RasReport, last: RasReport) -> bool | None:
    """Return True if an operation was launched between two answers, None if they do not tell.

    The text has only counts that differ between ranks: those that it lacks were equal, or it was cut.
    """
    before, after = first.list_counts(), last.list_counts()
    common = [
        (before[key][rank], after[key][rank])
        for key in before.keys() & after.keys()
        for rank in before[key].keys() & after[key].keys()
    ]
    if any(then != now for then, now in common):
        return True
    lacking = [
        other.is_complete or communicator.size in other.level_sizes
        for one, other, counts in ((first, last, after), (last, first, before))
        for communicator in one.communicators
        for kind in _list_differing(communicator)
        if (communicator.name, kind) not in counts
    ]
    if any(lacking):
        return True
    return None if lacking else False


def _list_differing(communicator: RasCommunicator) -> list[str]:
    """Return the kinds of which ranks have launched different numbers."""
    kinds = {kind for rank in communicator.ranks for kind in rank.counts}
    return [
        kind
        for kind in sorted(kinds)
        if len({rank.counts[kind] for rank in communicator.ranks if kind in rank.counts}) > 1
    ]


def _is_world(communicator: RasCommunicator, report: RasReport) -> bool:
    return report.world_size is not None and communicator.size == report.world_size


def _find_world(report: RasReport) -> RasCommunicator | None:
    """Return the communicator of all ranks, whose numbers are the global ranks; None if none is known."""
    return next((each for each in report.communicators if _is_world(each, report)), None)


def _list_lines(
    communicator: RasCommunicator, places: Mapping[Process, int], *, is_world: bool
) -> Iterator[RankLines]:
    """Yield how far each rank of a communicator is.

    If one kind differs, its operations are counted, as RAS counts them; else all operations together. A rank
    that has launched more than the first one that another rank lacks stands, for all that is known, in that.
    Nothing is said of a rank whose count of a kind that differs is unknown.
    """
    differing = _list_differing(communicator)
    known = [
        rank for rank in communicator.ranks if not rank.is_missing and rank.counts.keys() >= {*differing}
    ]
    shared = set[str]().union(*(rank.counts for rank in known)).intersection(*(rank.counts for rank in known))
    least = {kind: min(rank.counts[kind] for rank in known) for kind in sorted(shared)}
    base = least[differing[0]] if known and len(differing) == 1 else sum(least.values())
    for rank in known:
        own = [kind for kind in differing if rank.counts[kind] > least[kind]]
        kind = own[0] if len(own) == 1 and own[0] != ALL_KINDS else ""
        yield RankLines(
            rank=_find_rank(rank, places, is_world=is_world),
            group=communicator.name,
            group_rank=rank.rank,
            description=f"communicator of {communicator.size} ranks",
            standing=Standing(sequence=base + bool(own), kind=KINDS.get(kind, kind.lower())),
            basis=Basis.RAS,
        )


def _find_rank(rank: RasRank, places: Mapping[Process, int], *, is_world: bool) -> int | None:
    if is_world:
        return rank.rank
    return None if rank.process is None else places.get(rank.process)


def _list_health(report: RasReport, places: Mapping[Process, int]) -> Iterator[RankHealth]:
    """Yield what is known of the process of each rank; the worst of its communicators counts."""
    by_rank: dict[int, RankHealth] = {}
    for communicator in report.communicators:
        for rank in communicator.ranks:
            place = _find_rank(rank, places, is_world=_is_world(communicator, report))
            if place is None:
                continue
            process = rank.process or Process(host="", number=-1)
            known = by_rank.get(place, RankHealth(rank=place, process=process.number, host=process.host))
            by_rank[place] = replace(
                known,
                is_unreachable=known.is_unreachable or rank.is_missing,
                error=known.error or rank.error,
            )
    yield from (by_rank[rank] for rank in sorted(by_rank))


def _count_unplaced(report: RasReport, health: Sequence[RankHealth]) -> int:
    """Return the number of unreachable processes whose ranks are not known."""
    placed = {(each.host, each.process) for each in health if each.is_unreachable}
    return len({(each.host, each.number) for each in report.silent} - placed)
