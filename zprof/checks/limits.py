"""Parse limits from text or tables into :class:`~zprof.model.check.Limit`, and list all gates.

Text: ``+2%``, ``exact`` (same as ``+0%``: equal or less), ``24 MiB``, ``10%``, ``>=0.7``, ``-5pt``,
``120 ms``, ``3Ψ`` or ``3 psi``. With ``@0.95`` a limit fails only if the interval with that confidence is
beyond it, with ``warn`` it never fails. Table: ``{max = "+3%", confidence = 0.95, warn = true}``, ``min`` for
a lower limit. ``false`` and ``off`` turn a gate off. A signed percentage is relative to the baseline. An
unsigned one is an absolute value, which only ratios accept.

Units of gates: ``bytes``, ``ratio``, ``ns``, ``count``, and ``psi`` (Ψ: bytes of all parameters in the
communication data type, the unit of the ZeRO formulas: 2Ψ for stages 0 to 2, 3Ψ for stage 3).
"""

from collections.abc import Mapping
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from zprof.checks.limit_text import (
    InvalidLimit,
    LimitText,
    format_number,
    is_number,
    parse_confidence,
    parse_limit_text,
    quote_input,
)
from zprof.model.check import Limit, Sense
from zprof.model.errors import BadInput
from zprof.model.metrics.catalogue import METRICS
from zprof.model.metrics.metric import Better, Metric
from zprof.model.quantities import Unit
from zprof.model.suggestions import suggest_names
from zprof.model.tenants import DISPLAY_ORDER, UNTAGGED_NAME

PEAK_MEMORY = "peak_memory"
#: The parts that ``peak_memory.<part>`` accepts: the six tenants and untagged bytes.
MEMORY_PARTS: tuple[str, ...] = (*(tenant.value for tenant in DISPLAY_ORDER), UNTAGGED_NAME)


class Gate(Struct, frozen=True, kw_only=True):
    """A gate and the kinds of limits that it accepts.

    ``exact``: the value is a count that is equal in each recording of the same work, so it accepts ``exact``.
    ``sampled``: the value varies over steps, so it accepts ``confidence``. ``of_baseline``: a limit may be
    relative to the baseline.
    """

    name: str
    exact: bool = False
    sampled: bool = False
    of_baseline: bool = True

    @property
    def metric(self) -> Metric:
        """The entry of the catalogue on what it measures."""
        return METRICS[f"check.{self.name}"]

    @property
    def unit(self) -> Unit:
        """The unit of its value and of a limit on it."""
        return self.metric.unit

    @property
    def sense(self) -> Sense:
        """The allowed side of a limit without a sign."""
        return Sense.AT_LEAST if self.metric.better is Better.MORE else Sense.AT_MOST

    @property
    def is_timed(self) -> bool:
        """True if the gate measures time, which depends on the load of the machine."""
        return self.name in _TIME_GATES


_TIME_GATES = ("exposed_ratio", "overlap_ratio", "step_time", "exposed_wait")

#: All gates, in the order in which they are judged and displayed.
GATES: tuple[Gate, ...] = (
    Gate(name=PEAK_MEMORY, exact=True),
    *(Gate(name=f"{PEAK_MEMORY}.{part}", exact=True) for part in MEMORY_PARTS),
    Gate(name="untagged_ratio"),
    Gate(name="exposed_ratio", sampled=True),
    Gate(name="overlap_ratio", sampled=True),
    Gate(name="collective_bytes", exact=True),
    Gate(name="collective_count", exact=True),
    Gate(name="collective_bytes_law", of_baseline=False),
    Gate(name="step_time", sampled=True),
    Gate(name="exposed_wait"),
)

_BY_NAME = {gate.name: gate for gate in GATES}


def find_gate(name: str) -> Gate | None:
    """Return the gate with this name, None if there is none."""
    return _BY_NAME.get(name)


#: The keys of a limit in table form.
LIMIT_KEYS = ("max", "min", "confidence", "warn")


def parse_limit(gate: str, stated: object, *, origin: str, place: str = "") -> Limit | None:
    """Parse a limit of ``gate`` from a text, number, table or boolean; return None if it is off.

    ``origin`` is the source of the limit. ``place`` is the source for error messages, with file and key.

    Raises:
        BadInput: The gate is unknown, or the limit does not fit it.
    """
    place = place or origin
    known = find_gate(gate)
    if known is None:
        raise BadInput(
            f"{place}: unknown gate {quote_input(gate)}",
            hint=suggest_names(gate, [entry.name for entry in GATES]),
        )
    try:
        parts = _parse_stated(stated)
        return None if parts is None else _make_limit(known, parts, origin)
    except InvalidLimit as error:
        raise BadInput(f"{place}: {_quote_limit(stated)} {error.reason}", hint=error.hint) from None


