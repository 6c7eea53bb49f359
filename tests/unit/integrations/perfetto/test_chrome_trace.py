"""Lines of a Chrome trace: exact times, texts of strangers that stay texts, and lanes whose slices nest."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.integrations.perfetto.chrome_trace import (
    MAX_LANES,
    NO_LANE,
    assign_lanes,
    encode_arguments,
    encode_text,
    format_process,
    format_slice,
    format_us,
    sort_slices,
)

HOSTILE = ['a"b\\', "x\n\x1b[31m\x00", "\ud800 alone", "\u202e turned", "</script>", "x" * 10_000, "µ≤…"]
SHOWN = {0: "0.000", 7: "0.007", 1_234_567: "1234.567", -1_050: "-1.050", 10**15 + 1: "1000000000000.001"}


@pytest.mark.parametrize("time_ns", SHOWN)
def test_microseconds_are_exact(time_ns):
    assert format_us(time_ns) == SHOWN[time_ns]


@pytest.mark.parametrize("name", HOSTILE)
def test_texts_are_escaped_cut_and_ascii(name):
    arguments = encode_arguments({"unit": name, "bytes": 5})
    line = format_slice(3, 4, 1_500, 2_001, encode_text(name), encode_text(name), arguments)
    event = json.loads(line.encode("ascii"))
    assert (event["ts"], event["dur"], event["args"]["bytes"]) == (1.5, 2.001, 5)
    for seen in (event["name"], event["cat"], event["args"]["unit"]):
        assert len(seen) <= 8 * 300
        assert not any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 or c == "\u202e" for c in seen)
    assert json.loads(format_process(1, name, 0)[0])["args"]["name"] == event["name"]


def format_lanes(pairs: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    start = np.array([start for start, _ in pairs], dtype=np.int64)
    end = start + np.array([length for _, length in pairs], dtype=np.int64)
    sequence = sort_slices(start, end)
    found = assign_lanes(start[sequence], end[sequence])
    return list(zip(start[sequence].tolist(), end[sequence].tolist(), found.tolist(), strict=True))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=30))
def test_slices_of_a_lane_nest(pairs):
    rows = format_lanes(pairs)
    assert sorted(row[:2] for row in rows) == sorted((s, s + length) for s, length in pairs)
    for i, (start, end, lane) in enumerate(rows):
        for other_start, other_end, other in rows[i + 1 :]:
            if lane == other != NO_LANE:
                assert other_start >= end or other_end <= end, (start, end, other_start, other_end)


@pytest.mark.parametrize(
    ("pairs", "lanes"),
    [
        ([(0, 10), (2, 3), (2, 1), (5, 5), (10, 2)], [0, 0, 0, 0, 0]),
        ([(0, 10), (5, 10), (7, 10), (12, 2)], [0, 1, 2, 0]),
        ([(n, 100) for n in range(MAX_LANES + 2)], [*range(MAX_LANES), NO_LANE, NO_LANE]),
    ],
)
def test_no_lane_is_opened_without_need_and_none_beyond_the_most(pairs, lanes):
    assert [lane for *_, lane in format_lanes(pairs)] == lanes
