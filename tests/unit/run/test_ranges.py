"""The grammar of engine ranges, friendly and hostile."""

from hypothesis import given
from hypothesis import strategies as st

from zprof.model.collectives import CollectiveKind
from zprof.run.ranges import EngineRange, RangeVerb, parse_range


def test_a_full_launch():
    assert parse_range(
        "zero::launch all_gather pg=0 seq=12 unit=blocks.3 bytes=3145728 dtype=float32"
    ) == EngineRange(
        engine="zero",
        verb=RangeVerb.LAUNCH,
        kind=CollectiveKind.ALL_GATHER,
        group="0",
        sequence=12,
        unit="blocks.3",
        bytes=3145728,
        dtype="float32",
    )


def test_any_engine_and_any_order_of_fields():
    found = parse_range("my_engine::comm reduce_scatter bytes=8 unit=a=b seq=0 pg=shard new=1")
    assert found.engine == "my_engine"
    assert (found.group, found.sequence, found.bytes, found.unit) == ("shard", 0, 8, "a=b")


def test_an_anonymous_wait_and_compute():
    assert parse_range("zprof::wait") == EngineRange(engine="zprof", verb=RangeVerb.WAIT)
    assert parse_range("zero::compute forward unit=head").verb is RangeVerb.COMPUTE
    assert parse_range("zero::compute forward unit=head").kind is None


def test_what_is_no_range():
    for name in (
        "aten::mm",
        "zero::launcher all_gather",
        "zero:wait",
        "::wait",
        "a b::wait",
        "zero::wait::x",
        "zeró::wait",
        "",
        "x" * 70 + "::wait",
        "zero::comm " + "a" * 5000,
    ):
        assert parse_range(name) is None, name


def test_numbers_must_be_plain_and_fit():
    for bad in ("-1", "1e3", "٣", "1.5", "9" * 30, "", "0x1f", "+1"):
        found = parse_range(f"zero::wait all_gather pg=0 seq={bad}")
        assert found is not None
        assert found.sequence is None, bad


def test_the_first_of_two_fields_counts():
    assert parse_range("zero::wait all_gather pg=0 pg=7 seq=1 seq=2").sequence == 1


def test_an_unknown_kind_is_no_collective():
    assert parse_range("zero::comm teleport pg=0 seq=1 bytes=4").kind is None


@given(st.text())
def test_any_text_is_survived(text):
    parse_range(text)
    parse_range("zero::wait " + text)
    found = parse_range("zero::comm all_gather " + text)
    assert found is None or found.sequence is None or 0 <= found.sequence < 10**18
