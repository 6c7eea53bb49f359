"""Read the communication gates: collectives and their bytes per step, also against the ZeRO formula.

Both sums are per rank. The result names the kind, data type and group size that grew, is new or was removed.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from zprof.checks.gates.reading import (
    GateFigure,
    GateInput,
    Reading,
    format_ranks,
    list_missing_ranks,
    list_newly_missing_ranks,
    to_fraction,
)
from zprof.checks.gates.sentences import clean_name
from zprof.checks.gates.time import NO_COLLECTIVES, RECORD_HINT
from zprof.model.baseline import Baseline, CollectiveBaseline
from zprof.model.formatting import format_bytes, format_psi
from zprof.model.gaps import GapKind
from zprof.model.quantities import Unit, format_number, format_signed

Amount = Callable[[CollectiveBaseline], Fraction]
_Key = tuple[str, str, int]


def read_collective_bytes(gate_input: GateInput) -> Reading:
    """Read the bytes of the full tensors of all collectives, per step and rank."""
    return _read_collectives(gate_input, _get_bytes, Unit.BYTES, "bytes")


def read_collective_count(gate_input: GateInput) -> Reading:
    """Read the number of collectives that a rank takes part in, per step."""
    return _read_collectives(gate_input, _get_count, Unit.COUNT, "count")


def read_collective_bytes_law(gate_input: GateInput) -> Reading:
    """Read the bytes that a rank moves per step relative to all parameters; all_reduces count twice."""
    volume = gate_input.report.volume
    if volume is None or not volume.parameter_bytes:
        gap = next((gap for gap in gate_input.report.gaps if gap.kind is GapKind.VOLUME), None)
        missing = "the bytes per step cannot be compared with the ZeRO formula"
        remedy = RECORD_HINT if gap is None else clean_name(gap.remedy)
        return Reading(missing=missing, remedy=remedy)
    if gate_input.current.collectives is None:
        return Reading(missing=NO_COLLECTIVES, remedy=RECORD_HINT)
    missing_ranks = gate_input.current.time.missing_ranks if gate_input.current.time else ()
    expected = (
        f"the ZeRO formula of the stage expects {format_psi(volume.expected_bytes / volume.parameter_bytes)}"
    )
    return Reading(
        current=GateFigure(
            value=Fraction(volume.seen_bytes, volume.parameter_bytes),
            can_be_lower=bool(missing_ranks),
            can_be_higher=bool(missing_ranks),
        ),
        report_path="volume.seen_bytes",
        value_note=f" ({format_bytes(volume.seen_bytes)}) per step",
        growth_note=expected,
    )


def _read_collectives(gate_input: GateInput, amount: Amount, unit: Unit, field: str) -> Reading:
    baseline, missing_ranks = _get_baseline(gate_input)
    lower = field == "bytes"
    current = gate_input.current.collectives
    missing = _explain_missing(gate_input)
    if current is None or missing:
        return Reading(
            baseline=_sum_entries(baseline, amount, lower=lower),
            missing=missing,
            remedy=RECORD_HINT,
        )
    grown = _compute_changes(current, baseline, amount) if baseline is not None else {}
    return Reading(
        current=_sum_entries(current, amount, lower=lower),
        baseline=None if missing_ranks else _sum_entries(baseline, amount, lower=lower),
        report_path=_find_report_path(gate_input, field),
        subject=_choose_subject(grown, current, amount),
        value_note=" per step",
        growth_note=_describe_growth(grown, current, baseline, amount, unit),
        has_different_parts=baseline is not None
        and not missing_ranks
        and _get_keys(current) != _get_keys(baseline),
        remedy=RECORD_HINT,
    )


def _get_baseline(gate_input: GateInput) -> tuple[tuple[CollectiveBaseline, ...] | None, tuple[int, ...]]:
    """Return the baseline's collectives, and the ranks that only the run has."""
    baseline: Baseline | None = gate_input.baseline
    if baseline is None or baseline.collectives is None:
        return None, ()
    baseline_time, current_time = baseline.time, gate_input.current.time
    return baseline.collectives, list_newly_missing_ranks(
        baseline_time.missing_ranks if baseline_time else (),
        current_time.missing_ranks if current_time else (),
    )


