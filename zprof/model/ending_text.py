"""Say in a few words how a rank ended; every output has these words."""

import re
from collections.abc import Iterable, Iterator, Sequence

from zprof.model.endings import EndMoment, RankEnd
from zprof.model.formatting import format_bytes, printable, shorten
from zprof.model.gaps import Gap, GapKind
from zprof.model.out_of_memory import OutOfMemory
from zprof.model.tenants import DISPLAY_ORDER

_MAX_ERROR_LENGTH, _MAX_FILE_LENGTH = 110, 60
_MAX_OTHERS = 3
#: Gaps that prevent a verdict from covering the entire run, and their wording for several ranks.
_LOST_RANKS = {
    GapKind.PROGRAM_FAILED: "failed",
    GapKind.RANK_MISSING: "recorded nothing",
    GapKind.RANK_CUT_SHORT: "ended before the recording",
    GapKind.DISK_FULL: "ran out of disk space",
}
#: Ranks that a sentence names.
_MAX_RANKS = 4
#: Where C++ code raised an error: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]
_SOURCE_FILE = re.compile(r"\[/\S{1,300}:\d{1,9}\] ")


def describe_endings(ends: Sequence[RankEnd]) -> str:
    """Return the sentence of a job that failed, of which the first end comes first; empty if none did."""
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
    """Return "in step 6, ", "after the recorded steps, ", or "" if it is not known."""
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
    """Return "all_reduce (train.py:42)", or what is known of it; empty if nothing."""
    location = end.location
    line = f"{location.file}:{location.line}" if location is not None else ""
    return printable(f"{end.operation} ({line})" if end.operation and line else end.operation or line)


def list_lost_ranks(gaps: Sequence[Gap], described: Iterable[int]) -> Iterator[str]:
    """Yield which ranks have no recording, or not all of it, and are not described otherwise."""
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
    """Return what was requested and what was live, with the largest owner."""
    moment = f" in step {failure.step}" if failure.step is not None else ""
    phase = f", {failure.phase}" if failure.phase else ""
    sizes = {"untagged": failure.untagged_bytes}
    sizes |= {tenant.value.replace("_", " "): failure.tenants.get(tenant, 0) for tenant in DISPLAY_ORDER}
    largest = max(sizes, key=lambda name: sizes[name])
    return (
        f"rank {failure.rank} ran out of memory{moment}{phase}: {format_bytes(failure.requested_bytes)} "
        f"requested, {format_bytes(failure.live_bytes)} live, of it {format_bytes(sizes[largest])} {largest}"
    )
