"""Every limit that can be written reads back, and nothing but BadInput ever comes of reading one."""

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zprof.checks.limits import GATES, Gate, find_gate, parse_limit
from zprof.model.check import Limit, Sense
from zprof.model.errors import BadInput
from zprof.model.formatting import printable

NAMES = [gate.name for gate in GATES]
UNITS = {
    "bytes": {"B": 1, "kB": 1000, "MB": 1000**2, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3},
    "ratio": {"%": Decimal("0.01"), "": 1},
    "ns": {"ns": 1, "us": 1000, "ms": 1000**2, "s": 1000**3},
    "count": {"": 1},
    "psi": {"Ψ": 1, "psi": 1},
}
MOST = {"bytes": 1000, "ratio": Decimal("0.999"), "ns": 1000, "count": 1000, "psi": 1000}


@st.composite
def absolutes(draw: st.DrawFn, gate: Gate) -> tuple[str, float]:
    number = draw(st.decimals(0, MOST[gate.unit], places=3))
    unit = draw(st.sampled_from(sorted(UNITS[gate.unit])))
    value = float(number * UNITS[gate.unit][unit])
    return f"{number:f}{draw(st.sampled_from(['', ' ']))}{unit}", value


@st.composite
def changes(draw: st.DrawFn, gate: Gate) -> tuple[str, str, float]:
    percent = draw(st.decimals(0, 99, places=2))
    points = gate.unit == "ratio" and draw(st.booleans())
    sign = "-" if gate.sense is Sense.AT_LEAST else "+"
    change = float(Decimal(f"{sign}{percent}") / 100)
    return (
        f"{sign}{percent:f}{'pt' if points else '%'}",
        "change_points" if points else "change_ratio",
        change,
    )


@st.composite
def written(draw: st.DrawFn) -> tuple[str, object, dict[str, Any]]:
    """A gate, what may be written of it, and what that means."""
    gate = draw(st.sampled_from(GATES))
    meant: dict[str, Any] = {"value": None, "change_ratio": None, "change_points": None}
    if gate.of_baseline and draw(st.booleans()):
        text, field, change = draw(changes(gate))
        meant |= {field: change, "sense": gate.sense}
        side = gate.sense
    else:
        text, meant["value"] = draw(absolutes(gate))
        side = draw(st.sampled_from(Sense))
    confidence = draw(st.none() | st.decimals("0.51", "0.99", places=2)) if gate.sampled else None
    warns = draw(st.booleans())
    meant |= {"sense": side, "warns": warns, "confidence": None if confidence is None else float(confidence)}
    if draw(st.booleans()):
        table: dict[str, object] = {"max" if side is Sense.AT_MOST else "min": text, "warn": warns}
        return gate.name, table | ({} if confidence is None else {"confidence": float(confidence)}), meant
    sign = "<=" if side is Sense.AT_MOST else ">="
    after = ("" if confidence is None else f"@{confidence}") + (" warn" if warns else "")
    return gate.name, sign + text + after, meant


@given(written())
def test_every_written_limit_means_what_it_says_and_reads_back(
    said: tuple[str, object, dict[str, Any]],
) -> None:
    gate, text, meant = said
    limit = parse_limit(gate, text, origin="here")
    assert limit is not None
    assert {name: getattr(limit, name) for name in meant} == meant
    assert limit.unit == _unit(gate)
    assert parse_limit(gate, limit.said, origin="here") == limit


def _unit(gate: str) -> str:
    known = find_gate(gate)
    assert known is not None
    return known.unit


#: Text that is nearly a limit, and text that is not.
PARTS = (
    *("+", "-", "<=", ">=", "≤", "0", "2", "95", ".", "1e3", "%", "pt", "MiB", "ms", "Ψ", "psi", "@", "0.95"),
    *(" ", "exact", "off", "warn", "\n", "\x1b", "\u0661", "²", "∞", "nan", "\ud800"),
)
NEARLY = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | NEARLY | st.datetimes()
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["max", "min", "confidence", "warn"]) | st.text(max_size=4), inner, max_size=4
        )
    ),
    max_leaves=6,
)


@given(st.sampled_from(NAMES) | st.text(), ANYTHING)
def test_reading_raises_bad_input_or_gives_a_limit_that_makes_sense(gate: str, said: object) -> None:
    limit, line = read(gate, said)
    assert line == printable(line)
    if limit is not None:
        assert_sensible(limit)
        assert parse_limit(gate, limit.said, origin="here") == limit


def read(gate: str, said: object) -> tuple[Limit | None, str]:
    """The limit, or the line that refuses it."""
    try:
        return parse_limit(gate, said, origin="here"), ""
    except BadInput as refused:
        return None, f"{refused.message}; {refused.hint}"


def assert_sensible(limit: Limit) -> None:
    amounts = (limit.value, limit.change_ratio, limit.change_points)
    assert sum(amount is not None for amount in amounts) == 1
    assert limit.value is None or limit.value >= 0
    assert limit.unit != "ratio" or limit.value is None or limit.value <= 1
    assert limit.confidence is None or 0.5 < limit.confidence < 1
