"""Parse a limit from text, a number or a table.

Text: ``[<=|>=] [+|-]NUMBER [UNIT] [@ CONFIDENCE] [warn]``, or ``exact`` (same as ``+0%``: equal or less).
``+2%`` is relative to the baseline, ``-5pt`` adds percentage points to it; ``24 MiB``, ``10%``, ``>=0.7``,
``120 ms``, ``3Ψ`` and ``3 psi`` are absolute, an unsigned percentage only for ratios. Numbers are decimal, so
``0.1%`` is exactly 0.001. With ``@0.95`` a limit fails only if the interval with that confidence is beyond
it, with ``warn`` it never fails. Table: ``{max = "+3%", confidence = 0.95, warn = true}``, ``min`` for a
lower limit. ``false`` and ``off`` turn a gate off.

Units of gates: ``bytes``, ``ratio``, ``ns``, ``count``, and ``psi`` (Ψ: bytes of all parameters in the
communication data type, the unit of the ZeRO formulas: 2Ψ for stages 0 to 2, 3Ψ for stage 3).
"""

import re
from collections.abc import Mapping
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput, suggest_names
from zprof.base.formatting import printable, shorten
from zprof.checks.limits import GATES, Gate
from zprof.model.comparison import Limit, Sense
from zprof.model.quantities import Unit

#: The keys of a limit in table form.
LIMIT_KEYS = ("max", "min", "confidence", "warn")
_MAX_LENGTH = 80
#: Minus sign as inserted by word processors.
_MINUS = "\N{MINUS SIGN}"
_MAX_QUOTE_COLUMNS = 48
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,12})?"
_LIMIT = re.compile(
    rf"""(?P<side><=|>=|≤|≥)?\s*
    (?:(?P<exact>exact)
      |(?P<sign>[+-])?\s*(?P<number>{_NUMBER})\s*(?P<unit>(?!warn\b)[^0-9\s@+-]{{1,12}})?)
    (?:\s*@\s*(?P<confidence>{_NUMBER})\s*(?P<percent>%)?)?
    (?:\s+(?P<warn>warn))?""",
    re.VERBOSE,
)
#: Units that follow their number without a space.
_UNSPACED_UNITS = ("", "%", "pt", "pp", "Ψ", "ψ")
_SENSES = {"<=": Sense.AT_MOST, "≤": Sense.AT_MOST, ">=": Sense.AT_LEAST, "≥": Sense.AT_LEAST}
_POINTS = ("pt", "pp")
_PERCENT = "%"
#: Larger changes are most likely typos.
_MAX_CHANGE = Decimal(10)


class _UnitScale(Struct, frozen=True, kw_only=True):
    """The factors of a unit's spellings, the maximum plausible value, and an example."""

    units: Mapping[str, Decimal]
    max_value: Decimal
    example: str


_SCALES: Mapping[Unit, _UnitScale] = {
    Unit.BYTES: _UnitScale(
        units={"B": Decimal(1)}
        | {f"{prefix}B": Decimal(1000) ** power for power, prefix in enumerate(("k", "M", "G", "T"), 1)}
        | {f"{prefix}iB": Decimal(1024) ** power for power, prefix in enumerate(("K", "M", "G", "T"), 1)}
        | {"KB": Decimal(1000)},
        max_value=Decimal(1 << 60),
        example="24 MiB",
    ),
    Unit.RATIO: _UnitScale(
        units={"": Decimal(1), _PERCENT: Decimal("0.01")}, max_value=Decimal(1), example="10%"
    ),
    Unit.NS: _UnitScale(
        units={"ns": Decimal(1), "us": Decimal(1_000), "µs": Decimal(1_000), "μs": Decimal(1_000)}
        | {"ms": Decimal(1_000_000), "s": Decimal(1_000_000_000)},
        max_value=Decimal(10**15),
        example="120 ms",
    ),
    Unit.COUNT: _UnitScale(units={"": Decimal(1)}, max_value=Decimal(10**9), example="48"),
    Unit.PSI: _UnitScale(
        units=dict.fromkeys(("Ψ", "ψ", "psi", "Psi"), Decimal(1)), max_value=Decimal(1000), example="3Ψ"
    ),
}


