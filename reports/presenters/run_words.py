"""How runs, their ranks, groups and steps are named."""

from collections.abc import Sequence
from itertools import pairwise

from zprof.model.report import Report, RunFacts

#: Ranks named one by one.
_MAX_NAMED = 8
_MAX_MISSING_NAMED = 4
#: Groups up to this size are listed; of larger ones at most so many ranges.
_SMALL_GROUP = 4
_MAX_RANGES = 3
#: Backends and engines that nobody named.
_UNNAMED = frozenset({"", "none", "unknown"})


def describe_run(run: RunFacts, steps: str) -> str:
    """Return a run in one line: ranks, backend, engine, steps."""
    stage = "" if run.stage is None else f" stage {run.stage}"
    where = run.device if run.backend in _UNNAMED else f"{run.backend} on {run.device}"
    engine = [] if run.engine in _UNNAMED else [f"{run.engine} engine{stage}"]
    return f"{run.name}: {', '.join([format_rank_count(run), where, *engine, steps])}"


def format_rank_count(run: RunFacts) -> str:
    """Return ``4 ranks``, or how many of them were loaded and which are missing."""
    ranks = f"{run.world_size} ranks" if run.world_size != 1 else "1 rank"
    missing = sorted(set(range(run.world_size)) - set(run.ranks_loaded))
    if not missing:
        return ranks
    return f"{len(run.ranks_loaded)} of {ranks} (missing: {format_ranks(missing, _MAX_MISSING_NAMED)})"


def format_ranks(ranks: Sequence[int], most: int = _MAX_NAMED) -> str:
    """Return ``0, 1, 2 and 1021 more``: the first ranks by number, and how many are not named."""
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"{', '.join(map(str, ranks[:most]))}{more}"


def format_reported_steps(report: Report, run: RunFacts) -> str:
    """Return the steps of ``run``, the report's own or its baseline, that the report is about."""
    if not report.time.per_rank and run.memory_steps:
        return f"memory of {format_steps(run.memory_steps)}"
    return "from a snapshot" if run.source == "snapshot" else format_steps(run.steps)


def format_steps(steps: Sequence[int]) -> str:
    """Return ``steps 3-10``, or how many of which range if some are missing."""
    if not steps:
        return "no timed step"
    if len(steps) == 1:
        return f"step {steps[0]}"
    low, high = min(steps), max(steps)
    is_whole = len(set(steps)) == high - low + 1
    return f"steps {low}-{high}" if is_whole else f"{len(steps)} steps of {low}-{high}"


def group_name(group: str) -> str:
    """Return ``0,1,2,3,4,5,6,7`` as ``0-7``, with the description behind it; other names as they are.

    Of ranks in equal steps the first, second and last are named.
    """
    ranks, mark, description = group.partition("#")
    words = ranks.split(",")
    if len(words) <= _SMALL_GROUP or not all(_is_rank(word) for word in words):
        return group
    return f"{_short_group([int(word) for word in words])}{mark}{description}"


def _is_rank(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 10


def _short_group(ranks: Sequence[int]) -> str:
    steps = {later - earlier for earlier, later in pairwise(ranks)}
    if len(steps) == 1 and steps != {1}:
        return f"{ranks[0]},{ranks[1]},..,{ranks[-1]} ({len(ranks)} ranks)"
    ranges = _ranges(ranks)
    if len(ranges) > _MAX_RANGES:
        return f"{','.join(ranges[:_MAX_RANGES])},.. ({len(ranks)} ranks)"
    return ",".join(ranges)


def _ranges(ranks: Sequence[int]) -> list[str]:
    """Return consecutive ranks as ``first-last``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][-1] = rank
        else:
            runs.append([rank, rank])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]
