"""One answer of NCCL's RAS, the same from its text and its JSON.

Forms read: text of NCCL 2.24 to 2.30 and JSON of 2.28.7 to 2.30 (src/ras/client_support.cc; the guide's page
"RAS"). The text names only ranks that differ from most others, and says nothing of communicators without a
difference. NCCL counts operations when the host launches them: a count does not say that any has finished.
"""

from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct

#: Count of all kinds together: NCCL before 2.26 does not tell them apart.
ALL_KINDS = ""


class Process(Struct, frozen=True, kw_only=True):
    """A process of the job, and the device that a rank uses in it (its NVML number, if known)."""

    host: str
    number: int
    device: int = -1


class RasRank(Struct, frozen=True, kw_only=True):
    """A rank of a communicator, numbered in it.

    ``counts``: operations that it has launched, by NCCL's name of the kind; empty if unknown.
    ``is_missing``: its process did not answer. ``error``: what NCCL reports for it.
    """

    rank: int
    process: Process | None = None
    counts: Mapping[str, int] = {}
    error: str = ""
    is_missing: bool = False


class RasCommunicator(Struct, frozen=True, kw_only=True):
    """A communicator; ``name``: its hash. ``ranks`` has all ranks of which anything is known."""

    name: str
    size: int
    ranks: tuple[RasRank, ...]


class RasReport(Struct, frozen=True, kw_only=True):
    """One answer. ``world_size``: GPUs of the job, None if it is not stated.

    ``time``: when it was written ("2026-05-05 06:16:47"), empty if it is not stated. ``silent``: processes
    that did not answer, or that RAS has given up. ``is_complete``: it lists every communicator and every rank
    (JSON), not only those that differ. ``level_sizes``: sizes of communicators of which the table of a text
    says that no counts differ.
    """

    communicators: tuple[RasCommunicator, ...]
    world_size: int | None = None
    time: str = ""
    silent: tuple[Process, ...] = ()
    is_complete: bool = False
    level_sizes: frozenset[int] = frozenset()

    def list_counts(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return the launched operations of each rank, by communicator and kind."""
        counts: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for communicator in self.communicators:
            for rank in communicator.ranks:
                for kind, count in rank.counts.items():
                    counts[communicator.name, kind][rank.rank] = count
        return dict(counts)
