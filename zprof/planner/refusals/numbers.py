"""Numbers that a job may hold: whole ones within bounds, and finite ones.

The bounds are far beyond what is built, and near enough that no figure of a plan overflows or takes long.
"""

import math

from zprof.model.errors import BadInput


def whole(what: str, value: object, *, most: int, least: int = 1) -> None:
    """Refuse what is no whole number from ``least`` to ``most``.

    Raises:
        BadInput: one line with the number and the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{what} is {_shown(value)}", hint="a whole number")
    if not least <= value <= most:
        raise BadInput(f"{what} is {_shown(value)}", hint=f"a whole number from {least} to {_shown(most)}")


def positive(what: str, value: object, *, most: float) -> None:
    """Refuse what is no finite number above 0 and up to ``most``.

    Raises:
        BadInput: one line with the number and the bounds.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 < value <= most:  # type: ignore[arg-type, operator]
        raise BadInput(f"{what} is {_shown(value)}", hint=f"a number above 0 and up to {most:g}")


def _shown(value: object) -> str:
    """A number of any length in a few letters."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**6:
        digits = value.bit_length() * 3 // 10
        return f"{value:g}" if digits < 300 else f"a number of about {digits} digits"
    return repr(value)[:40]
