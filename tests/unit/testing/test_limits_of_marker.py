"""The words of ``zprof_limit`` and the gates that they stand for."""

import pytest

from zprof.checks.limits import GATES
from zprof.model.check import Limit, Sense
from zprof.model.errors import BadInput
from zprof.model.tenants import Tenant
from zprof.testing.marker import KEYS, Marker, parse_markers


def one(**named: object) -> Limit:
    (limit,) = parse_markers([Marker(named=named)])
    return limit


@pytest.mark.parametrize(
    ("key", "said", "gate"),
    [
        ("peak", "24 MiB", "peak_memory"),
        ("activations", "+0%", "peak_memory.activations"),
        ("optimizer_state", "1 KiB", "peak_memory.optimizer_state"),
        ("untagged", "0.1%", "untagged_ratio"),
        ("exposed", "10%", "exposed_ratio"),
        ("overlap", ">=0.7", "overlap_ratio"),
        ("bytes", "24 MiB", "collective_bytes"),
        ("bytes", "+1%", "collective_bytes"),
        ("bytes", "3Ψ", "collective_bytes_law"),
        ("bytes", "3 psi", "collective_bytes_law"),
        ("bytes", {"max": "3ψ"}, "collective_bytes_law"),
        ("count", "exact", "collective_count"),
        ("step", "+3% @0.95", "step_time"),
        ("wait", "1 ms", "exposed_wait"),
        ("peak_memory.untagged", "1 KiB", "peak_memory.untagged"),
        ("collective_bytes_law", "3Ψ", "collective_bytes_law"),
    ],
)
def test_a_word_stands_for_a_gate(key: str, said: object, gate: str) -> None:
    limit = one(**{key: said})
    assert limit.gate == gate
    assert limit.origin == "zprof_limit"


def test_every_tenant_has_a_word_and_every_word_a_gate() -> None:
    assert {tenant.value for tenant in Tenant} <= set(KEYS)
    assert set(KEYS.values()) <= {gate.name for gate in GATES}


def test_what_is_said_is_read() -> None:
    assert one(peak="24 MiB").value == 24 * 2**20
    assert one(overlap=">=0.7").sense is Sense.AT_LEAST
    assert one(step={"max": "+3%", "confidence": 0.95}).confidence == 0.95


def test_of_one_gate_the_nearest_marker_counts() -> None:
    near = Marker(named={"peak": "1 KiB", "bytes": "3Ψ"})
    far = Marker(named={"count": "exact", "peak_memory": "2 KiB", "wait": "1 ms"})
    limits = parse_markers([near, far])
    assert [(limit.gate, limit.said) for limit in limits] == [
        ("collective_count", "exact"),
        ("exposed_wait", "1 ms"),
        ("peak_memory", "1 KiB"),
        ("collective_bytes_law", "3Ψ"),
    ]


def test_a_limit_that_is_turned_off_near_the_test_is_off() -> None:
    limits = parse_markers([Marker(named={"peak": False}), Marker(named={"peak": "1 KiB", "wait": "1 ms"})])
    assert [limit.gate for limit in limits] == ["exposed_wait"]


def test_the_only_limit_may_be_turned_off() -> None:
    assert parse_markers([Marker(named={"peak": False}), Marker(named={"peak": "1 KiB"})]) == ()


@pytest.mark.parametrize(
    ("marker", "line"),
    [
        (Marker(named={"peek": "1 KiB"}), "zprof_limit: there is no limit peek; did you mean peak?"),
        (Marker(named={"peak": "1 KiBs"}), "zprof_limit, peak: "),
        (Marker(named={"count": "3Ψ"}), "zprof_limit, count: "),
        (Marker(positional=("24 MiB",)), "zprof_limit: every limit has a name; "),
        (Marker(), "zprof_limit: states no limit; "),
        (
            Marker(named={"bytes": "+0%", "collective_bytes": "900 GB"}),
            "zprof_limit: bytes and collective_bytes are the same limit; ",
        ),
        (
            Marker(named={"peak_memory": False, "peak": "1 KiB"}),
            "zprof_limit: peak_memory and peak are the same limit; ",
        ),
        (Marker(named={"\x1b[31m" * 50: "1"}), "zprof_limit: there is no limit \\x1b[31m"),
    ],
)
def test_a_mistake_is_one_line(marker: Marker, line: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_markers([marker])
    said = f"{raised.value.message}; {raised.value.hint}"
    assert said.startswith(line)
    assert said.isprintable()
    assert len(said) < 300
