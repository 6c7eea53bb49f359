"""Parse limits as users write them, text or table, to :class:`~zprof.model.check.Limit`; list all gates.

Text: ``+2%``, ``exact`` (as ``+0%``: equal or less, nothing more), ``24 MiB``, ``10%``, ``>=0.7``, ``-5pt``,
``120 ms``, ``3Ψ`` or ``3 psi``. With ``@0.95`` a limit fails only if the interval of that confidence is
beyond it, with ``warn`` it never fails. Table: ``{max = "+3%", confidence = 0.95, warn = true}``, ``min`` for
a lower limit. ``false`` and ``off`` turn a gate off. A signed percentage is relative to the baseline. An
unsigned one is a value, which only ratios accept.

Units of gates: ``bytes``, ``ratio``, ``ns``, ``count``, and ``psi`` (Ψ: bytes of all parameters as they are
communicated, the unit of the ZeRO formulas: 2Ψ for stages 0 to 2, 3Ψ for stage 3).
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

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
from zprof.model.tenants import DISPLAY_ORDER

PEAK_MEMORY = "peak_memory"
UNTAGGED = "untagged"
#: The parts that ``peak_memory.<part>`` accepts: the six tenants and untagged bytes.
MEMORY_PARTS: tuple[str, ...] = (*(tenant.value for tenant in DISPLAY_ORDER), UNTAGGED)
_MAX_SUGGESTIONS = 2
_MAX_NAME_LENGTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A gate and the kinds of limits that it accepts.

    ``exact``: its value is counted and the same in each recording of equal work, so ``exact`` has a meaning.
    ``sampled``: its value varies over steps, so ``confidence`` has a meaning. ``of_baseline``: a limit may
    allow a change against the baseline.
    """

    name: str
    unit: str
    sense: Sense = Sense.AT_MOST
    exact: bool = False
    sampled: bool = False
    of_baseline: bool = True

    @property
    def is_timed(self) -> bool:
        """Whether the gate rests on clocks, and therefore on the load of the machine."""
        return self.name in _TIMED


_TIMED = ("exposed_ratio", "overlap_ratio", "step_time", "exposed_wait")

#: In the order in which they are judged and shown.
GATES: tuple[Gate, ...] = (
    Gate(name=PEAK_MEMORY, unit="bytes", exact=True),
    *(Gate(name=f"{PEAK_MEMORY}.{part}", unit="bytes", exact=True) for part in MEMORY_PARTS),
    Gate(name="untagged_ratio", unit="ratio"),
    Gate(name="exposed_ratio", unit="ratio", sampled=True),
    Gate(name="overlap_ratio", unit="ratio", sense=Sense.AT_LEAST, sampled=True),
    Gate(name="collective_bytes", unit="bytes", exact=True),
    Gate(name="collective_count", unit="count", exact=True),
    Gate(name="collective_bytes_law", unit="psi", of_baseline=False),
    Gate(name="step_time", unit="ns", sampled=True),
    Gate(name="exposed_wait", unit="ns"),
)

_BY_NAME = {gate.name: gate for gate in GATES}


