"""The words of ``zprof_limit`` and the gates that they stand for."""

import pytest

from zprof.base.errors import BadInput
from zprof.checks.limits import GATES
from zprof.model.comparison import Limit
from zprof.model.tenants import Tenant
from zprof.testing.limits import KEYS, Marker, parse_markers


def one(**named: object) -> Limit:
    (limit,) = parse_markers([Marker(named=named)])
    return limit


@pytest.mark.parametrize(
    ("key", "said", "gate"),
    [
        ("peak", "24 MiB", "peak_memory"),
        ("optimizer_state", "1 KiB", "peak_memory.optimizer_state"),
        ("untagged", "0.1%", "untagged_ratio"),
        ("exposed", "10%", "exposed_ratio"),
        ("overlap", ">=0.7", "overlap_ratio"),
        ("bytes", "+1%", "collective_bytes"),
        ("bytes", "3Ψ", "collective_bytes_law"),
        ("bytes", {"max": "3 psi"}, "collective_bytes_law"),
        ("count", "exact", "collective_count"),
        ("step", {"max": "+3%", "confidence": 0.95}, "step_time"),
        ("wait", "1 ms", "exposed_wait"),
        ("peak_memory.untagged", "1 KiB", "peak_memory.untagged"),
    ],
)
def test_a_word_stands_for_a_gate(key: str, said: object, gate: str) -> None:
    limit = one(**{key: said})
    assert (limit.gate, limit.origin) == (gate, "zprof_limit")
    assert {tenant.value for tenant in Tenant} <= set(KEYS)
    assert set(KEYS.values()) <= set(GATES)


def test_of_one_gate_the_nearest_marker_counts() -> None:
    near = Marker(named={"peak": "1 KiB", "bytes": "3Ψ", "wait": False})
    far = Marker(named={"count": "exact", "peak_memory": "2 KiB", "wait": "1 ms"})
    limits = {limit.gate: limit.value for limit in parse_markers([near, far])}
    assert limits == {"collective_count": None, "peak_memory": 1024, "collective_bytes_law": 3}
    assert parse_markers([Marker(named={"peak": False}), Marker(named={"peak": "1 KiB"})]) == ()


@pytest.mark.parametrize(
    ("marker", "named"),
    [
        (Marker(named={"peek": "1 KiB"}), "peak"),
        (Marker(named={"peak": "1 KiBs"}), "zprof_limit, peak: "),
        (Marker(named={"count": "3Ψ"}), "zprof_limit, count: "),
        (Marker(positional=("24 MiB",)), "zprof_limit"),
        (Marker(), "zprof_limit"),
        (Marker(named={"bytes": "+0%", "collective_bytes": "900 GB"}), "bytes and collective_bytes"),
        (Marker(named={"peak_memory": False, "peak": "1 KiB"}), "peak_memory and peak"),
        (Marker(named={"\x1b[31m" * 50: "1"}), "\\x1b[31m"),
    ],
)
def test_a_mistake_is_one_line(marker: Marker, named: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_markers([marker])
    line = f"{refused.value.message}; {refused.value.hint}"
    assert named in line
    assert line.isprintable()
    assert len(line) < 300
