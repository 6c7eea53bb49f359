"""What a team writes of a limit: what it means, and what is refused in one line."""

import datetime

import pytest

from zprof.checks.limits import GATES, parse_limit
from zprof.model.check import Limit, Sense
from zprof.model.errors import BadInput
from zprof.model.tenants import Tenant


def limit(gate: str, said: object) -> Limit:
    found = parse_limit(gate, said, origin="here")
    assert found is not None
    return found


def amounts(gate: str, said: object) -> tuple[float | None, float | None, float | None]:
    found = limit(gate, said)
    return found.value, found.change_ratio, found.change_points


@pytest.mark.parametrize(
    ("gate", "said", "value", "share", "points"),
    [
        ("peak_memory", "+2%", None, 0.02, None),
        ("peak_memory", "+0%", None, 0.0, None),
        ("peak_memory", "exact", None, 0.0, None),
        ("peak_memory", "24 MiB", 24 * 1024**2, None, None),
        ("peak_memory", "<=24MiB", 24 * 1024**2, None, None),
        ("peak_memory", "1.5 GiB", 1.5 * 1024**3, None, None),
        ("peak_memory", "2 TiB", 2 * 1024**4, None, None),
        ("peak_memory.activations", "3 KiB", 3 * 1024, None, None),
        ("peak_memory.untagged", "12 B", 12, None, None),
        ("collective_bytes", "500 MB", 500e6, None, None),
        ("collective_bytes", "2 kB", 2000, None, None),
        ("collective_bytes", "2 KB", 2000, None, None),
        ("collective_bytes", "1 GB", 1e9, None, None),
        ("collective_count", 48, 48, None, None),
        ("collective_count", "≤ 48.5", 48.5, None, None),
        ("collective_bytes_law", "3Ψ", 3, None, None),
        ("collective_bytes_law", "2.5 psi", 2.5, None, None),
        ("untagged_ratio", "0.1%", 0.001, None, None),
        ("exposed_ratio", "10%", 0.1, None, None),
        ("exposed_ratio", "<=10%", 0.1, None, None),
        ("exposed_ratio", 0.1, 0.1, None, None),
        ("exposed_ratio", "+3pt", None, None, 0.03),
        ("exposed_ratio", "+3 pp", None, None, 0.03),
        ("exposed_ratio", "+100%", None, 1.0, None),
        ("overlap_ratio", ">=0.7", 0.7, None, None),
        ("overlap_ratio", 0.7, 0.7, None, None),
        ("overlap_ratio", "-5pt", None, None, -0.05),
        ("overlap_ratio", "\N{MINUS SIGN}5pt", None, None, -0.05),
        ("overlap_ratio", "-5%", None, -0.05, None),
        ("step_time", "120 ms", 120e6, None, None),
        ("step_time", "1.5 s", 1.5e9, None, None),
        ("step_time", "700 µs", 700e3, None, None),
        ("step_time", "700 us", 700e3, None, None),
        ("exposed_wait", "9 ns", 9, None, None),
    ],
)
def test_how_much_is_allowed(
    gate: str, said: object, value: float | None, share: float | None, points: float | None
) -> None:
    assert amounts(gate, said) == (value, share, points)


def test_overlap_has_a_lower_limit_and_all_else_an_upper_one() -> None:
    lower = {gate.name for gate in GATES if gate.sense is Sense.AT_LEAST}
    assert lower == {"overlap_ratio"}
    assert limit("overlap_ratio", "70%").sense is Sense.AT_LEAST
    assert limit("exposed_ratio", "70%").sense is Sense.AT_MOST
    assert limit("overlap_ratio", "<=0.9").sense is Sense.AT_MOST
    assert limit("collective_count", ">=4").sense is Sense.AT_LEAST