def _explain_missing(gate_input: GateInput) -> str:
    if gate_input.current.time is None:
        return "no step was timed, so no collectives were recorded"
    baseline = gate_input.baseline.time if gate_input.baseline is not None else None
    ranks = list_missing_ranks(gate_input, gate_input.current.time, baseline)
    if ranks:
        return f"{format_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} missing"
    return "" if gate_input.current.collectives is not None else NO_COLLECTIVES


def _sum_entries(
    entries: Sequence[CollectiveBaseline] | None, amount: Amount, *, lower: bool
) -> GateFigure | None:
    if entries is None:
        return None
    higher = lower and any(entry.lower_bound for entry in entries)
    return GateFigure(value=sum(map(amount, entries), Fraction(0)), can_be_higher=higher)


def _get_bytes(entry: CollectiveBaseline) -> Fraction:
    return Fraction(entry.bytes)


def _get_count(entry: CollectiveBaseline) -> Fraction:
    return to_fraction(entry.count)


def _get_key(entry: CollectiveBaseline) -> _Key:
    return (entry.kind, entry.dtype, entry.group_size)


def _get_keys(entries: Sequence[CollectiveBaseline]) -> set[_Key]:
    return set(map(_get_key, entries))


def _compute_changes(
    current: Sequence[CollectiveBaseline], baseline: Sequence[CollectiveBaseline], amount: Amount
) -> Mapping[_Key, Fraction]:
    """Return the change of each collective against the baseline, negative for removed ones."""
    baseline_amounts = {_get_key(entry): amount(entry) for entry in baseline}
    changes = {_get_key(entry): amount(entry) - baseline_amounts.get(_get_key(entry), 0) for entry in current}
    return {**{key: -size for key, size in baseline_amounts.items()}, **changes}


def _choose_subject(
    grown: Mapping[_Key, Fraction], current: Sequence[CollectiveBaseline], amount: Amount
) -> str:
    """Return the name of the collective that grew most, else of the largest."""
    if grown and max(grown.values()) > 0:
        return _name_collective(max(grown, key=grown.__getitem__))
    return _name_collective(_get_key(max(current, key=amount))) if current else ""


def _describe_growth(
    grown: Mapping[_Key, Fraction],
    current: Sequence[CollectiveBaseline],
    baseline: Sequence[CollectiveBaseline] | None,
    amount: Amount,
    unit: Unit,
) -> str:
    """Describe what grew most, what is new and what was removed: the largest of each, and how many more."""
    if baseline is None:
        largest = max(current, key=amount, default=None)
        return (
            ""
            if largest is None
            else f"mostly {_name_collective(_get_key(largest))}, "
            f"{format_number(float(amount(largest)), unit)}"
        )
    current_keys, baseline_keys = _get_keys(current), _get_keys(baseline)
    parts = [
        _describe_part(
            "grew most", grown, [key for key in current_keys & baseline_keys if grown[key] > 0], unit
        ),
        _describe_part("is new", grown, list(current_keys - baseline_keys), unit),
        _describe_part("was removed", grown, list(baseline_keys - current_keys), unit),
    ]
    return "; ".join(part for part in parts if part)


def _describe_part(change: str, grown: Mapping[_Key, Fraction], keys: Sequence[_Key], unit: Unit) -> str:
    if not keys:
        return ""
    largest = max(keys, key=lambda key: (abs(grown[key]), key))
    more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
    return f"{_name_collective(largest)} {change}, {format_signed(float(grown[largest]), unit)}{more}"


def _name_collective(key: _Key) -> str:
    kind, dtype, size = key
    over = f" over {size} ranks" if size else ""
    return f"{clean_name(kind)} of {clean_name(dtype) or 'unknown type'}{over}"


def _find_report_path(gate_input: GateInput, field: str) -> str:
    entries = gate_input.report.time.collectives
    is_single_group = len(entries) == 1 and entries[0].group_size >= gate_input.report.run.world_size
    return f"time.collectives[0].{field}" if is_single_group else "time.collectives"