def _quote_limit(stated: object) -> str:
    if isinstance(stated, Mapping):
        inner = ", ".join(f"{key} = {value}" for key, value in list(stated.items())[:4] if _is_leaf(value))
        return quote_input(f"{{{inner}}}")
    return quote_input(stated)


def _is_leaf(value: object) -> bool:
    return isinstance(value, str | bool | float) or (isinstance(value, int) and abs(value) < 10**18)


def _parse_stated(stated: object) -> LimitText | None:
    """Parse the parts of a limit; return None if it turns the gate off."""
    if stated is False or (isinstance(stated, str) and stated.strip().lower() == "off"):
        return None
    if isinstance(stated, str):
        return parse_limit_text(stated)
    if is_number(stated):
        return parse_limit_text(format_number(stated))
    if isinstance(stated, Mapping):
        return _parse_table(stated)
    raise InvalidLimit(
        "is not a limit", 'write text such as "+2%", a table {max = "+2%"}, or false to turn it off'
    )


def _parse_table(table: Mapping[object, object]) -> LimitText | None:
    for key in table:
        if key not in LIMIT_KEYS:
            raise InvalidLimit(f"has the unknown key {quote_input(key)}", suggest_names(str(key), LIMIT_KEYS))
    sides = [
        (key, Sense.AT_MOST if key == "max" else Sense.AT_LEAST) for key in LIMIT_KEYS[:2] if key in table
    ]
    if len(sides) != 1:
        raise InvalidLimit("needs either max or min", 'write {max = "+3%", confidence = 0.95}')
    key, side = sides[0]
    if isinstance(table[key], Mapping):
        raise InvalidLimit(f"has a table for {key}", f'write {key} = "+3%"')
    found = _parse_stated(table[key])
    if found is None:
        raise InvalidLimit(
            f"has no limit for {key}", "to turn the gate off, write false instead of the table"
        )
    if found.side not in (None, side):
        raise InvalidLimit(
            f"contradicts itself: {key} with a limit in the other direction", "remove <= or >="
        )
    return replace(
        found, side=side, confidence=_choose_confidence(table, found), warns=_parse_warn(table, found)
    )


def _choose_confidence(table: Mapping[object, object], found: LimitText) -> Decimal | None:
    if "confidence" not in table:
        return found.confidence
    if found.confidence is not None:
        raise InvalidLimit("has two confidences", "remove one")
    return parse_confidence(table["confidence"])


def _parse_warn(table: Mapping[object, object], found: LimitText) -> bool:
    warn = table.get("warn", found.warns)
    if not isinstance(warn, bool):
        raise InvalidLimit("has a value for warn that is not true or false", "write warn = true")
    return warn


def _make_limit(gate: Gate, found: LimitText, origin: str) -> Limit:
    if found.confidence is not None and not gate.sampled:
        raise InvalidLimit(
            f"has a confidence, but {gate.name} is a single value, not a sample over steps",
            "remove the confidence",
        )
    amount = parse_amount(gate, found)
    return Limit(
        gate=gate.name,
        unit=gate.unit,
        sense=found.side or gate.sense,
        value=_to_float(amount.value),
        change_ratio=_to_float(amount.change_ratio),
        change_points=_to_float(amount.change_points),
        confidence=_to_float(found.confidence),
        warns=found.warns,
        said=_format_limit(found, gate),
        origin=origin,
    )


def _format_limit(found: LimitText, gate: Gate) -> str:
    """Format the limit on one line, in a form that can be parsed again."""
    side = ""
    if found.side is Sense.AT_LEAST and not found.signed:
        side = ">="
    elif found.side not in (None, gate.sense):
        side = "<="
    confidence = "" if found.confidence is None else f" @{found.confidence:f}"
    return f"{side}{found.text}{confidence}{' warn' if found.warns else ''}"


def _to_float(value: Decimal | None) -> float | None:
    return None if value is None else float(value)


_POINTS = ("pt", "pp")
_PERCENT = "%"
#: Larger changes are most likely typos.
_MAX_CHANGE = Decimal(10)


class _UnitScale(Struct, frozen=True, kw_only=True):
    """The factors of a unit's spellings, the maximum plausible value, and an example."""

    units: Mapping[str, Decimal]
    max_value: Decimal
    example: str