def test_each_tenant_has_a_gate_and_each_gate_a_unit() -> None:
    units = {gate.name: limit(gate.name, _EXAMPLES[gate.unit]).unit for gate in GATES}
    assert units == {gate.name: gate.unit for gate in GATES}
    assert {f"peak_memory.{tenant}" for tenant in (*Tenant, "untagged")} < set(units)


_EXAMPLES = {"bytes": "1 MiB", "ratio": "10%", "ns": "1 ms", "count": "4", "psi": "3 psi"}


def test_a_table_says_confidence_and_warning() -> None:
    found = limit("step_time", {"max": "+3%", "confidence": 0.95, "warn": True})
    assert (found.change_ratio, found.confidence, found.warns) == (0.03, 0.95, True)
    assert found.said == "+3% @0.95 warn"
    assert found.origin == "here"
    plain = limit("step_time", {"max": "+3%"})
    assert (plain.confidence, plain.warns, plain.said) == (None, False, "+3%")
    lower = limit("overlap_ratio", {"min": "-5pt", "confidence": "95%"})
    assert (lower.sense, lower.change_points, lower.confidence) == (Sense.AT_LEAST, -0.05, 0.95)


@pytest.mark.parametrize("said", ["+3%@0.95", "+3% @ 95%", " +3%  @0.95 "])
def test_text_says_confidence(said: str) -> None:
    found = limit("step_time", said)
    assert (found.change_ratio, found.confidence, found.warns) == (0.03, 0.95, False)


@pytest.mark.parametrize(
    ("gate", "said", "shown"),
    [
        ("peak_memory", " 24MiB ", "24 MiB"),
        ("peak_memory", "<=3B", "3 B"),
        ("overlap_ratio", "0.7", "0.7"),
        ("overlap_ratio", "≥0.7", ">=0.7"),
        ("overlap_ratio", "<= 0.9", "<=0.9"),
        ("exposed_ratio", 1e-5, "0.00001"),
        ("collective_bytes_law", "3 Ψ", "3Ψ"),
        ("step_time", "+ 3 %@ 95%", "+3% @0.95"),
    ],
)
def test_how_a_limit_is_shown(gate: str, said: object, shown: str) -> None:
    assert limit(gate, said).said == shown


def test_text_says_a_warning() -> None:
    assert limit("exposed_wait", "+10% warn").warns
    assert limit("collective_count", "12 warn").value == 12


@pytest.mark.parametrize("said", [False, "off", " OFF "])
def test_off(said: object) -> None:
    assert parse_limit("peak_memory", said, origin="here") is None


