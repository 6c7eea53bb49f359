"""``zprof_run``: what it takes and refuses, and which rank it names as the cause; nothing is recorded."""

import json
import math
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.pytest_suites import RUNS
from zprof.base.errors import BadInput, MissingPackage, ZprofError
from zprof.collectors.record.launch.pytest_rank import RankPlan, failure_path, stack_path
from zprof.testing.run_fixture import RunFixture, describe_failure, describe_timeout


class Step:
    def __call__(self) -> None:
        pass


def whole(record: object) -> None:
    pass


def with_more(record: object, width: int) -> None:
    pass


@pytest.fixture
def runs(tmp_path: Path) -> RunFixture:
    return RunFixture(tmp_path / "runs")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda runs: runs(3), "function"),
        (lambda runs: runs(with_more), "2 required arguments"),
        (lambda runs: runs(whole, ranks=0), "ranks=0"),
        (lambda runs: runs(whole, ranks="2"), "ranks='2'"),
        (lambda runs: runs(whole, timeout_s=0), "timeout_s=0"),
        (lambda runs: runs(whole, timeout_s=math.nan), "timeout_s=nan"),
        (lambda runs: runs(whole, timeout_s=1e11), "timeout_s=1"),
        (lambda runs: runs(whole, timeout_s="60"), "timeout_s='60'"),
        (lambda runs: runs(whole, modell=1), "modell"),
        (lambda runs: runs(whole, model=1), "model"),
        (lambda runs: runs(whole, ranks=2, model=1), "model"),
        (lambda runs: runs(Step(), ranks=2), "ranks=2"),
        (lambda runs: runs(lambda record: None, ranks=2), "process"),
        (lambda runs: runs.load("/nowhere"), "/nowhere"),
        (lambda runs: runs.get_limited_run(), "zprof_limit"),
    ],
)
def test_what_cannot_be_recorded_is_refused(
    runs: RunFixture, call: Callable[[RunFixture], object], named: str
) -> None:
    with pytest.raises(BadInput) as refused:
        call(runs)
    assert named in refused.value.message
    assert refused.value.hint


def test_without_torch_or_with_recording_turned_off_nothing_is_recorded(
    runs: RunFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "zprof.collectors.record.recorder", raising=False)
        patch.setitem(sys.modules, "torch", None)
        for ranks in (1, 2):
            with pytest.raises(MissingPackage, match=r"zprof\[record\]"):
                runs(lambda record: None, ranks=ranks)
    monkeypatch.setenv("ZPROF", "0")
    for ranks in (1, 2):
        with pytest.raises(ZprofError, match="ZPROF=0"):
            runs(lambda record: None, ranks=ranks)


def test_limits_are_of_one_run(runs: RunFixture) -> None:
    runs.load(RUNS / "ddp", limited=False)
    second = runs.load(RUNS / "zero3")
    assert runs.get_limited_run() is second
    runs.load(RUNS / "ddp")
    with pytest.raises(BadInput, match="2 runs"):
        runs.get_limited_run()


LOST = "RuntimeError: Connection closed by peer"
MINE = "ValueError: mine (test_m.py:3)"


@pytest.mark.parametrize(
    ("raised", "codes", "named"),
    [
        ({0: (200, LOST), 2: (100, MINE)}, {0: 1, 2: 1, 1: 0}, ("rank 2 of 3", MINE)),
        ({0: (100, LOST)}, {0: 1, 1: -signal.SIGKILL}, ("rank 1 of 2", "SIGKILL")),
        ({0: (100, LOST)}, {0: 1, 1: -63}, ("rank 1 of 2", "63")),
        ({0: (100, LOST)}, {0: 1, 1: 3}, ("rank 1 of 2", "code 3")),
        ({1: (100, MINE)}, {0: -signal.SIGABRT, 1: 1}, ("rank 1 of 2", MINE)),
        ({}, {0: -signal.SIGABRT}, ("rank 0 of 1", "SIGABRT")),
        ({0: (100, "ValueError: \x1b[31m" + "x" * 9999)}, {0: 1}, ("rank 0 of 1", "\\x1b[31m")),
    ],
)
def test_the_rank_that_failed_first_is_named(
    tmp_path: Path, raised: dict[int, tuple[int, str]], codes: dict[int, int], named: tuple[str, ...]
) -> None:
    for rank, (time_ns, line) in raised.items():
        failure_path(tmp_path, rank).write_text(json.dumps({"time_ns": time_ns, "line": line}))
    said = describe_failure(codes, len(codes), tmp_path)
    assert all(word in said for word in named), said
    assert said.isprintable()
    assert len(said) < 400


def test_a_rank_that_hangs_is_named_with_its_line_of_the_test(tmp_path: Path) -> None:
    plan = RankPlan(
        module="m", file="/t/test_m.py", train=b"", run="", schedule=b"", memory_mode="full", backend="gloo",
        timeout_s=20,
    )  # fmt: skip
    stack_path(tmp_path, 0).write_text(
        'Timeout (0:00:15)!\nThread 0x1 (most recent call first):\n  File "/lib/x.py", line 5 in wait\n'
        '  File "/t/test_m.py", line 31 in train\n  File "/t/test_m.py", line 9 in outer\n'
    )
    stack_path(tmp_path, 1).write_text("")
    said = describe_timeout([0, 1], 3, tmp_path, plan)
    assert all(word in said for word in ("0, 1 of 3", "20 s", "rank 0 is at test_m.py:31"))
    assert "1.5 s" in describe_timeout([2], 3, tmp_path, replace(plan, timeout_s=1.5))
