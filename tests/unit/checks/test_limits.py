"""What a team may write of a limit, what it means, and what is refused in one line."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.base.errors import BadInput
from zprof.base.formatting import printable
from zprof.checks.limit_text import parse_limit
from zprof.checks.limits import GATES
from zprof.model.comparison import Limit, Sense

AT_MOST, AT_LEAST = Sense.AT_MOST, Sense.AT_LEAST


def limit(gate: str, said: object) -> Limit:
    found = parse_limit(gate, said, origin="here")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("gate", "said", "wanted", "shown"),
    [
        ("peak_memory", "exact", {"change_ratio": 0.0}, "+0%"),
        ("peak_memory", "1.5 GiB", {"value": 1.5 * 1024**3}, None),
        ("peak_memory.activations", "3 KiB", {"value": 3 * 1024}, None),
        ("collective_bytes", "500 MB", {"value": 500e6}, None),
        ("collective_bytes_law", "2.5 psi", {"value": 2.5}, None),
        ("exposed_ratio", "10%", {"value": 0.1}, None),
        ("step_time", "1.5 s", {"value": 1.5e9}, None),
        ("exposed_wait", "9 ns", {"value": 9}, None),
        ("peak_memory", "<=24MiB", {"value": 24 * 1024**2, "sense": AT_MOST}, "24 MiB"),
        ("collective_count", 48, {"value": 48}, "48"),
        ("collective_count", ">=4", {"sense": AT_LEAST}, None),
        ("collective_count", "12 warn", {"value": 12, "warns": True}, None),
        ("exposed_ratio", 1e-5, {"value": 1e-5}, "0.00001"),
        ("exposed_ratio", "+3 pp", {"change_points": 0.03}, None),
        ("overlap_ratio", "0.7", {"value": 0.7, "sense": AT_LEAST}, "0.7"),
        ("overlap_ratio", "<= 0.9", {"sense": AT_MOST}, "<=0.9"),
        ("overlap_ratio", "\N{MINUS SIGN}5pt", {"change_points": -0.05, "sense": AT_LEAST}, None),
        (
            "overlap_ratio",
            {"min": "-5pt", "confidence": "95%"},
            {"confidence": 0.95, "sense": AT_LEAST},
            None,
        ),
        ("step_time", "700 µs", {"value": 700e3}, None),
        ("step_time", " + 3 %@ 95%", {"change_ratio": 0.03, "confidence": 0.95}, "+3% @0.95"),
        (
            "step_time",
            {"max": "+3%", "confidence": 0.95, "warn": True},
            {"change_ratio": 0.03, "confidence": 0.95, "warns": True},
            "+3% @0.95 warn",
        ),
    ],
)
def test_a_limit_means_what_is_written(
    gate: str, said: object, wanted: dict[str, Any], shown: str | None
) -> None:
    found = limit(gate, said)
    assert {name: getattr(found, name) for name in wanted} == wanted
    assert (found.gate, found.origin) == (gate, "here")
    if shown is not None and said != "exact":
        assert found.said == shown
    assert limit(gate, found.said) == found, "it reads back"


#: A gate, what is refused, and what the user is told to write instead.
REFUSED: list[tuple[str, object, str]] = [
    ("peak_memory", "-5 MiB", "percent"),
    ("peak_memory", 25165824, "24 MiB"),
    ("peak_memory", "24 Mb", "24 MiB"),
    ("peak_memory", "24 ms", "24 MiB"),
    ("peak_memory", "2%", "+2%"),
    ("peak_memory", "-2%", ""),
    ("peak_memory", "99999999 TiB", ""),
    ("peak_memory", "+5000%", ""),
    ("peak_memory", "+2%@0.95", "confidence"),
    ("exposed_ratio", "300%", ""),
    ("exposed_ratio", "+100pt", ""),
    ("exposed_ratio", "3pt", ""),
    ("overlap_ratio", "+5pt", "-5pt"),
    ("overlap_ratio", "-100%", ""),
    ("step_time", "120", "120 ms"),
    ("step_time", "+3%@0.5", "0.5"),
    ("step_time", {"max": "+3%", "confidence": 95}, "0.95"),
    ("step_time", {"max": "+3%@0.9", "confidence": 0.95}, "confidence"),
    ("step_time", {"max": "+3%", "warn": "yes"}, "warn = true"),
    ("step_time", {"max": "+3%", "min": "1 ms"}, ""),
    ("step_time", {"confidence": 0.95}, "max"),
    ("step_time", {"max": False}, "false"),
    ("step_time", {"max": "+3%", "confidense": 0.95}, "confidence"),
    ("collective_bytes_law", "+2%", ""),
    ("collective_bytes_law", "3", "3Ψ"),
    ("peak_memory", True, ""),
    ("peak_memory", float("nan"), ""),
    ("peak_memory", "\u0663%", ""),
    ("collective_count", {"max": 10**5000}, ""),
    ("step_time", "\x1b[2J\n::error::\u202e\ud800" + "x" * 10_000, ""),
    ("step_tme", "+2%", "step_time"),
    ("peak_memory.activation", "+2%", "peak_memory.activations"),
    ("zzz", "+2%", "peak_memory"),
]


@pytest.mark.parametrize(("gate", "said", "remedy"), REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(gate: str, said: object, remedy: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_limit(gate, said, origin="zprof.toml", place="ci/zprof.toml, [check] x")
    line = f"{refused.value.message}; {refused.value.hint}"
    assert line.startswith("ci/zprof.toml, [check] x: ")
    assert remedy in line
    assert refused.value.hint
    assert line.isprintable()
    assert len(line) < 500


#: Text that is nearly a limit, and text that is not.
PARTS = (
    *("+", "-", "<=", ">=", "≤", "0", "2", "95", ".", "1e3", "%", "pt", "MiB", "ms", "Ψ", "psi", "@", "0.95"),
    *(" ", "exact", "off", "warn", "\n", "\x1b", "\u0661", "²", "∞", "nan", "\ud800"),
)
NEARLY = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | NEARLY | st.datetimes()
KEYS = st.sampled_from(["max", "min", "confidence", "warn"]) | st.text(max_size=4)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=50)
@given(st.sampled_from(list(GATES)) | st.text(), ANYTHING)
def test_anything_is_refused_or_is_a_limit_that_makes_sense(gate: str, said: object) -> None:
    try:
        found = parse_limit(gate, said, origin="here")
    except BadInput as refused:
        line = f"{refused.message}; {refused.hint}"
        assert line == printable(line)
        return
    if found is None:
        return
    amounts = (found.value, found.change_ratio, found.change_points)
    assert sum(amount is not None for amount in amounts) == 1
    assert found.value is None or found.value >= 0
    assert found.unit != "ratio" or found.value is None or found.value <= 1
    assert found.confidence is None or 0.5 < found.confidence < 1
    assert limit(gate, found.said) == found