@pytest.mark.parametrize(
    ("gate", "said", "words"),
    [
        ("peak_memory", "-5 MiB", "not in percent"),
        ("peak_memory", "+5 MiB", "not in percent"),
        ("peak_memory", "24", "no unit that fits peak_memory; write 24 MiB"),
        ("peak_memory", 25165824, "write 24 MiB"),
        ("peak_memory", "24 Mb", "no unit"),
        ("peak_memory", "24 ms", "no unit that fits peak_memory"),
        ("peak_memory", "2%", "or +2% of the baseline"),
        ("peak_memory", "-2%", "an upper limit"),
        ("peak_memory", ">=+2%", "an upper limit"),
        ("peak_memory", "+2pt", "is no ratio"),
        ("peak_memory", "99999999 TiB", "more than peak_memory can be"),
        ("peak_memory", "+5000%", "allows everything"),
        ("peak_memory", "+2%@0.95", "leave out the confidence"),
        ("peak_memory", {"max": "+2%", "confidence": 0.95}, "leave out the confidence"),
        ("exposed_wait", "+2%@0.95", "leave out the confidence"),
        ("exposed_ratio", "300%", "more than exposed_ratio can be"),
        ("exposed_ratio", "10", "more than exposed_ratio can be"),
        ("exposed_ratio", "-0.1", "not in percent"),
        ("exposed_ratio", -0.1, "not in percent"),
        ("exposed_ratio", "+100pt", "allows everything"),
        ("exposed_ratio", "3pt", "has no sign"),
        ("exposed_ratio", "10 MiB", "no unit that fits exposed_ratio"),
        ("exposed_ratio", "exact", "for bytes and counts"),
        ("overlap_ratio", "+5pt", "write -5pt"),
        ("overlap_ratio", {"max": "+5pt"}, "write -5pt"),
        ("overlap_ratio", "-100%", "allows everything"),
        ("overlap_ratio", ">=1.2", "more than overlap_ratio can be"),
        ("step_time", "120", "write 120 ms"),
        ("step_time", "+3%@2", "no confidence above 0.5"),
        ("step_time", "+3%@0.5", "no confidence above 0.5"),
        ("step_time", "+3%@100%", "no confidence above 0.5"),
        ("step_time", {"max": "+3%", "confidence": 2}, "no confidence above 0.5"),
        ("step_time", {"max": "+3%", "confidence": 95}, "write 0.95"),
        ("step_time", {"max": "+3%", "confidence": True}, "no confidence"),
        ("step_time", {"max": "+3%", "confidence": []}, "no confidence"),
        ("step_time", {"max": "+3%@0.9", "confidence": 0.95}, "twice"),
        ("step_time", {"max": "+3%", "warn": "yes"}, "warn = true"),
        ("step_time", {"max": "+3%", "min": "1 ms"}, "not both"),
        ("step_time", {"confidence": 0.95}, "needs max or min"),
        ("step_time", {"max": {"max": "+3%"}}, 'write max = "+3%"'),
        ("step_time", {"max": False}, "turn a gate off with false"),
        ("step_time", {"max": ">=1 ms"}, "contradicts itself"),
        ("step_time", {"max": "+3%", "confidense": 0.95}, "did you mean confidence?"),
        ("collective_count", "4 MiB", "write 48"),
        ("collective_bytes_law", "+2%", "held against a law"),
        ("collective_bytes_law", "3", "write 3Ψ"),
        ("collective_bytes_law", "5%", "write 3Ψ"),
        ("collective_bytes_law", "exact", "write 3Ψ"),
        ("peak_memory", ">=exact", "an upper limit"),
        ("collective_count", {"min": "exact"}, "an upper limit"),
        ("peak_memory", True, "is no limit"),
        ("peak_memory", None, "is no limit"),
        ("peak_memory", [], "is no limit"),
        ("peak_memory", datetime.date(2026, 1, 1), "is no limit"),
        ("peak_memory", float("nan"), "finite"),
        ("peak_memory", float("inf"), "finite"),
        ("peak_memory", "", "is no limit"),
        ("peak_memory", "\u0663%", "is no limit"),
        ("peak_memory", "+2%; rm -rf /", "is no limit"),
        ("peak_memory", "+" + "9" * 1000 + "%", "is no limit"),
        ("step_tme", "+2%", "did you mean step_time?"),
        ("peak_memory.activation", "+2%", "did you mean peak_memory.activations"),
        ("zzz", "+2%", "known: peak_memory"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(gate: str, said: object, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_limit(gate, said, origin="zprof.toml", place="ci/zprof.toml, [check] x")
    line = f"{refused.value.message}; {refused.value.hint}"
    assert line.startswith("ci/zprof.toml, [check] x: ")
    assert words in line
    assert refused.value.hint
    assert line.isprintable()
    assert len(line) < 500


def test_a_number_of_more_digits_than_python_writes() -> None:
    with pytest.raises(BadInput, match='here: "int" is no limit'):
        parse_limit("collective_count", 10**5000, origin="here")
    with pytest.raises(BadInput, match="is no limit"):
        parse_limit("collective_count", [10**5000], origin="here")


def test_what_was_written_is_harmless_in_the_line() -> None:
    with pytest.raises(BadInput) as refused:
        parse_limit("step_time", "\x1b[2J\n::error::\u202e\ud800" + "x" * 10_000, origin="here")
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 120