def find_gate(name: str) -> Gate | None:
    """Return the gate with exactly that name, None if there is none."""
    return _BY_NAME.get(name)


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Return a hint: the names that ``name`` may have meant (``did you mean peak_memory?``), or all names."""
    names = list(known)
    near = difflib.get_close_matches(name[:_MAX_NAME_LENGTH].lower(), names, n=_MAX_SUGGESTIONS, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"


#: The keys of a limit that is written as a table.
LIMIT_WORDS = ("max", "min", "confidence", "warn")


def parse_limit(gate: str, said: object, *, origin: str, place: str = "") -> Limit | None:
    """Return the limit of ``gate`` that ``said`` (text, number, table or boolean) states, None if it is off.

    ``origin`` names the source of the limit. ``place`` names it for error messages, with file and key.

    Raises:
        BadInput: There is no such gate, or the limit does not fit it.
    """
    place = place or origin
    known = find_gate(gate)
    if known is None:
        raise BadInput(
            f"{place}: there is no gate {quote_input(gate)}",
            hint=suggest_names(gate, [entry.name for entry in GATES]),
        )
    try:
        found = _parse_wording(said)
        return None if found is None else _make_limit(known, found, origin)
    except InvalidLimit as error:
        raise BadInput(f"{place}: {_quote_limit(said)} {error.why}", hint=error.hint) from None


def _quote_limit(said: object) -> str:
    if isinstance(said, Mapping):
        inner = ", ".join(f"{key} = {value}" for key, value in list(said.items())[:4] if _is_leaf(value))
        return quote_input(f"{{{inner}}}")
    return quote_input(said)


def _is_leaf(value: object) -> bool:
    return isinstance(value, str | bool | float) or (isinstance(value, int) and abs(value) < 10**18)


def _parse_wording(said: object) -> LimitText | None:
    """Return the parts of a limit, None if it turns the gate off."""
    if said is False or (isinstance(said, str) and said.strip().lower() == "off"):
        return None
    if isinstance(said, str):
        return parse_limit_text(said)
    if is_number(said):
        return parse_limit_text(format_number(said))
    if isinstance(said, Mapping):
        return _parse_table(said)
    raise InvalidLimit(
        "is no limit", 'write text such as "+2%", a table {max = "+2%"}, or false to turn it off'
    )


def _parse_table(table: Mapping[object, object]) -> LimitText | None:
    for key in table:
        if key not in LIMIT_WORDS:
            raise InvalidLimit(f"has no word {quote_input(key)}", suggest_names(str(key), LIMIT_WORDS))
    sides = [
        (key, Sense.AT_MOST if key == "max" else Sense.AT_LEAST) for key in LIMIT_WORDS[:2] if key in table
    ]
    if len(sides) != 1:
        raise InvalidLimit("needs max or min, and not both", 'write {max = "+3%", confidence = 0.95}')
    key, side = sides[0]
    if isinstance(table[key], Mapping):
        raise InvalidLimit(f"has a table for {key}", f'write {key} = "+3%"')
    found = _parse_wording(table[key])
    if found is None:
        raise InvalidLimit(f"has no limit for {key}", "turn a gate off with false in place of the table")
    if found.side not in (None, side):
        raise InvalidLimit(f"contradicts itself: {key} with a limit of the other side", "leave out <= or >=")
    return replace(
        found, side=side, confidence=_one_confidence(table, found), warns=_parse_warn(table, found)
    )


def _one_confidence(table: Mapping[object, object], found: LimitText) -> Decimal | None:
    if "confidence" not in table:
        return found.confidence
    if found.confidence is not None:
        raise InvalidLimit("states its confidence twice", "write it once")
    return parse_confidence(table["confidence"])


def _parse_warn(table: Mapping[object, object], found: LimitText) -> bool:
    warn = table.get("warn", found.warns)
    if not isinstance(warn, bool):
        raise InvalidLimit("has a word for warn that is not true or false", "write warn = true")
    return warn


def _make_limit(gate: Gate, found: LimitText, origin: str) -> Limit:
    if found.confidence is not None and not gate.sampled:
        raise InvalidLimit(
            f"has a confidence, and {gate.name} is one value, no sample of steps", "leave out the confidence"
        )
    amount = read_amount(gate, found)
    return Limit(
        gate=gate.name,
        unit=gate.unit,
        sense=found.side or gate.sense,
        value=_float(amount.value),
        change_ratio=_float(amount.change_ratio),
        change_points=_float(amount.change_points),
        confidence=_float(found.confidence),
        warns=found.warns,
        said=_format_limit(found, gate),
        origin=origin,
    )


def _format_limit(found: LimitText, gate: Gate) -> str:
    """Return the limit on one line, in a form that can be parsed again."""
    side = ""
    if found.side is Sense.AT_LEAST and not found.signed:
        side = ">="
    elif found.side not in (None, gate.sense):
        side = "<="
    confidence = "" if found.confidence is None else f" @{found.confidence:f}"
    return f"{side}{found.text}{confidence}{' warn' if found.warns else ''}"


def _float(value: Decimal | None) -> float | None:
    return None if value is None else float(value)


_POINTS = ("pt", "pp")
_PERCENT = "%"
#: A larger change guards nothing and is more likely a typo than intended.
_MAX_CHANGE = Decimal(10)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """The factors of a unit's texts, the maximum that makes sense, and an example."""

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
    """The amount that a limit allows: a value in the gate's unit, or a change in share or points."""

    value: Decimal | None = None
    change_ratio: Decimal | None = None
    change_points: Decimal | None = None


def read_amount(gate: Gate, found: LimitText) -> Amount:
    """Return how much of ``gate`` the limit ``found`` allows.

    Raises:
        InvalidLimit: The unit does not fit, or the amount is impossible or allows everything.
    """
    example = _SCALES[gate.unit].example
    if found.exact:
        if not gate.exact:
            raise InvalidLimit(f"is for bytes and counts, and {gate.name} is neither", f"write {example}")
        _refuse_wrong_side(gate, found.side or gate.sense, Decimal(0))
        return Amount(change_ratio=Decimal(0))
    is_points = found.unit in _POINTS
    if not found.signed and not is_points:
        return Amount(value=_read_absolute(gate, found))
    if not gate.of_baseline:
        raise InvalidLimit(
            f"is a change, and {gate.name} is compared with a formula, not with a baseline",
            f"write {example}",
        )
    if not found.signed:
        raise InvalidLimit("has no sign", f"write +{found.text} for more than the baseline, - for less")
    if is_points and gate.unit != "ratio":
        raise InvalidLimit(f"is in points, and {gate.name} is no ratio", "write +2%, a share of the baseline")
    if not is_points and found.unit != _PERCENT:
        raise InvalidLimit("is a change that is not in percent", f"write +2% of the baseline, or {example}")
    share = found.number / 100
    _refuse_wrong_side(gate, found.side or gate.sense, share)
    _refuse_useless(share, is_points=is_points)
    return Amount(change_points=share) if is_points else Amount(change_ratio=share)


def _read_absolute(gate: Gate, found: LimitText) -> Decimal:
    scale = _SCALES[gate.unit]
    factor = scale.units.get(found.unit)
    if factor is None:
        change = f", or +{found.text} of the baseline" if found.unit == _PERCENT and gate.of_baseline else ""
        raise InvalidLimit(f"has no unit that fits {gate.name}", f"write {scale.example}{change}")
    value = found.number * factor
    if value > scale.most:
        raise InvalidLimit(f"is more than {gate.name} can be", f"write {scale.example}")
    return value


def _refuse_wrong_side(gate: Gate, sense: Sense, change: Decimal) -> None:
    rises = gate.sense is Sense.AT_MOST
    if sense is not gate.sense or (change < 0 if rises else change > 0):
        kind, less = ("an upper", "less") if rises else ("a lower", "more")
        raise InvalidLimit(
            f"forbids {less} than the baseline has: a change of {gate.name} is {kind} limit",
            "write +2%, or a value" if rises else "write -5pt, or a value such as >=0.7",
        )


def _refuse_useless(change: Decimal, *, is_points: bool) -> None:
    if change <= -1 or change > _MAX_CHANGE or (is_points and change >= 1):
        raise InvalidLimit("allows everything", "write less, or turn the gate off with false")
