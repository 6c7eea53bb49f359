"""Which rank failed first, and what is said of it."""

import json
import signal
from dataclasses import replace
from pathlib import Path

from zprof.integrations.rank_of_test import RankPlan, failure_path, place_path
from zprof.testing.ranks import describe_failure, describe_timeout

PLAN = RankPlan(
    module="m", file="/t/test_m.py", train=b"", run="", schedule=b"", memory_mode="full", backend="gloo",
    timeout_s=20,
)  # fmt: skip


def raised(folder: Path, rank: int, time_ns: int, line: str) -> None:
    failure_path(folder, rank).write_text(json.dumps({"time_ns": time_ns, "line": line}))


def test_the_first_that_raised_is_named(tmp_path: Path) -> None:
    raised(tmp_path, 0, 200, "RuntimeError: Connection closed by peer")
    raised(tmp_path, 2, 100, "ValueError: mine (test_m.py:3)")
    assert describe_failure({0: 1, 2: 1, 1: 0}, 4, tmp_path) == "rank 2 of 4: ValueError: mine (test_m.py:3)"


def test_a_killed_rank_goes_before_those_that_miss_it(tmp_path: Path) -> None:
    raised(tmp_path, 0, 100, "RuntimeError: Connection closed by peer")
    assert describe_failure({0: 1, 1: -signal.SIGKILL}, 2, tmp_path) == "rank 1 of 2 was killed by SIGKILL"
    assert describe_failure({0: 1, 1: -63}, 2, tmp_path) == "rank 1 of 2 was killed by signal 63"


def test_a_rank_that_left_without_a_word_goes_before_those_that_miss_it(tmp_path: Path) -> None:
    raised(tmp_path, 0, 100, "RuntimeError: Connection closed by peer")
    assert describe_failure({0: 1, 1: 3}, 2, tmp_path) == "rank 1 of 2 ended with exit code 3"


def test_who_aborts_because_another_raised_is_no_cause(tmp_path: Path) -> None:
    raised(tmp_path, 1, 100, "ValueError: mine")
    assert describe_failure({0: -signal.SIGABRT, 1: 1}, 2, tmp_path) == "rank 1 of 2: ValueError: mine"
    assert (
        describe_failure({0: -signal.SIGABRT}, 2, tmp_path / "other") == "rank 0 of 2 was killed by SIGABRT"
    )


def test_what_is_said_is_one_harmless_line(tmp_path: Path) -> None:
    raised(tmp_path, 0, 100, "ValueError: \x1b[31m" + "x" * 9999)
    said = describe_failure({0: 1}, 1, tmp_path)
    assert said.isprintable()
    assert len(said) < 400


def test_a_damaged_word_of_a_rank_is_none(tmp_path: Path) -> None:
    failure_path(tmp_path, 0).write_text("[1]")
    assert describe_failure({0: 1}, 2, tmp_path) == "rank 0 of 2 ended with exit code 1"


def test_who_hangs_is_said_with_the_line_of_the_test_where_it_is(tmp_path: Path) -> None:
    place_path(tmp_path, 0).write_text(
        'Timeout (0:00:15)!\nThread 0x1 (most recent call first):\n  File "/lib/x.py", line 5 in wait\n'
        '  File "/t/test_m.py", line 31 in train\n  File "/t/test_m.py", line 9 in outer\n'
    )
    place_path(tmp_path, 1).write_text("")
    line = "ranks 0, 1 of 3 did not end within 20 s (timeout_s); rank 0 is at test_m.py:31 in train"
    assert describe_timeout([0, 1], 3, tmp_path, PLAN) == line
    assert describe_timeout([2], 3, tmp_path, replace(PLAN, timeout_s=1.5)) == (
        "rank 2 of 3 did not end within 1.5 s (timeout_s)"
    )
