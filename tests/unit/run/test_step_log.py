"""A line of the log of steps: what was written comes back, what no rank writes is refused."""

import json
from typing import Any

import pytest

from zprof.run.manifest import MAX_WRITTEN_LINE_BYTES, StepLine, decode_step, encode_step

FULL = StepLine(
    step=10**9, begin_ns=1_800_000_000_000_000_000, end_ns=1_800_000_600_000_000_000, window="memory",
    device="cuda:127", allocated_bytes=10**13, peak_allocated_bytes=10**13, process_bytes=10**13,
)  # fmt: skip
BARE = StepLine(step=0, begin_ns=5, end_ns=5)


@pytest.mark.parametrize("line", [FULL, BARE])
def test_a_line_comes_back(line: StepLine) -> None:
    text = encode_step(line)
    assert decode_step(text) == line
    assert text.count(b"\n") == 1
    assert len(text) < MAX_WRITTEN_LINE_BYTES


def test_unknown_values_are_left_out_and_unknown_keys_ignored() -> None:
    assert json.loads(encode_step(BARE)) == {"step": 0, "begin_ns": 5, "end_ns": 5}
    assert decode_step(b'{"step": 0, "begin_ns": 5, "end_ns": 5, "more": [{}]}') == BARE


@pytest.mark.parametrize(
    "values",
    [
        {"step": -1},
        {"step": 1.5},
        {"step": True},
        {"begin_ns": 9, "end_ns": 8},
        {"end_ns": 1 << 80},
        {"window": "x" * 17},
        {"device": 3},
        {"allocated_bytes": -1},
        {"process_bytes": "much"},
    ],
    ids=str,
)
def test_values_that_no_rank_writes_are_refused(values: dict[str, Any]) -> None:
    good = {"step": 1, "begin_ns": 1, "end_ns": 8}
    assert decode_step(json.dumps(good).encode()) is not None
    assert decode_step(json.dumps(good | values).encode()) is None


@pytest.mark.parametrize("text", [b"", b"null", b"[1]", b"\xff\xfe", b"[" * 4000, b'{"step": 1', b"\x1b[2J"])
def test_text_that_is_no_line_is_refused(text: bytes) -> None:
    assert decode_step(text) is None
