"""Read the gates of communication: collectives and their bytes per step, also against the ZeRO formula.

Both sums are of one rank. The kind, data type and group size that grew, is new or is gone is reported beside
them.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from zprof.checks.gates.reading import (
    Figure,
    GateInput,
    Reading,
    find_missing_ranks,
    format_ranks,
    newly_missing_ranks,
    to_fraction,
)
from zprof.checks.gates.sentences import clean_name, format_count, format_psi, format_signed
from zprof.checks.gates.time import NO_COLLECTIVES, RECORD_HINT
from zprof.model.baseline import Baseline, CollectiveBaseline
from zprof.model.formatting import format_bytes
from zprof.model.gaps import GapKind

Amount = Callable[[CollectiveBaseline], Fraction]
_Key = tuple[str, str, int]


def collective_bytes(asked: GateInput) -> Reading:
    """Read the bytes of the full tensors of all collectives, per step and rank."""
    return _reading(asked, _bytes, format_bytes, "bytes")


def collective_count(asked: GateInput) -> Reading:
    """Read the number of collectives that a rank takes part in, per step."""
    return _reading(asked, _count, format_count, "count")


def collective_bytes_law(asked: GateInput) -> Reading:
    """Read the bytes that a rank moves per step over those of all parameters; all_reduces count twice."""
    volume = asked.report.volume
    if volume is None or not volume.parameter_bytes:
        gap = next((gap for gap in asked.report.gaps if gap.kind is GapKind.VOLUME), None)
        missing = "the bytes of a step cannot be compared with the ZeRO formula"
        remedy = RECORD_HINT if gap is None else clean_name(gap.remedy)
        return Reading(missing=missing, remedy=remedy, shown=format_psi)
    if asked.now.collectives is None:
        return Reading(missing=NO_COLLECTIVES, remedy=RECORD_HINT, shown=format_psi)
    missing_ranks = asked.now.time.missing_ranks if asked.now.time else ()
    law = f"the ZeRO formula of the stage says {format_psi(volume.expected_bytes / volume.parameter_bytes)}"
    return Reading(
        now=Figure(
            value=Fraction(volume.seen_bytes, volume.parameter_bytes),
            can_be_lower=bool(missing_ranks),
            can_be_higher=bool(missing_ranks),
        ),
        shown=format_psi,
        leaf="volume.seen_bytes",
        where=f" ({format_bytes(volume.seen_bytes)}) per step",
        grew=law,
    )


def _reading(asked: GateInput, amount: Amount, shown: Callable[[float], str], field: str) -> Reading:
    before, lacked = _before(asked)
    lower = field == "bytes"
    now = asked.now.collectives
    missing = _missing(asked)
    if now is None or missing:
        return Reading(
            before=_sum(before, amount, lower=lower), missing=missing, remedy=RECORD_HINT, shown=shown
        )
    grown = _changes(now, before, amount) if before is not None else {}
    return Reading(
        now=_sum(now, amount, lower=lower),
        before=None if lacked else _sum(before, amount, lower=lower),
        shown=shown,
        leaf=_leaf(asked, field),
        subject=_choose_subject(grown, now, amount),
        where=" per step",
        grew=_describe_growth(grown, now, before, amount, shown),
        other_sort=before is not None and not lacked and _keys(now) != _keys(before),
        remedy=RECORD_HINT,
    )


def _before(asked: GateInput) -> tuple[tuple[CollectiveBaseline, ...] | None, tuple[int, ...]]:
    """Return the baseline's collectives, and the ranks that only the run has."""
    before: Baseline | None = asked.before
    if before is None or before.collectives is None:
        return None, ()
    theirs, mine = before.time, asked.now.time
    return before.collectives, newly_missing_ranks(
        theirs.missing_ranks if theirs else (), mine.missing_ranks if mine else ()
    )


def _missing(asked: GateInput) -> str:
    if asked.now.time is None:
        return "no step was timed, so that no collective was seen"
    before = asked.before.time if asked.before is not None else None
    ranks = find_missing_ranks(asked, asked.now.time, before)
    if ranks:
        return f"{format_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} missing"
    return "" if asked.now.collectives is not None else NO_COLLECTIVES


def _sum(entries: Sequence[CollectiveBaseline] | None, amount: Amount, *, lower: bool) -> Figure | None:
    if entries is None:
        return None
    higher = lower and any(entry.lower_bound for entry in entries)
    return Figure(value=sum(map(amount, entries), Fraction(0)), can_be_higher=higher)


def _bytes(entry: CollectiveBaseline) -> Fraction:
    return Fraction(entry.bytes)


def _count(entry: CollectiveBaseline) -> Fraction:
    return to_fraction(entry.count)


def _key(entry: CollectiveBaseline) -> _Key:
    return (entry.kind, entry.dtype, entry.group_size)


def _keys(entries: Sequence[CollectiveBaseline]) -> set[_Key]:
    return set(map(_key, entries))


def _changes(
    now: Sequence[CollectiveBaseline], before: Sequence[CollectiveBaseline], amount: Amount
) -> Mapping[_Key, Fraction]:
    """Return the change of each collective against the baseline, negative for those that are gone."""
    theirs = {_key(entry): amount(entry) for entry in before}
    changes = {_key(entry): amount(entry) - theirs.get(_key(entry), 0) for entry in now}
    return {**{key: -size for key, size in theirs.items()}, **changes}


def _choose_subject(grown: Mapping[_Key, Fraction], now: Sequence[CollectiveBaseline], amount: Amount) -> str:
    """Return the name of the collective that grew most, else of the largest."""
    if grown and max(grown.values()) > 0:
        return _name_collective(max(grown, key=grown.__getitem__))
    return _name_collective(_key(max(now, key=amount))) if now else ""


def _describe_growth(
    grown: Mapping[_Key, Fraction],
    now: Sequence[CollectiveBaseline],
    before: Sequence[CollectiveBaseline] | None,
    amount: Amount,
    shown: Callable[[float], str],
) -> str:
    """Return what grew most, what is new and what is gone: the largest of each, and how many more."""
    if before is None:
        most = max(now, key=amount, default=None)
        return (
            ""
            if most is None
            else f"{_name_collective(_key(most))} is most of it, {shown(float(amount(most)))}"
        )
    mine, theirs = _keys(now), _keys(before)
    parts = [
        _describe_part("grew most", grown, [key for key in mine & theirs if grown[key] > 0], shown),
        _describe_part("is new", grown, list(mine - theirs), shown),
        _describe_part("is gone", grown, list(theirs - mine), shown),
    ]
    return "; ".join(part for part in parts if part)


def _describe_part(
    what: str, grown: Mapping[_Key, Fraction], keys: Sequence[_Key], shown: Callable[[float], str]
) -> str:
    if not keys:
        return ""
    most = max(keys, key=lambda key: (abs(grown[key]), key))
    more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
    return f"{_name_collective(most)} {what}, {format_signed(float(grown[most]), shown)}{more}"


def _name_collective(key: _Key) -> str:
    kind, dtype, size = key
    over = f" over {size} ranks" if size else ""
    return f"{clean_name(kind)} of {clean_name(dtype) or 'unknown type'}{over}"


def _leaf(asked: GateInput, field: str) -> str:
    entries = asked.report.time.collectives
    alone = len(entries) == 1 and entries[0].group_size >= asked.report.run.world_size
    return f"time.collectives[0].{field}" if alone else "time.collectives"
