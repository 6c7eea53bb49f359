"""Parse the text of a limit: ``[<=|>=] [+|-]NUMBER [UNIT] [@ CONFIDENCE] [warn]``, or ``exact``.

``+2%`` is relative to the baseline, ``+3pt`` adds percentage points to it, ``24 MiB``, ``10%``, ``120 ms``
and ``3Ψ`` are absolute. Numbers are decimal, so ``0.1%`` is exactly 0.001.
"""

import re
from decimal import Decimal

from msgspec import Struct

from zprof.model.check import Sense
from zprof.model.formatting import printable, shorten

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


def parse_limit_text(text: str) -> LimitText:
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
    sign = found["sign"] or ""
    return LimitText(
        side=_SENSES.get(found["side"] or ""),
        exact=found["exact"] is not None,
        signed=bool(sign),
        number=Decimal(sign + (found["number"] or "0")),
        unit=found["unit"] or "",
        confidence=_check_confidence(found["confidence"], found["percent"]),
        warns=found["warn"] is not None,
        text=_format_quantity(found),
    )


def parse_confidence(value: object) -> Decimal:
    """Parse ``0.95`` or ``"95%"`` as a number above 0.5 and below 1.

    Raises:
        InvalidLimit: The value is not a confidence.
    """
    text = format_number(value) if is_number(value) else value if isinstance(value, str) else ""
    found = re.fullmatch(rf"({_NUMBER})\s*(%?)", text[:_MAX_LENGTH])
    if found is None:
        raise _make_confidence_error()
    confidence = _check_confidence(found[1], found[2])
    assert confidence is not None
    return confidence


def is_number(value: object) -> bool:
    """Return True if ``value`` is an int or a float, and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_number(value: object) -> str:
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


def _format_quantity(found: re.Match[str]) -> str:
    if found["exact"]:
        return "exact"
    unit = found["unit"] or ""
    gap = "" if unit in _UNSPACED_UNITS else " "
    return f"{found['sign'] or ''}{found['number']}{gap}{unit}"
