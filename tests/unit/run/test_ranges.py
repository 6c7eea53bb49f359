"""The grammar of engine ranges, friendly and hostile."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.model.collectives import CollectiveKind
from zprof.run.ranges import EngineRange, RangeVerb, parse_range

GATHER = CollectiveKind.ALL_GATHER


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "zero::launch all_gather pg=0 seq=12 unit=blocks.3 bytes=3145728 dtype=float32",
            {"verb": RangeVerb.LAUNCH, "kind": GATHER, "group": "0", "sequence": 12, "unit": "blocks.3",
             "bytes": 3145728, "dtype": "float32"},
        ),
        (
            "my_engine::comm reduce_scatter bytes=8 unit=a=b seq=0 pg=shard new=1",
            {"engine": "my_engine", "verb": RangeVerb.COMM, "kind": CollectiveKind.REDUCE_SCATTER,
             "group": "shard", "sequence": 0, "bytes": 8, "unit": "a=b"},
        ),
        ("zprof::wait", {"engine": "zprof", "verb": RangeVerb.WAIT}),
        ("zero::compute forward unit=head", {"verb": RangeVerb.COMPUTE, "unit": "head"}),
        ("zero::comm teleport pg=0", {"verb": RangeVerb.COMM, "group": "0"}),
        ("zero::wait all_gather pg=0 pg=7", {"verb": RangeVerb.WAIT, "kind": GATHER, "group": "0"}),
    ],
)  # fmt: skip
def test_ranges_of_engines(name: str, expected: dict[str, object]) -> None:
    assert parse_range(name) == EngineRange(**({"engine": "zero"} | expected))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["aten::mm", "zero::launcher all_gather", "zero:wait", "::wait", "a b::wait", "zero::wait::x",
     "zeró::wait", "", "x" * 70 + "::wait", "zero::comm " + "a" * 5000],
)  # fmt: skip
def test_other_names_are_no_ranges(name: str) -> None:
    assert parse_range(name) is None


@pytest.mark.parametrize("number", ["-1", "1e3", "٣", "1.5", "9" * 30, "", "0x1f", "+1"])
def test_numbers_must_be_plain_and_fit(number: str) -> None:
    found = parse_range(f"zero::wait all_gather pg=0 seq={number}")
    assert found is not None
    assert found.sequence is None


@settings(max_examples=50)
@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    parse_range(text)
    found = parse_range("zero::comm all_gather " + text)
    assert found is None or found.sequence is None or 0 <= found.sequence < 10**18
