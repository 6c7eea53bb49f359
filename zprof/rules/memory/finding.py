"""What all memory findings share: when they are worth saying, how severe and how sure they are."""

from collections.abc import Sequence

from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Evidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.memory.largest import Largest
from zprof.rules.rule import finding, not_tested, severity_of

#: A change that frees less than this, of the peak or at all, is not worth a line.
_WORTH_RATIO = 0.01
_WORTH_BYTES = 1 << 20
#: Of the bytes spoken of, what rests on rules about stacks and sizes: from here on nobody can be sure.
_GUESSED_RATIO = 0.10
_MOSTLY_GUESSED_RATIO = 0.50

_ORDER = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


def worth(saving_bytes: float, big: Largest) -> bool:
    """Whether so many bytes are worth a finding: 1 % of the peak, and 1 MiB."""
    return saving_bytes >= max(_WORTH_BYTES, _WORTH_RATIO * big.peak_bytes)


def at_most(confidence: Confidence, limit: Confidence) -> Confidence:
    """The lower of the two."""
    return min(confidence, limit, key=_ORDER.index)


def supported(confidence: Confidence, big: Largest, weak_ratio: float) -> Confidence:
    """The confidence that the recording supports.

    Tenants that rest on rules, and a peak that is an upper bound, allow no certainty.
    """
    if weak_ratio > _MOSTLY_GUESSED_RATIO:
        return Confidence.LOW
    if weak_ratio > _GUESSED_RATIO or big.memory.upper_bound:
        return at_most(confidence, Confidence.MEDIUM)
    return confidence


def memory_finding(
    cause: Cause,
    big: Largest,
    *,
    sentence: str,
    evidence: Sequence[Evidence],
    saving_bytes: tuple[float, float],
    confidence: Confidence,
    fix: str,
    disprove: str,
) -> Finding:
    """A finding about the largest rank's memory.

    Its severity is the share that it frees of the device's memory, of the peak where that is not known.
    """
    low, high = saving_bytes
    return finding(
        cause,
        sentence=sentence,
        evidence=[in_bytes("peak of the largest rank", big.memory.peak_bytes, big.rank), *evidence],
        saving_ns=(0, 0),
        saving_bytes=(min(low, high), high),
        severity=severity_of(high, big.total_bytes or big.peak_bytes),
        confidence=confidence,
        fix=fix,
        disprove=disprove,
    )


def in_bytes(what: str, value: float, rank: int | None = None) -> Evidence:
    """A fact in bytes."""
    return Evidence(what=what, value=value, unit="bytes", rank=rank)


def no_facts(cause: Cause) -> Gap:
    """Nobody said what the program is.  The same words in each rule: they become one line of the report."""
    return not_tested(
        cause,
        "the sharding stage, its ranks, the number of parameters or their bytes are not known",
        "give the recorder the model, or the facts: zprof.record(training=TrainingFacts(...))",
    )


def no_device(cause: Cause) -> Gap:
    """A GPU whose allocator and driver were not asked."""
    return not_tested(
        cause,
        "the GPU's allocator and driver were not watched at the peak",
        "record on the GPU machine with the memory window on: zprof.steps(memory=2)",
    )
