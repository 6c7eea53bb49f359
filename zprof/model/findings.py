"""Define findings: a claim with cause, evidence, saving range, confidence, fix and a way to disprove it.

The index of all causes is written by ``python -m docs.tools.finding_index`` from their records.
"""

from enum import StrEnum
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

#: Families of causes by the start of their ids, in order.
FAMILIES = {
    "ZP1": "Measurement",
    "ZP2": "Memory",
    "ZP3": "Waiting",
    "ZP4": "Transfer and volume",
    "ZP5": "Host and device",
    "ZP6": "Hang",
}


#: Values of severities and confidences, the lowest first.
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
    """Reason why the saving of a finding is not the range of the played step alone."""

    #: The step played without the cause takes as long.
    GAINS_NOTHING = "gains_nothing"
    #: It is wider by the difference of two recordings of the same job.
    STEP_NOISE = "step_noise"
    #: It is no more than the time that it is taken from.
    LIMITED_TO_LOSS = "limited_to_loss"
    #: Another finding claims part of the same time.
    CLAIMED_BY_OTHERS = "claimed_by_others"
    #: Another finding is a stall that a host running ahead would hide: without the stall, this saves nothing.
    EXPOSES_A_STALL = "exposes_a_stall"


class Evidence(Struct, frozen=True, kw_only=True):
    """One measured fact behind a claim; ``unit``: ns, bytes, bytes_per_s, count, ratio, times (a factor).

    ``key`` identifies it for programs, ``what`` describes it for readers.
    """

    key: str
    what: str
    value: int | float  # a whole number stays one
    unit: str
    rank: int | None = None


class SourceLocation(Struct, frozen=True, kw_only=True):
    """A line of the user's program: ``file`` is relative to the program's working folder if it lies in it.

    ``line`` is where the function starts if a trace names only that.
    """

    file: str
    line: int
    function: str


class Finding(Struct, frozen=True, kw_only=True):
    """A problem, the evidence for it, its cost and its fix; ``zprof explain`` has all causes.

    ``saving_ns`` is a range per step that never exceeds the ledger term that the finding claims;
    ``saving_notes`` are the reasons why it is not that of the step played without the cause, in order.
    ``saving_bytes`` is the range by which the memory of the largest rank would shrink; None if the finding is
    not about memory. ``change_ns``: range of what it costs more per step than in the baseline; None without a
    baseline. ``location`` is the line that the cause is in, None if it is unknown or not one line.
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
        """Return True if it says why a job is stuck."""
        return self.id.startswith("ZP6")

    @property
    def is_about_recording(self) -> bool:
        """Return True if it says what the recording itself adds."""
        return self.id.startswith("ZP1")

    @property
    def invalidates_times(self) -> bool:
        """Return True if the times of the run cannot be trusted."""
        return self.is_about_recording and self.severity is Severity.HIGH


class IndexEntry(Struct, frozen=True, kw_only=True):
    """What is known of a cause without loading its file; ``needs``: what a run must have for it."""

    id: str
    name: str
    meaning: str
    needs: tuple[str, ...]


@cache
def read_index() -> tuple[IndexEntry, ...]:
    """Return all causes, by id."""
    text = (resources.files("zprof") / "findings" / "index.json").read_bytes()
    return tuple(msgspec.json.decode(text, type=list[IndexEntry]))