class InvalidLimit(ValueError):
    """An invalid limit: the ``reason``, and a ``hint`` how to write a valid one."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class LimitText(Struct, frozen=True, kw_only=True):
    """The parts of a limit as written. ``signed``: the number has a sign; ``text``: only the quantity."""

    side: Sense | None
    exact: bool
    signed: bool
    number: Decimal
    unit: str
    confidence: Decimal | None
    warns: bool
    text: str


def parse_limit(gate: str, stated: object, *, origin: str, place: str = "") -> Limit | None:
    """Parse a limit of ``gate`` from a text, number, table or boolean; return None if it is off.

    ``origin`` is the source of the limit. ``place`` is the source for error messages, with file and key.

    Raises:
        BadInput: The gate is unknown, or the limit does not fit it.
    """
    place = place or origin
    known = GATES.get(gate)
    if known is None:
        raise BadInput(
            f"{place}: unknown gate {quote_input(gate)}",
            hint=suggest_names(gate, list(GATES)),
        )
    try:
        parts = _parse_stated(stated)
        return None if parts is None else _make_limit(known, parts, origin)
    except InvalidLimit as error:
        raise BadInput(f"{place}: {_quote_limit(stated)} {error.reason}", hint=error.hint) from None


def _quote_limit(stated: object) -> str:
    if not isinstance(stated, Mapping):
        return quote_input(stated)
    shown = [
        f"{key} = {value}"
        for key, value in list(stated.items())[:4]
        if isinstance(value, str | bool | float) or (isinstance(value, int) and abs(value) < 10**18)
    ]
    return quote_input(f"{{{', '.join(shown)}}}")


def _parse_stated(stated: object) -> LimitText | None:
    """Parse the parts of a limit; return None if the limit turns the gate off."""
    if stated is False or (isinstance(stated, str) and stated.strip().lower() == "off"):
        return None
    if isinstance(stated, str):
        return _parse_limit_text(stated)
    if _is_number(stated):
        return _parse_limit_text(_format_number(stated))
    if isinstance(stated, Mapping):
        for key in stated:
            if key not in LIMIT_KEYS:
                raise InvalidLimit(
                    f"has the unknown key {quote_input(key)}", suggest_names(str(key), LIMIT_KEYS)
                )
        sides = [
            (key, Sense.AT_MOST if key == "max" else Sense.AT_LEAST)
            for key in LIMIT_KEYS[:2]
            if key in stated
        ]
        if len(sides) != 1:
            raise InvalidLimit("needs either max or min", 'write {max = "+3%", confidence = 0.95}')
        key, side = sides[0]
        if isinstance(stated[key], Mapping):
            raise InvalidLimit(f"has a table for {key}", f'write {key} = "+3%"')
        found = _parse_stated(stated[key])
        if found is None:
            raise InvalidLimit(
                f"has no limit for {key}", "to turn the gate off, write false instead of the table"
            )
        if found.side not in (None, side):
            raise InvalidLimit(
                f"contradicts itself: {key} with a limit in the other direction", "remove <= or >="
            )
        confidence, warn = found.confidence, stated.get("warn", found.warns)
        if "confidence" in stated:
            if confidence is not None:
                raise InvalidLimit("has two confidences", "remove one")
            confidence = _parse_confidence(stated["confidence"])
        if not isinstance(warn, bool):
            raise InvalidLimit("has a value for warn that is not true or false", "write warn = true")
        return replace(found, side=side, confidence=confidence, warns=warn)
    raise InvalidLimit(
        "is not a limit", 'write text such as "+2%", a table {max = "+2%"}, or false to turn it off'
    )


def _make_limit(gate: Gate, found: LimitText, origin: str) -> Limit:
    if found.confidence is not None and not gate.sampled:
        raise InvalidLimit(
            f"has a confidence, but {gate.name} is a single value, not a sample over steps",
            "remove the confidence",
        )
    # Exactly one of value, change_ratio and change_points.
    amounts = {name: float(amount) for name, amount in _parse_amount(gate, found).items()}
    side = ""
    if found.side is Sense.AT_LEAST and not found.signed:
        side = ">="
    elif found.side not in (None, gate.sense):
        side = "<="
    confidence = "" if found.confidence is None else f" @{found.confidence:f}"
    # One line, in a form that can be parsed again.
    text = f"{side}{found.text}{confidence}{' warn' if found.warns else ''}"
    return Limit(
        gate=gate.name,
        unit=gate.unit,
        sense=found.side or gate.sense,
        confidence=None if found.confidence is None else float(found.confidence),
        warns=found.warns,
        text=text,
        said=text,
        origin=origin,
        **amounts,
    )


def _parse_amount(gate: Gate, found: LimitText) -> dict[str, Decimal]:
    """Return what the limit allows: ``value`` in the gate's unit, or ``change_ratio``, or ``change_points``.

    Raises:
        InvalidLimit: The unit does not fit, or the amount is impossible or allows everything.
    """
    example = _SCALES[gate.unit].example
    if found.exact:
        if not gate.exact:
            raise InvalidLimit(f"applies to bytes and counts only, not to {gate.name}", f"write {example}")
        _refuse_wrong_side(gate, found.side or gate.sense, Decimal(0))
        return {"change_ratio": Decimal(0)}
    is_points = found.unit in _POINTS
    if not found.signed and not is_points:
        return {"value": _parse_absolute(gate, found)}
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
    if change <= -1 or change > _MAX_CHANGE or (is_points and change >= 1):
        raise InvalidLimit("allows everything", "write a smaller change, or turn the gate off with false")
    return {"change_points" if is_points else "change_ratio": change}


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


def _parse_limit_text(text: str) -> LimitText:
    """Parse the parts of a limit.

    Raises:
        InvalidLimit: The text is not a limit.
    """
    plain = " ".join(text.replace(_MINUS, "-").split()) if len(text) <= _MAX_LENGTH else ""
    found = _LIMIT.fullmatch(plain)
    if found is None:
        raise InvalidLimit(
            "is not a limit",
            "write a change such as +2% or +3pt, or a value such as 24 MiB, 10%, 120 ms, >=0.7",
        )
    sign, unit = found["sign"] or "", found["unit"] or ""
    gap = "" if unit in _UNSPACED_UNITS else " "
    return LimitText(
        side=_SENSES.get(found["side"] or ""),
        exact=found["exact"] is not None,
        signed=bool(sign),
        number=Decimal(sign + (found["number"] or "0")),
        unit=unit,
        confidence=_check_confidence(found["confidence"], found["percent"]),
        warns=found["warn"] is not None,
        text="exact" if found["exact"] else f"{sign}{found['number']}{gap}{unit}",
    )


def _parse_confidence(value: object) -> Decimal:
    """Parse ``0.95`` or ``"95%"`` as a number above 0.5 and below 1.

    Raises:
        InvalidLimit: The value is not a confidence.
    """
    text = _format_number(value) if _is_number(value) else value if isinstance(value, str) else ""
    found = re.fullmatch(rf"({_NUMBER})\s*(%?)", text[:_MAX_LENGTH])
    if found is None:
        raise _make_confidence_error()
    confidence = _check_confidence(found[1], found[2])
    assert confidence is not None
    return confidence


def _is_number(value: object) -> bool:
    """Return True if ``value`` is an int or a float, and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _format_number(value: object) -> str:
    """Format a number as the text of a limit, without an exponent.

    Raises:
        InvalidLimit: The number is too large for a limit, or not finite.
    """
    if not isinstance(value, int | float) or not -1e18 < value < 1e18:
        raise InvalidLimit("is not a limit", "write a finite number")
    return f"{Decimal(repr(value)):f}"


def quote_input(value: object) -> str:
    """Quote user input, shortened and safe to print."""
    try:
        text = str(value)
    except ValueError:  # an int with more digits than Python converts to text
        text = type(value).__name__
    return f'"{shorten(printable(text[: 4 * _MAX_QUOTE_COLUMNS]), _MAX_QUOTE_COLUMNS)}"'


def _check_confidence(number: str | None, percent: str | None) -> Decimal | None:
    if number is None:
        return None
    value = Decimal(number) / (100 if percent else 1)
    if not Decimal("0.5") < value < 1:
        raise _make_confidence_error()
    return value


def _make_confidence_error() -> InvalidLimit:
    return InvalidLimit("needs a confidence above 0.5 and below 1", "write 0.95")
