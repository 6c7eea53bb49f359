"""Define findings: a claim with cause, evidence, saving range, confidence, fix and a way to disprove it.

``python -m docs.tools.finding_index`` writes the index of all causes from their records.
"""

from enum import StrEnum
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

#: Families of causes by the prefix of their ids, in order.
FAMILIES = {
    "ZP1": "Measurement",
    "ZP2": "Memory",
    "ZP3": "Waiting",
    "ZP4": "Transfer and volume",
    "ZP5": "Host and device",
    "ZP6": "Hang",
}


#: Values of severities and confidences, lowest first.
LEVELS = ("low", "medium", "high")


class Severity(StrEnum):
    """Importance of a finding."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Confidence(StrEnum):
    """Certainty of a finding."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


def cap_confidence(confidence: Confidence, limit: Confidence) -> Confidence:
    """Return the lower of the two."""
    return min(confidence, limit, key=LEVELS.index)


class SavingNote(StrEnum):
    """Reason why the saving of a finding differs from the range of the played step."""

    #: The step played without the cause takes as long.
    GAINS_NOTHING = "gains_nothing"
    #: It is wider by the difference between two recordings of the same job.
    STEP_NOISE = "step_noise"
    #: It is limited to the time from which it is taken.
    LIMITED_TO_LOSS = "limited_to_loss"
    #: Another finding claims part of the same time.
    CLAIMED_BY_OTHERS = "claimed_by_others"
    #: Another finding is a stall that a host running ahead would hide: without the stall, the fix saves
    #: nothing.
    EXPOSES_A_STALL = "exposes_a_stall"


class Evidence(Struct, frozen=True, kw_only=True):
    """One measured fact behind a claim; ``unit``: ns, bytes, bytes_per_s, count, ratio, times (a factor).

    Programs identify it by ``key``; ``what`` describes it for readers.
    """

    key: str
    what: str
    value: int | float  # integers stay integers
    unit: str
    rank: int | None = None


class SourceLocation(Struct, frozen=True, kw_only=True):
    """A line of the user's program: ``file`` is relative to the program's working folder if it is inside.

    ``line`` is the start of the function if a trace contains only that.
    """

    file: str
    line: int
    function: str


class Finding(Struct, frozen=True, kw_only=True):
    """A problem, the evidence for it, its cost and its fix; ``zprof explain`` has all causes.

    ``saving_ns`` is a range per step that never exceeds the ledger term that the finding claims;
    ``saving_notes`` are the reasons why it differs from the saving of the played step, in order.
    ``saving_bytes`` is the range by which the memory of the largest rank would shrink; None if the finding is
    not about memory. ``change_ns``: range of the additional cost per step over the baseline; None without a
    baseline. ``location`` is the line of the cause, None if it is unknown or not a single line.
    """

    id: str
    cause: str
    severity: Severity
    sentence: str
    evidence: tuple[Evidence, ...]
    saving_ns: tuple[int, int]
    confidence: Confidence
    fix: str
    disprove: str
    doc: str
    saving_bytes: tuple[int, int] | None = None
    location: SourceLocation | None = None
    saving_notes: tuple[SavingNote, ...] = ()
    change_ns: tuple[int, int] | None = None

    @property
    def is_hang(self) -> bool:
        """Return True if it explains why a job is stuck."""
        return self.id.startswith("ZP6")

    @property
    def is_about_recording(self) -> bool:
        """Return True if it is about the overhead of the recording itself."""
        return self.id.startswith("ZP1")

    @property
    def invalidates_times(self) -> bool:
        """Return True if the times of the run cannot be trusted."""
        return self.is_about_recording and self.severity is Severity.HIGH


class IndexEntry(Struct, frozen=True, kw_only=True):
    """Facts on a cause that are known without loading its file; ``needs``: what a run must have for it."""

    id: str
    name: str
    meaning: str
    needs: tuple[str, ...]


@cache
def read_index() -> tuple[IndexEntry, ...]:
    """Return all causes, by id."""
    text = (resources.files("zprof") / "findings" / "index.json").read_bytes()
    return tuple(msgspec.json.decode(text, type=list[IndexEntry]))
