"""Format the names of runs, ranks, process groups and step ranges."""

from collections.abc import Sequence
from itertools import pairwise

from zprof.base.formatting import printable, shorten
from zprof.model.report import Report, RunFacts
from zprof.model.training import NO_EFFECT_REASONS, SettingEffect

#: Maximum length of a rank list printed in full.
_MAX_NAMED = 8
_MAX_MISSING_NAMED = 4
_MAX_SETTINGS, _MAX_SETTING_LENGTH = 20, 80
#: Maximum group size listed rank by rank; larger groups show at most ``_MAX_RANGES`` ranges.
_SMALL_GROUP = 4
_MAX_RANGES = 3
#: Placeholder values of unknown backends and engines.
_UNNAMED = frozenset({"", "none", "unknown"})


def describe_run(run: RunFacts, steps: str) -> str:
    """Format a run as one line: ranks, backend, engine, steps."""
    stage = "" if run.stage is None else f" stage {run.stage}"
    location = run.device if run.backend in _UNNAMED else f"{run.backend} on {run.device}"
    locations = [] if location in _UNNAMED else [location]
    engine = [] if run.engine in _UNNAMED else [f"{run.engine} engine{stage}"]
    return f"{run.name}: {', '.join([format_rank_count(run), *locations, *engine, steps])}"


def describe_settings(run: RunFacts) -> str:
    """Format the engine options that the program set or that change nothing, by configuration name.

    Empty if no option was read.
    """
    shown = [each for each in run.settings if each.is_set or each.effect is not SettingEffect.NORMAL]
    texts = []
    for setting in shown[:_MAX_SETTINGS]:
        reason = NO_EFFECT_REASONS.get(setting.effect)
        text = printable(shorten(f"{setting.name} {setting.value}", _MAX_SETTING_LENGTH))
        texts.append(f"{text} (no effect: {reason})" if reason else text)
    rest = len(shown) - len(texts)
    return ", ".join([*texts, *([f"{rest} more"] if rest > 0 else [])])


def format_rank_count(run: RunFacts) -> str:
    """Format the number of ranks, such as ``4 ranks``, or the loaded and missing ranks."""
    if run.is_of_logs:
        return "logs"  # which seldom state how many ranks there are
    ranks = f"{run.world_size} ranks" if run.world_size != 1 else "1 rank"
    if run.source == "operation_timeline":
        return f"{ranks} of an operation timeline"
    if run.source == "nccl_inspector":
        return f"{ranks} of NCCL's Inspector"
    missing = sorted(set(range(run.world_size)) - set(run.ranks_loaded))
    if not missing:
        return ranks
    return f"{len(run.ranks_loaded)} of {ranks} (missing: {format_ranks(missing, _MAX_MISSING_NAMED)})"


def format_ranks(ranks: Sequence[int], max_ranks: int = _MAX_NAMED) -> str:
    """Format a list of ranks, such as ``0, 1, 2 and 1021 more``."""
    more = f" and {len(ranks) - max_ranks} more" if len(ranks) > max_ranks else ""
    return f"{', '.join(map(str, ranks[:max_ranks]))}{more}"


def format_reported_steps(report: Report, run: RunFacts) -> str:
    """Format the steps of ``run`` (the reported run or its baseline) covered by the report."""
    if not report.time.per_rank and run.memory_steps:
        return f"memory of {format_steps(run.memory_steps)}"
    if report.time.is_whole and run == report.run:
        return "one window"
    return "from a snapshot" if run.source == "snapshot" else format_steps(run.steps)


def format_steps(steps: Sequence[int]) -> str:
    """Format steps as ``steps 3-10``, or as ``7 steps of 3-10`` if some are missing."""
    if not steps:
        return "no timed step"
    if len(steps) == 1:
        return f"step {steps[0]}"
    low, high = min(steps), max(steps)
    is_contiguous = len(set(steps)) == high - low + 1
    return f"steps {low}-{high}" if is_contiguous else f"{len(steps)} steps of {low}-{high}"


def group_name(group: str) -> str:
    """Shorten ``0,1,2,3,4,5,6,7`` to ``0-7``, followed by the description; other names are unchanged.

    For ranks with a constant stride, show only the first, second and last rank.
    """
    ranks, separator, description = group.partition("#")
    words = ranks.split(",")
    if len(words) <= _SMALL_GROUP or not all(
        (word.isascii() and word.isdigit() and len(word) < 10) for word in words
    ):
        return group
    return f"{_shorten_group([int(word) for word in words])}{separator}{description}"


def _shorten_group(ranks: Sequence[int]) -> str:
    strides = {later - earlier for earlier, later in pairwise(ranks)}
    if len(strides) == 1 and strides != {1}:
        return f"{ranks[0]},{ranks[1]},..,{ranks[-1]} ({len(ranks)} ranks)"
    intervals: list[list[int]] = []
    for rank in ranks:
        if intervals and rank == intervals[-1][-1] + 1:
            intervals[-1][-1] = rank
        else:
            intervals.append([rank, rank])
    ranges = [str(first) if first == last else f"{first}-{last}" for first, last in intervals]
    if len(ranges) > _MAX_RANGES:
        return f"{','.join(ranges[:_MAX_RANGES])},.. ({len(ranks)} ranks)"
    return ",".join(ranges)
