"""What the fixture takes, and what it says of what it cannot record; nothing is recorded here."""

import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.pytest_suites import RUNS
from zprof.model.errors import BadInput, MissingData, ZprofError
from zprof.model.training import TrainingFacts
from zprof.testing.recording import takes_record
from zprof.testing.run_fixture import RecordedRun, RunFixture


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
    ("train", "expected"),
    [
        (lambda: None, False),
        (lambda width=3, *rest, **more: None, False),
        (Step(), False),
        (dict, False),
        (whole, True),
        (lambda record, width=3: None, True),
        (functools.partial(with_more, width=3), True),
    ],
)
def test_a_step_takes_nothing_and_a_training_takes_record(train: Any, expected: bool) -> None:
    assert takes_record(train) is expected


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda runs: runs(3), "zprof_run: its first argument is no function"),
        (lambda runs: runs(with_more), "zprof_run: a function of 2 arguments"),
        (lambda runs: runs(whole, ranks=0), "zprof_run: ranks=0 is no number of ranks"),
        (lambda runs: runs(whole, ranks="2"), "zprof_run: ranks='2' is no number of ranks"),
        (lambda runs: runs(whole, timeout_s=0), "zprof_run: timeout_s=0 is no time"),
        (lambda runs: runs(whole, timeout_s=math.inf), "zprof_run: timeout_s=inf is no time of at most a"),
        (lambda runs: runs(whole, timeout_s=math.nan), "zprof_run: timeout_s=nan is no time"),
        (lambda runs: runs(whole, timeout_s=1e11), "zprof_run: timeout_s=100000000000.0 is no time"),
        (lambda runs: runs(whole, timeout_s="60"), "zprof_run: timeout_s='60' is no time"),
        (lambda runs: runs(whole, modell=1), "zprof_run: there is no argument modell"),
        (
            lambda runs: runs(whole, model=1),
            "zprof_run: model cannot be given with a function that has record",
        ),
        (lambda runs: runs(whole, ranks=2, model=1), "zprof_run: model of this process cannot be given"),
        (lambda runs: runs(Step(), ranks=2), "zprof_run: ranks=2 needs a function that makes its model"),
        (lambda runs: runs(lambda record: None, ranks=2), "cannot be brought to another process"),
        (lambda runs: runs.load("/nowhere"), "/nowhere: no such run"),
        (lambda runs: runs.held(), "zprof_limit: the test recorded no run"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    runs: RunFixture, call: Callable[[RunFixture], object], line: str
) -> None:
    with pytest.raises(BadInput) as raised:
        call(runs)
    assert line in raised.value.message
    assert raised.value.hint


def test_without_torch_it_says_what_is_missing(runs: RunFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "zprof.collectors.recorder", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingData, match="recording needs torch, which is not installed"):
        runs(lambda: None)


@pytest.mark.parametrize("ranks", [1, 2])
def test_where_recording_is_turned_off_it_says_so(
    runs: RunFixture, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setenv("ZPROF", "0")
    with pytest.raises(ZprofError, match="turned off by ZPROF=0"):
        runs(lambda record: None, ranks=ranks)


def test_limits_are_of_one_run(runs: RunFixture) -> None:
    runs.load(RUNS / "ddp", limited=False)
    second = runs.load(RUNS / "zero3")
    assert runs.held() is second
    runs.load(RUNS / "ddp")
    with pytest.raises(BadInput, match="the test recorded 2 runs, and its limits are of one"):
        runs.held()


def test_the_report_is_made_once_and_again_for_other_facts() -> None:
    run = RecordedRun(RUNS / "zero3")
    assert run.report is run.report
    assert run.report.run.stage == 3
    assert run.described(TrainingFacts(stage=2)).report.run.stage == 2
