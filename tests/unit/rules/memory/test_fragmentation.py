"""fragmentation counts what is free in segments in use, at the reserved peak, on a GPU."""

from dataclasses import replace

import pytest

from tests.support.peaks import GIB, MIB, gpu, memory_run, tenants, with_rank
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.gaps import Gap
from zprof.rules.memory.fragmentation import fragmentation


def answer(**terms: int | None) -> Finding | Gap | None:
    return fragmentation(gpu(**terms), None)


def test_free_pieces_are_named() -> None:
    finding = answer(
        reserved_bytes=100 * MIB,
        split_bytes=20 * MIB,
        awaiting_free_bytes=4 * MIB,
        free_segments_bytes=9 * MIB,
    )
    assert isinstance(finding, Finding)
    assert finding.id == "ZP202"
    assert finding.saving_bytes == (12 * MIB, 24 * MIB)
    assert finding.confidence is Confidence.HIGH
    assert "expandable_segments" in finding.fix
    assert "RECORD_STREAMS" not in finding.fix
    assert "24.0 %" in finding.sentence


def test_blocks_that_await_a_stream_have_their_own_fix() -> None:
    finding = answer(reserved_bytes=100 * MIB, split_bytes=2 * MIB, awaiting_free_bytes=20 * MIB)
    assert isinstance(finding, Finding)
    assert "RECORD_STREAMS" in finding.fix
    assert "expandable_segments" not in finding.fix
    both = answer(reserved_bytes=100 * MIB, split_bytes=10 * MIB, awaiting_free_bytes=12 * MIB)
    assert isinstance(both, Finding)
    assert "RECORD_STREAMS" in both.fix
    assert "expandable_segments" in both.fix


@pytest.mark.parametrize(("split_mib", "fires"), [(9.9, False), (10.1, True)])
def test_a_tenth_of_what_is_reserved(split_mib: float, *, fires: bool) -> None:
    found = answer(reserved_bytes=100 * MIB, split_bytes=int(split_mib * MIB), awaiting_free_bytes=0)
    assert isinstance(found, Finding) == fires


def test_segments_that_are_wholly_free_do_not_count() -> None:
    assert answer(reserved_bytes=100 * MIB, split_bytes=MIB, free_segments_bytes=30 * MIB) is None


def test_severity_is_a_share_of_the_device_where_that_is_known() -> None:
    terms = {"reserved_bytes": 100 * MIB, "split_bytes": 20 * MIB}
    small, large = answer(**terms), answer(**terms, device_total_bytes=80 * GIB)
    assert isinstance(small, Finding)
    assert isinstance(large, Finding)
    assert (small.severity, large.severity) == (Severity.HIGH, Severity.LOW)


def test_reserved_alone_is_an_upper_bound() -> None:
    analysis = with_rank(memory_run(tenants(), device="cuda:0"), reserved_unused_bytes=20 * MIB)
    finding = fragmentation(analysis, None)
    assert isinstance(finding, Finding)
    assert finding.confidence is Confidence.LOW
    assert finding.saving_bytes == (0, 20 * MIB)


def test_a_gpu_that_was_not_watched_is_not_tested() -> None:
    gap = fragmentation(memory_run(device="cuda:0"), None)
    assert isinstance(gap, Gap)
    assert gap.what == "rule fragmentation not tested"
    assert isinstance(answer(reserved_bytes=None, split_bytes=None), Gap)


def test_another_moment_is_not_the_reserved_peak() -> None:
    analysis = gpu(reserved_bytes=100 * MIB, split_bytes=50 * MIB)
    (look,) = analysis.memory.devices
    other = replace(look, moment="allocated peak")
    moved = replace(analysis, memory=replace(analysis.memory, devices=(other,)))
    assert isinstance(fragmentation(moved, None), Gap)


def test_a_cpu_has_nothing_to_test() -> None:
    assert fragmentation(memory_run(), None) is None


@pytest.mark.parametrize(("split_mib", "awaiting_mib"), [(5, 15), (15, 5)])
def test_a_quarter_of_it_has_its_fix_and_a_tenth_of_what_is_reserved_is_enough(
    split_mib: int, awaiting_mib: int
) -> None:
    terms = {"split_bytes": split_mib * MIB, "awaiting_free_bytes": awaiting_mib * MIB}
    finding = answer(reserved_bytes=200 * MIB, **terms)
    assert isinstance(finding, Finding)
    assert "RECORD_STREAMS" in finding.fix
    assert "expandable_segments" in finding.fix
