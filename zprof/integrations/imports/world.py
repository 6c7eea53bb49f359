"""What a run of imported traces says of the whole job, from what each file says of itself."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zprof.integrations.imports.names import RankedFile, is_rank, refuse_twice
from zprof.integrations.imports.work import RankFacts, Refusal
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.printable import printable, shorten
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.version import __version__

_MOST_TOLD = 20
#: A run is called by the first of these that any rank used.
_DEVICES = ("cuda", "hip", "mtia")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A file that could be read, and where its tables are."""

    position: int
    path: Path
    folder: Path
    facts: RankFacts

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, where the file states it."""
        size = self.facts.world_size
        return size if size and is_rank(size - 1) else None


class Reads:
    """The files that could be read, as they come.

    Files of two jobs, or two of one rank, are refused as soon as the second is there: the rest of a large
    folder need not be read for that.
    """

    def __init__(self) -> None:
        self._by_rank: dict[int, Read] = {}
        self._sized: Read | None = None
        self._all: list[Read] = []

    def add(self, read: Read) -> None:
        """One more.

        Raises:
            BadInput: it cannot be of one run with those that are there.
        """
        rank = read.facts.rank
        if rank is not None and is_rank(rank):
            other = self._by_rank.setdefault(rank, read)
            if other is not read:
                pair = sorted([other, read], key=lambda one: one.position)
                refuse_twice([RankedFile(rank=rank, path=one.path) for one in pair])
        if read.world_size is not None:
            self._sized = self._sized or read
            _refuse_other_size(self._sized, read)
        self._all.append(read)

    def in_order(self) -> list[Read]:
        """As their files were given."""
        return sorted(self._all, key=lambda read: read.position)


def run_manifest(
    reads: Mapping[int, Read], notes: Sequence[str], refused: Mapping[Path, Refusal]
) -> RunManifest:
    """The manifest of the run of these ranks.  Nothing of a trace's own metadata goes into it."""
    facts = [read.facts for read in reads.values()]
    backends = Counter(fact.backend for fact in facts if fact.backend)
    world_size, odd = _world(reads)
    return RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=world_size,
        backend=backends.most_common(1)[0][0] if backends else "unknown",
        device=next((name for name in _DEVICES if any(fact.device == name for fact in facts)), "cpu"),
        training=TrainingFacts(),
        run_id=f"import-{time.time_ns()}",
        source="trace",
        gaps=(*map(_guessed, notes), *odd, *_refusals(refused)),
    )


def _refuse_other_size(one: Read, other: Read) -> None:
    if one.world_size != other.world_size:
        raise BadInput(
            f"{one.path} and {other.path}: of jobs of {one.world_size} and of {other.world_size} ranks",
            hint="import the files of one job at a time",
        )


def _world(reads: Mapping[int, Read]) -> tuple[int, list[Gap]]:
    """How many ranks the job had, and what is odd about that."""
    stated = next((read.world_size for read in reads.values() if read.world_size), None)
    highest = max(reads) + 1
    if stated is not None and stated >= highest:
        return stated, []
    if stated is not None:
        reason = f"the traces state {stated} ranks, but one of them is of rank {highest - 1}"
    elif len(reads) == 1 and not any(read.facts.collectives for read in reads.values()):
        return highest, []  # one rank that talks to nobody: nothing suggests that there were more
    else:
        reason = f"no trace states how many ranks the job had: counted as {highest}, by the highest rank"
    remedy = "export traces after init_process_group and before destroy_process_group: they then state it"
    return highest, [Gap(what="world size", reason=reason, remedy=remedy)]


def _guessed(note: str) -> Gap:
    return Gap(what="ranks of the files", reason=note, remedy="put rank0, rank1, ... into the names")


def _refusals(refused: Mapping[Path, Refusal]) -> list[Gap]:
    """A gap for each file that could not be used, up to a number that can be read."""
    told = [
        Gap(
            what="file not imported",
            reason=f"{shorten(printable(path.name), 100)}: {refusal.reason}",
            remedy=refusal.hint or "copy the file again",
        )
        for path, refusal in list(refused.items())[:_MOST_TOLD]
    ]
    if len(refused) > _MOST_TOLD:
        reason = f"{len(refused) - _MOST_TOLD} more files cannot be used"
        told.append(Gap(what="file not imported", reason=reason, remedy="copy the files again"))
    return told
