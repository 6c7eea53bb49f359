"""Lines of a Chrome trace: exact times, and texts of strangers that stay texts."""

import json

import pytest

from zprof.integrations.perfetto.chrome_trace import (
    flow_lines,
    format_us,
    json_arguments,
    json_text,
    process_lines,
    slice_line,
)

HOSTILE = ['a"b\\', "x\n\x1b[31m\x00", "\ud800 alone", "\u202e turned", "</script>", "x" * 10_000, "µ≤…"]


@pytest.mark.parametrize(
    ("time_ns", "shown"),
    [
        (0, "0.000"),
        (7, "0.007"),
        (1_234_567, "1234.567"),
        (-1_050, "-1.050"),
        (10**15 + 1, "1000000000000.001"),
    ],
)
def test_microseconds_are_exact(time_ns, shown):
    assert format_us(time_ns) == shown


@pytest.mark.parametrize("name", HOSTILE)
def test_texts_are_escaped_cut_and_ascii(name):
    line = slice_line(
        3, 4, 1_500, 2_001, json_text(name), json_text(name), json_arguments({"unit": name, "bytes": 5})
    )
    event = json.loads(line.encode("ascii"))
    assert (event["ts"], event["dur"], event["args"]["bytes"]) == (1.5, 2.001, 5)
    for seen in (event["name"], event["cat"], event["args"]["unit"]):
        assert len(seen) <= 8 * 300
        assert not any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 or c == "\u202e" for c in seen)
    assert json.loads(process_lines(1, name, 0)[0])["args"]["name"] == event["name"]


def test_an_arrow_has_two_ends_with_one_number():
    begin, end = map(json.loads, flow_lines(9, "all_gather", (0, 2, 1_000), (1, 3, 2_000)))
    assert (begin["ph"], begin["id"], begin["pid"], begin["tid"], begin["ts"]) == ("s", 9, 0, 2, 1.0)
    assert (end["ph"], end["id"], end["bp"], end["pid"], end["tid"], end["ts"]) == ("f", 9, "e", 1, 3, 2.0)
    assert (begin["cat"], begin["name"]) == (end["cat"], end["name"])
