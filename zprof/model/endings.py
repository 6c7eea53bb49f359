"""How the processes of the ranks ended, and the short descriptions that all outputs use.

A rank's last words, its exit code or signal, and its failed allocation. Sizes are integer bytes.
``None`` is unknown.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from zprof.base.formatting import format_bytes, printable, shorten
from zprof.model.findings import Confidence, SourceLocation
from zprof.model.gaps import Gap, GapKind
from zprof.model.tenants import DISPLAY_ORDER, Tenant

_MAX_ERROR_LENGTH, _MAX_FILE_LENGTH = 110, 60
_MAX_OTHERS = 3
#: Gaps that prevent a verdict from covering the entire run, and their wording for several ranks.
_LOST_RANKS = {
    GapKind.PROGRAM_FAILED: "failed",
    GapKind.RANK_MISSING: "recorded nothing",
    GapKind.RANK_CUT_SHORT: "ended before the recording",
    GapKind.DISK_FULL: "ran out of disk space",
}
#: Maximum ranks listed in a sentence.
_MAX_RANKS = 4
#: Where C++ code raised an error: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]
_SOURCE_FILE = re.compile(r"\[/\S{1,300}:\d{1,9}\] ")


class EndMoment(StrEnum):
    """Part of the recording in which a rank ended."""

    BEFORE_STEPS = "before_steps"
    IN_STEP = "in_step"
    AFTER_STEPS = "after_steps"


class RankEnd(Struct, frozen=True, kw_only=True):
    """The end of one rank; unknown values are None or empty.

    ``time_ns``: when its program failed or ended, or else when the end of its process was noticed.
    ``exit_code`` is None and ``signal`` its name if a signal ended it. ``has_left``: its program had
    finished, and the process was shutting down. ``error``: the uncaught exception. ``full_path``: the file
    that could not be written because the disk was full. ``last_words``: the last lines of its traceback or
    stderr. ``stack``: where its main thread was, innermost frame first; ``operation`` is the collective in it
    and ``location`` the line of the program. ``moment`` and ``step`` say when, relative to the recorded
    steps; ``after_ns``: since the start of the recording. ``is_first``: the other ranks ended because of this
    one.
    """

    rank: int
    process: int
    host: str = ""
    time_ns: int | None = None
    exit_code: int | None = None
    signal: str = ""
    has_left: bool = False
    error: str = ""
    full_path: str | None = None
    last_words: tuple[str, ...] = ()
    stack: tuple[SourceLocation, ...] = ()
    operation: str = ""
    location: SourceLocation | None = None
    moment: EndMoment | None = None
    step: int | None = None
    after_ns: int | None = None
    is_first: bool = False

    @property
    def has_failed(self) -> bool:
        """True unless the rank ended with exit code 0 and wrote everything, or its end is unknown."""
        return bool(self.exit_code or self.signal or self.error) or self.full_path is not None


class OutOfMemory(Struct, frozen=True, kw_only=True):
    """One allocation that failed with an out-of-memory error, and the allocator at that moment.

      reserved = live + rounding + awaiting_free + split + free_segments + private_pools
      live     = tenants + untagged            allocated = live + rounding

    ``time_ns`` counts from the start of the history. ``requested_bytes`` is the request as torch records it,
    rounded up to 512 bytes; ``driver_bytes`` is the maximum that the allocator then requests from the driver:
    a whole segment. ``device_free_bytes`` is what the driver reported as free. ``split_bytes`` are the free
    parts of segments in use, ``free_segments_bytes`` segments that are entirely free, ``private_pools_bytes``
    free memory of graph pools; the request could only use memory of its own ``pool`` (empty: the common
    pool). ``largest_free_bytes`` is the largest contiguous free piece in its pool, of any stream.

    ``would_fit_defragmented``: True if the free bytes of its pool and of the device together are at least the
    request; ``short_bytes`` are the missing bytes, 0 if it would fit. ``is_limited``: the device had room for
    the segment, so the request failed because of a limit of the process (set_per_process_memory_fraction).
    ``expandable``: segments of this device are expandable. ``outside_allocator_bytes``: device memory in use
    outside of this allocator.

    ``inferred_tenants``: some of their bytes are attributed by size alone. ``unknown_tenants``: no block was
    ever attributed to them, and no tag could attribute one. ``confidence_bytes``: the bytes attributed
    without a tag. ``step`` and ``phase``: of a recording, if known.
    """

    rank: int
    device: str
    time_ns: int
    requested_bytes: int
    driver_bytes: int
    device_free_bytes: int | None
    live_bytes: int
    allocated_bytes: int
    awaiting_free_bytes: int
    reserved_bytes: int | None
    split_bytes: int | None
    free_segments_bytes: int | None
    private_pools_bytes: int | None
    largest_free_bytes: int | None
    tenants: Mapping[Tenant, int]
    untagged_bytes: int
    would_fit_defragmented: bool | None
    short_bytes: int | None
    is_limited: bool = False
    expandable: bool = False
    outside_allocator_bytes: int | None = None
    pool: str = ""
    inferred_tenants: tuple[Tenant, ...] = ()
    unknown_tenants: tuple[Tenant, ...] = ()
    confidence_bytes: Mapping[Confidence, int] = field(default_factory=dict)
    stack: tuple[str, ...] = ()
    step: int | None = None
    phase: str = ""


def describe_endings(ends: Sequence[RankEnd]) -> str:
    """Return the sentence about a failed job, the first end first; empty if no rank failed."""
    if not ends:
        return ""
    first, *others = ends
    if not first.is_first:
        failed = [end for end in ends if end.has_failed]
        known = ", ".join(f"rank {end.rank} ended {describe_end(end)}" for end in failed[:_MAX_OTHERS])
        return f"{known}; which ended first is not known"
    order = " first" if others else ""
    text = f"rank {first.rank} ended{order}, {describe_moment(first)}{describe_end(first)}"
    place = name_place(first)
    others = [end for end in others if end.has_failed and name_place(end)]
    if first.operation and any(name_place(end) != place for end in others):
        places = [f"rank {end.rank} in {name_place(end)}" for end in (first, *others[:_MAX_OTHERS])]
        return f"{text}: {', '.join(places)}"
    return f"{text} in {place}" if place else text


def describe_moment(end: RankEnd) -> str:
    """Return "in step 6, ", "after the recorded steps, ", or "" if unknown."""
    match end.moment:
        case EndMoment.BEFORE_STEPS:
            return "before its first step, "
        case EndMoment.IN_STEP:
            return f"in step {end.step}, "
        case EndMoment.AFTER_STEPS:
            return "after the recorded steps, "
    return ""


def describe_end(end: RankEnd) -> str:
    """Return "with exit code 3", "by SIGABRT", or "with ValueError: no such batch"."""
    if end.full_path is not None:
        path = f": {shorten(end.full_path, _MAX_FILE_LENGTH)}" if end.full_path else ""
        return printable(f"with a full disk (No space left on device{path})")
    if end.error:
        return f"with {printable(shorten(_SOURCE_FILE.sub('', end.error), _MAX_ERROR_LENGTH))}"
    if end.signal:
        return f"by {printable(end.signal)}{' while it shut down' if end.has_left else ''}"
    return "in an unknown way" if end.exit_code is None else f"with exit code {end.exit_code}"


def name_place(end: RankEnd) -> str:
    """Return "all_reduce (train.py:42)", or the known part of it; empty if nothing is known."""
    location = end.location
    line = f"{location.file}:{location.line}" if location is not None else ""
    return printable(f"{end.operation} ({line})" if end.operation and line else end.operation or line)


def list_lost_ranks(gaps: Sequence[Gap], described: Iterable[int]) -> Iterator[str]:
    """Yield the ranks without a complete recording that are not described elsewhere."""
    for kind, verb in _LOST_RANKS.items():
        found = {gap.rank: gap for gap in gaps if gap.kind is kind and gap.rank is not None}
        ranks = sorted(rank for rank in found if kind is GapKind.DISK_FULL or rank not in described)
        if not ranks:
            continue
        shown = ", ".join(str(rank) for rank in ranks[:_MAX_RANKS])
        more = f" and {len(ranks) - _MAX_RANKS} more" if len(ranks) > _MAX_RANKS else ""
        steps = {found[rank].step for rank in ranks}
        step = steps.pop() if len(steps) == 1 else None
        when = f" in step {step}" if step is not None else ""
        detail = f" ({found[ranks[0]].detail})" if found[ranks[0]].detail else ""
        yield f"{'ranks' if len(ranks) > 1 else 'rank'} {shown}{more} {verb}{when}{detail}"


def describe_out_of_memory(failure: OutOfMemory) -> str:
    """Return the requested and the live bytes, with the largest owner."""
    moment = f" in step {failure.step}" if failure.step is not None else ""
    phase = f", {failure.phase}" if failure.phase else ""
    sizes = {"untagged": failure.untagged_bytes}
    sizes |= {tenant.value.replace("_", " "): failure.tenants.get(tenant, 0) for tenant in DISPLAY_ORDER}
    largest = max(sizes, key=lambda name: sizes[name])
    return (
        f"rank {failure.rank} ran out of memory{moment}{phase}: {format_bytes(failure.requested_bytes)} "
        f"requested, {format_bytes(failure.live_bytes)} live, of it {format_bytes(sizes[largest])} {largest}"
    )
