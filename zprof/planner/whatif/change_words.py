"""A change in words, and the changes that cannot be."""

from zprof.model.errors import BadInput
from zprof.model.planning.whatif import Change

_KEEPS = ("none", "last", "all")
_HINT = "zprof whatif --help shows what can be changed"


def words_of(change: Change) -> str:
    """As one would say it: ``stage 2, prefetch 2, bandwidth x2``."""
    said = [
        _said("stage {}", change.stage),
        _said("prefetch {}", change.prefetch),
        _said("keep {} after the forward", change.keep_after_forward),
        _switch("reductions", change.overlap_reduce),
        _switch("gathers of new parameters", change.overlap_gather),
        _said("bandwidth x{:g}", change.bandwidth_ratio),
        _said("latency x{:g}", change.latency_ratio),
        _merged(change.units_merged),
        _portions(change.micro_batches),
        _said("gradients of {} bytes an element reduced", change.element_bytes_reduced),
        "" if not change.even else "even ranks",
        _said("sharded over {} ranks", change.shard_ranks),
    ]
    return ", ".join(text for text in said if text) or "nothing changed"


def _said(text: str, value: object) -> str:
    return "" if value is None else text.format(value)


def _switch(what: str, on: bool | None) -> str:
    return "" if on is None else f"{what} {'beside compute' if on else 'waited for at once'}"


def _merged(count: int | None) -> str:
    if count is None:
        return ""
    return "no units merged" if count == 1 else f"{count} units merged into one"


def _portions(count: int | None) -> str:
    """What a plan's micro-batches are not: they add samples there."""
    if count is None:
        return ""
    return "the same samples in 1 micro-batch" if count == 1 else f"the same samples in {count} micro-batches"


def refuse(change: Change) -> None:
    """Refuse what cannot be.

    Raises:
        BadInput: with the value that is wrong.
    """
    for wrong, what in (
        (change.stage is not None and change.stage not in range(4), f"stage {change.stage}: 0 to 3"),
        (_below(change.prefetch, 0), f"prefetch {change.prefetch}: 0 or more"),
        (
            change.keep_after_forward not in (None, *_KEEPS),
            f"keep {change.keep_after_forward}: none, last, all",
        ),
        (_not_above_0(change.bandwidth_ratio), f"bandwidth x{change.bandwidth_ratio}: above 0"),
        (_below(change.latency_ratio, 0), f"latency x{change.latency_ratio}: 0 or more"),
        (_below(change.units_merged, 1), f"units merged {change.units_merged}: 1 or more"),
        (_below(change.micro_batches, 1), f"micro-batches {change.micro_batches}: 1 or more"),
        (_below(change.element_bytes_reduced, 1), f"element bytes {change.element_bytes_reduced}: 1 or more"),
        (_below(change.shard_ranks, 2), f"shard ranks {change.shard_ranks}: 2 or more"),
    ):
        if wrong:
            raise BadInput(what, hint=_HINT)


def refuse_merging(change: Change, units: int | None) -> None:
    """Refuse to merge more units than the run has; None: that is not known.

    Raises:
        BadInput: with how many there are.
    """
    if units is not None and change.units_merged is not None and change.units_merged > units:
        raise BadInput(f"units merged {change.units_merged}: the run has {units} units", hint=_HINT)


def _below(value: float | None, least: float) -> bool:
    return value is not None and not value >= least


def _not_above_0(value: float | None) -> bool:
    return value is not None and not 0 < value < float("inf")
