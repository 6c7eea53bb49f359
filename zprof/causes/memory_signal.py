"""Build the signals of causes about memory, which are all about the rank with the largest peak."""

from collections.abc import Callable, Mapping, Sequence

from zprof.analysis.memory.largest_rank import LargestRank
from zprof.analysis.signal import Fact, make_fact
from zprof.causes.cause import Signal, rate_severity
from zprof.causes.fix import Fix
from zprof.model.findings import Confidence, SourceLocation


def make_memory_signal(
    largest: LargestRank,
    *,
    confidence: Confidence,
    facts: Sequence[Fact],
    saving_bytes: tuple[float, float],
    words: Mapping[str, object],
    sentence: str = "",
    fix: Fix | str | None = None,
    numbers: Mapping[str, object] | None = None,
    disprove: str = "",
    locate: Callable[[], SourceLocation | None] = lambda: None,
) -> Signal:
    """Return a signal about the largest rank, whose number and peak are words of each sentence.

    Its severity follows from the freed share of the device's memory, or of the peak if that is unknown.
    """
    low, high = saving_bytes
    return Signal(
        confidence=confidence,
        words={"rank": largest.rank, "peak": largest.peak_bytes, **words},
        facts=[make_fact("peak_of_largest_rank", largest.memory.peak_bytes, rank=largest.rank), *facts],
        saving_bytes=(min(low, high), high),
        severity=rate_severity(high, largest.total_bytes or largest.peak_bytes),
        sentence=sentence,
        fix=fix,
        numbers=numbers or {},
        disprove=disprove,
        locate=locate,
    )
