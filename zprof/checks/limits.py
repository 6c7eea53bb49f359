"""From what a team writes of a limit, text or table, to a :class:`~zprof.model.check.Limit`.

Text: ``+2%``, ``exact`` (as ``+0%``: equal or less, nothing more), ``24 MiB``, ``10%``, ``>=0.7``, ``-5pt``,
``120 ms``, ``3Ψ`` or ``3 psi``; with ``@0.95`` it fails only where the interval of that confidence is beyond
the limit, with ``warn`` it never fails.  Table: ``{max = "+3%", confidence = 0.95, warn = true}``, ``min``
for a lower limit.  ``false`` and ``off`` turn a gate off.  A percentage with a sign is of the baseline; one
without is a value, and only ratios have such.
"""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from zprof.checks.limits_amount import amount_of
from zprof.checks.limits_gates import GATES, Gate, gate_named, nearest
from zprof.checks.limits_text import (
    Senseless,
    Wording,
    confidence_of,
    is_number,
    number_text,
    quoted,
    wording,
)
from zprof.model.check import Limit, Sense
from zprof.model.errors import BadInput

#: The keys of a limit that is written as a table.
LIMIT_WORDS = ("max", "min", "confidence", "warn")


def parse_limit(gate: str, said: object, *, origin: str, place: str = "") -> Limit | None:
    """The limit of ``gate`` that ``said`` (text, number, table or boolean) states; None where it is off.

    ``origin`` says where it stands, ``place`` the same for error lines, with file and key.

    Raises:
        BadInput: there is no such gate, or what is said makes no sense for it.
    """
    place = place or origin
    known = gate_named(gate)
    if known is None:
        raise BadInput(
            f"{place}: there is no gate {quoted(gate)}", hint=nearest(gate, [entry.name for entry in GATES])
        )
    try:
        found = _wording(said)
        return None if found is None else _limit(known, found, origin)
    except Senseless as error:
        raise BadInput(f"{place}: {_shown(said)} {error.why}", hint=error.hint) from None


def _shown(said: object) -> str:
    if isinstance(said, Mapping):
        inner = ", ".join(f"{key} = {value}" for key, value in list(said.items())[:4] if _is_leaf(value))
        return quoted(f"{{{inner}}}")
    return quoted(said)


def _is_leaf(value: object) -> bool:
    return isinstance(value, str | bool | float) or (isinstance(value, int) and abs(value) < 10**18)


def _wording(said: object) -> Wording | None:
    """What was said as parts; None where it turns the gate off."""
    if said is False or (isinstance(said, str) and said.strip().lower() == "off"):
        return None
    if isinstance(said, str):
        return wording(said)
    if is_number(said):
        return wording(number_text(said))
    if isinstance(said, Mapping):
        return _of_table(said)
    raise Senseless("is no limit", 'write text such as "+2%", a table {max = "+2%"}, or false to turn it off')


def _of_table(table: Mapping[object, object]) -> Wording | None:
    for key in table:
        if key not in LIMIT_WORDS:
            raise Senseless(f"has no word {quoted(key)}", nearest(str(key), LIMIT_WORDS))
    sides = [
        (key, Sense.AT_MOST if key == "max" else Sense.AT_LEAST) for key in LIMIT_WORDS[:2] if key in table
    ]
    if len(sides) != 1:
        raise Senseless("needs max or min, and not both", 'write {max = "+3%", confidence = 0.95}')
    key, side = sides[0]
    if isinstance(table[key], Mapping):
        raise Senseless(f"has a table for {key}", f'write {key} = "+3%"')
    found = _wording(table[key])
    if found is None:
        raise Senseless(f"has no limit for {key}", "turn a gate off with false in place of the table")
    if found.side not in (None, side):
        raise Senseless(f"contradicts itself: {key} with a limit of the other side", "leave out <= or >=")
    return replace(found, side=side, confidence=_one_confidence(table, found), warns=_warns(table, found))


def _one_confidence(table: Mapping[object, object], found: Wording) -> Decimal | None:
    if "confidence" not in table:
        return found.confidence
    if found.confidence is not None:
        raise Senseless("states its confidence twice", "write it once")
    return confidence_of(table["confidence"])


def _warns(table: Mapping[object, object], found: Wording) -> bool:
    warn = table.get("warn", found.warns)
    if not isinstance(warn, bool):
        raise Senseless("has a word for warn that is not true or false", "write warn = true")
    return warn


def _limit(gate: Gate, found: Wording, origin: str) -> Limit:
    if found.confidence is not None and not gate.sampled:
        raise Senseless(
            f"has a confidence, and {gate.name} is one value, no sample of steps", "leave out the confidence"
        )
    amount = amount_of(gate, found)
    return Limit(
        gate=gate.name,
        unit=gate.unit,
        sense=found.side or gate.sense,
        value=_float(amount.value),
        change_ratio=_float(amount.change_ratio),
        change_points=_float(amount.change_points),
        confidence=_float(found.confidence),
        warns=found.warns,
        said=_said(found, gate),
        origin=origin,
    )


def _said(found: Wording, gate: Gate) -> str:
    """The limit on one line, as it can be read back."""
    side = ""
    if found.side is Sense.AT_LEAST and not found.signed:
        side = ">="
    elif found.side not in (None, gate.sense):
        side = "<="
    confidence = "" if found.confidence is None else f" @{found.confidence:f}"
    return f"{side}{found.text}{confidence}{' warn' if found.warns else ''}"


def _float(value: Decimal | None) -> float | None:
    return None if value is None else float(value)
