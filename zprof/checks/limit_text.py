"""Parse the text of a limit: ``[<=|>=] [+|-]NUMBER [UNIT] [@ CONFIDENCE] [warn]``, or ``exact``.

``+2%`` is relative to the baseline, ``+3pt`` adds percentage points to it, ``24 MiB``, ``10%``, ``120 ms``
and ``3Ψ`` are absolute. Numbers are decimal, so ``0.1%`` is exactly 0.001.
"""

import re
from dataclasses import dataclass
from decimal import Decimal

from zprof.model.check import Sense
from zprof.model.formatting import printable, shorten

_MAX_LENGTH = 80
#: As word processors write it.
_MINUS = "\N{MINUS SIGN}"
_SHOWN_COLUMNS = 48
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
_CLOSE = ("", "%", "pt", "pp", "Ψ", "ψ")
_SIDES = {"<=": Sense.AT_MOST, "≤": Sense.AT_MOST, ">=": Sense.AT_LEAST, "≥": Sense.AT_LEAST}


class InvalidLimit(ValueError):
    """A limit that is not valid: ``why``, and a ``hint`` at what would be."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitText:
    """The parts of a limit as written. ``number`` is signed if ``signed``; ``text`` is the quantity alone."""

    side: Sense | None
    exact: bool
    signed: bool
    number: Decimal
    unit: str
    confidence: Decimal | None
    warns: bool
    text: str


def parse_limit_text(text: str) -> LimitText:
    """Return the parts of ``text``.

    Raises:
        InvalidLimit: The text is not a limit.
    """
    plain = " ".join(text.replace(_MINUS, "-").split()) if len(text) <= _MAX_LENGTH else ""
    found = _LIMIT.fullmatch(plain)
    if found is None:
        raise InvalidLimit(
            "is no limit", "write a change such as +2% or +3pt, or a value such as 24 MiB, 10%, 120 ms, >=0.7"
        )
    sign = found["sign"] or ""
    return LimitText(
        side=_SIDES.get(found["side"] or ""),
        exact=found["exact"] is not None,
        signed=bool(sign),
        number=Decimal(sign + (found["number"] or "0")),
        unit=found["unit"] or "",
        confidence=_check_confidence(found["confidence"], found["percent"]),
        warns=found["warn"] is not None,
        text=_format_quantity(found),
    )


def parse_confidence(said: object) -> Decimal:
    """Return ``0.95`` or ``"95%"`` as a number above 0.5 and below 1.

    Raises:
        InvalidLimit: The value is not a confidence.
    """
    text = format_number(said) if is_number(said) else said if isinstance(said, str) else ""
    found = re.fullmatch(rf"({_NUMBER})\s*(%?)", text[:_MAX_LENGTH])
    if found is None:
        raise _confidence_error()
    value = _check_confidence(found[1], found[2])
    assert value is not None
    return value


def is_number(said: object) -> bool:
    """Return whether ``said`` is an int or a float, and not a boolean."""
    return isinstance(said, int | float) and not isinstance(said, bool)


def format_number(said: object) -> str:
    """Return a number as the text of a limit, without an exponent.

    Raises:
        InvalidLimit: The number is too large for a limit, or not finite.
    """
    if not isinstance(said, int | float) or not -1e18 < said < 1e18:
        raise InvalidLimit("is no limit", "write a finite number")
    return f"{Decimal(repr(said)):f}"


def quote_input(said: object) -> str:
    """Return user input in quotes, shortened and safe to print."""
    try:
        text = str(said)
    except ValueError:  # an int with more digits than Python converts to text
        text = type(said).__name__
    return f'"{shorten(printable(text[: 4 * _SHOWN_COLUMNS]), _SHOWN_COLUMNS)}"'


def _check_confidence(number: str | None, percent: str | None) -> Decimal | None:
    if number is None:
        return None
    value = Decimal(number) / (100 if percent else 1)
    if not Decimal("0.5") < value < 1:
        raise _confidence_error()
    return value


def _confidence_error() -> InvalidLimit:
    return InvalidLimit("has no confidence above 0.5 and below 1", "write 0.95")


def _format_quantity(found: re.Match[str]) -> str:
    if found["exact"]:
        return "exact"
    unit = found["unit"] or ""
    gap = "" if unit in _CLOSE else " "
    return f"{found['sign'] or ''}{found['number']}{gap}{unit}"
