"""How much a limit allows: its number and unit against what the gate is measured in."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from zprof.checks.limits_gates import Gate
from zprof.checks.limits_text import Senseless, Wording
from zprof.model.check import Sense

_POINTS = ("pt", "pp")
_PERCENT = "%"
#: Beyond such a change nothing is guarded, and a slip of the pen is likelier than a wish.
_MOST_CHANGE = Decimal(10)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """What the text of a unit multiplies, the most that makes sense, and an example."""

    units: Mapping[str, Decimal]
    most: Decimal
    example: str


_SCALES: Mapping[str, _Scale] = {
    "bytes": _Scale(
        units={"B": Decimal(1)}
        | {f"{prefix}B": Decimal(1000) ** power for power, prefix in enumerate(("k", "M", "G", "T"), 1)}
        | {f"{prefix}iB": Decimal(1024) ** power for power, prefix in enumerate(("K", "M", "G", "T"), 1)}
        | {"KB": Decimal(1000)},
        most=Decimal(1 << 60),
        example="24 MiB",
    ),
    "ratio": _Scale(units={"": Decimal(1), _PERCENT: Decimal("0.01")}, most=Decimal(1), example="10%"),
    "ns": _Scale(
        units={"ns": Decimal(1), "us": Decimal(1_000), "µs": Decimal(1_000), "μs": Decimal(1_000)}
        | {"ms": Decimal(1_000_000), "s": Decimal(1_000_000_000)},
        most=Decimal(10**15),
        example="120 ms",
    ),
    "count": _Scale(units={"": Decimal(1)}, most=Decimal(10**9), example="48"),
    "psi": _Scale(
        units=dict.fromkeys(("Ψ", "ψ", "psi", "Psi"), Decimal(1)), most=Decimal(1000), example="3Ψ"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """What is allowed: a value in the gate's unit, a share of the baseline or points on top of it."""

    value: Decimal | None = None
    change_ratio: Decimal | None = None
    change_points: Decimal | None = None


def amount_of(gate: Gate, found: Wording) -> Amount:
    """How much ``found`` allows of ``gate``.

    Raises:
        Senseless: the unit does not fit, it is more than there can be, or it tolerates nothing.
    """
    example = _SCALES[gate.unit].example
    if found.exact:
        if not gate.exact:
            raise Senseless(f"is for bytes and counts, and {gate.name} is neither", f"write {example}")
        _refuse_the_wrong_side(gate, found.side or gate.sense, Decimal(0))
        return Amount(change_ratio=Decimal(0))
    is_points = found.unit in _POINTS
    if not found.signed and not is_points:
        return Amount(value=_absolute(gate, found))
    if not gate.of_baseline:
        raise Senseless(f"is a change, and {gate.name} is held against a law", f"write {example}")
    if not found.signed:
        raise Senseless("has no sign", f"write +{found.text} for more than the baseline, - for less")
    if is_points and gate.unit != "ratio":
        raise Senseless(f"is in points, and {gate.name} is no ratio", "write +2%, a share of the baseline")
    if not is_points and found.unit != _PERCENT:
        raise Senseless("is a change that is not in percent", f"write +2% of the baseline, or {example}")
    share = found.number / 100
    _refuse_the_wrong_side(gate, found.side or gate.sense, share)
    _refuse_what_guards_nothing(share, is_points=is_points)
    return Amount(change_points=share) if is_points else Amount(change_ratio=share)


def _absolute(gate: Gate, found: Wording) -> Decimal:
    scale = _SCALES[gate.unit]
    factor = scale.units.get(found.unit)
    if factor is None:
        change = f", or +{found.text} of the baseline" if found.unit == _PERCENT and gate.of_baseline else ""
        raise Senseless(f"has no unit that fits {gate.name}", f"write {scale.example}{change}")
    value = found.number * factor
    if value > scale.most:
        raise Senseless(f"is more than {gate.name} can be", f"write {scale.example}")
    return value


def _refuse_the_wrong_side(gate: Gate, sense: Sense, change: Decimal) -> None:
    rises = gate.sense is Sense.AT_MOST
    if sense is not gate.sense or (change < 0 if rises else change > 0):
        kind, less = ("an upper", "less") if rises else ("a lower", "more")
        raise Senseless(
            f"forbids {less} than the baseline has: a change of {gate.name} is {kind} limit",
            "write +2%, or a value" if rises else "write -5pt, or a value such as >=0.7",
        )


def _refuse_what_guards_nothing(change: Decimal, *, is_points: bool) -> None:
    if change <= -1 or change > _MOST_CHANGE or (is_points and change >= 1):
        raise Senseless("allows everything", "write less, or turn the gate off with false")
