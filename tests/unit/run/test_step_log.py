"""A line of the log of steps: what was written comes back, what a rank cannot know is not there."""

import json
from typing import Any

import pytest

from zprof.run.step_log import MAX_WRITTEN_LINE_BYTES, StepLine, decode_step, encode_step

FULL = StepLine(
    step=10**9, begin_ns=1_800_000_000_000_000_000, end_ns=1_800_000_600_000_000_000, window="memory",
    device="cuda:127", allocated_bytes=10**13, peak_allocated_bytes=10**13, process_bytes=10**13,
)  # fmt: skip
BARE = StepLine(step=0, begin_ns=5, end_ns=5)


@pytest.mark.parametrize("line", [FULL, BARE])
def test_comes_back(line: StepLine) -> None:
    assert decode_step(encode_step(line)) == line


def test_is_short_and_on_one_line() -> None:
    text = encode_step(FULL)
    assert len(text) < MAX_WRITTEN_LINE_BYTES
    assert text.count(b"\n") == 1


def test_what_is_unknown_is_left_out_and_never_0() -> None:
    assert json.loads(encode_step(BARE)) == {"step": 0, "begin_ns": 5, "end_ns": 5}
    read = decode_step(encode_step(BARE))
    assert read is not None
    assert read.allocated_bytes is None
    assert read.process_bytes is None


def test_lines_of_older_and_newer_runs_are_read() -> None:
    assert decode_step(b'{"step": 3, "begin_ns": 1, "end_ns": 4}') == StepLine(step=3, begin_ns=1, end_ns=4)
    assert decode_step(b'{"step": 3, "begin_ns": 1, "end_ns": 4, "more": [{}]}') is not None


@pytest.mark.parametrize(
    "values",
    [
        {"step": -1},
        {"step": "1"},
        {"step": 1.5},
        {"step": None},
        {"step": True},
        {"begin_ns": 9, "end_ns": 8},
        {"end_ns": 1 << 80},
        {"window": "x" * 17},
        {"device": 3},
        {"allocated_bytes": -1},
        {"process_bytes": "much"},
    ],
)
def test_what_no_rank_writes_is_refused(values: dict[str, Any]) -> None:
    line = {"step": 1, "begin_ns": 1, "end_ns": 9} | values
    assert decode_step(json.dumps(line).encode()) is None


@pytest.mark.parametrize("text", [b"", b"null", b"[1]", b"\xff\xfe", b"[" * 4000, b'{"step": 1', b"\x1b[2J"])
def test_what_is_no_line_is_refused(text: bytes) -> None:
    assert decode_step(text) is None