_SCALES: Mapping[str, _UnitScale] = {
    "bytes": _UnitScale(
        units={"B": Decimal(1)}
        | {f"{prefix}B": Decimal(1000) ** power for power, prefix in enumerate(("k", "M", "G", "T"), 1)}
        | {f"{prefix}iB": Decimal(1024) ** power for power, prefix in enumerate(("K", "M", "G", "T"), 1)}
        | {"KB": Decimal(1000)},
        max_value=Decimal(1 << 60),
        example="24 MiB",
    ),
    "ratio": _UnitScale(
        units={"": Decimal(1), _PERCENT: Decimal("0.01")}, max_value=Decimal(1), example="10%"
    ),
    "ns": _UnitScale(
        units={"ns": Decimal(1), "us": Decimal(1_000), "µs": Decimal(1_000), "μs": Decimal(1_000)}
        | {"ms": Decimal(1_000_000), "s": Decimal(1_000_000_000)},
        max_value=Decimal(10**15),
        example="120 ms",
    ),
    "count": _UnitScale(units={"": Decimal(1)}, max_value=Decimal(10**9), example="48"),
    "psi": _UnitScale(
        units=dict.fromkeys(("Ψ", "ψ", "psi", "Psi"), Decimal(1)), max_value=Decimal(1000), example="3Ψ"
    ),
}


class Amount(Struct, frozen=True, kw_only=True):
    """The amount that a limit allows: a value in the gate's unit, or a change as a ratio or in points."""

    value: Decimal | None = None
    change_ratio: Decimal | None = None
    change_points: Decimal | None = None


def parse_amount(gate: Gate, found: LimitText) -> Amount:
    """Return the amount that the limit allows.

    Raises:
        InvalidLimit: The unit does not fit, or the amount is impossible or allows everything.
    """
    example = _SCALES[gate.unit].example
    if found.exact:
        if not gate.exact:
            raise InvalidLimit(f"applies to bytes and counts only, not to {gate.name}", f"write {example}")
        _refuse_wrong_side(gate, found.side or gate.sense, Decimal(0))
        return Amount(change_ratio=Decimal(0))
    is_points = found.unit in _POINTS
    if not found.signed and not is_points:
        return Amount(value=_parse_absolute(gate, found))
    if not gate.of_baseline:
        raise InvalidLimit(
            f"is a change, but {gate.name} is compared with a formula, not with a baseline",
            f"write {example}",
        )
    if not found.signed:
        raise InvalidLimit(
            "needs a sign", f"write +{found.text} for an increase over the baseline, - for a decrease"
        )
    if is_points and gate.unit != "ratio":
        raise InvalidLimit(f"is in points, but {gate.name} is not a ratio", "write +2% of the baseline")
    if not is_points and found.unit != _PERCENT:
        raise InvalidLimit("is a change, but not in percent", f"write +2% of the baseline, or {example}")
    change = found.number / 100
    _refuse_wrong_side(gate, found.side or gate.sense, change)
    _refuse_useless(change, is_points=is_points)
    return Amount(change_points=change) if is_points else Amount(change_ratio=change)


def _parse_absolute(gate: Gate, found: LimitText) -> Decimal:
    scale = _SCALES[gate.unit]
    factor = scale.units.get(found.unit)
    if factor is None:
        alternative = (
            f", or +{found.text} of the baseline" if found.unit == _PERCENT and gate.of_baseline else ""
        )
        raise InvalidLimit(
            f"does not have a unit that fits {gate.name}", f"write {scale.example}{alternative}"
        )
    value = found.number * factor
    if value > scale.max_value:
        raise InvalidLimit(f"is larger than {gate.name} can be", f"write {scale.example}")
    return value


def _refuse_wrong_side(gate: Gate, sense: Sense, change: Decimal) -> None:
    is_upper = gate.sense is Sense.AT_MOST
    if sense is not gate.sense or (change < 0 if is_upper else change > 0):
        kind, direction = ("an upper", "less") if is_upper else ("a lower", "more")
        raise InvalidLimit(
            f"requires {direction} than the baseline: a relative limit of {gate.name} is {kind} limit",
            "write +2%, or a value" if is_upper else "write -5pt, or a value such as >=0.7",
        )


def _refuse_useless(change: Decimal, *, is_points: bool) -> None:
    if change <= -1 or change > _MAX_CHANGE or (is_points and change >= 1):
        raise InvalidLimit("allows everything", "write a smaller change, or turn the gate off with false")
