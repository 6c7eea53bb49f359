"""A suite of tests within a test.  What it imports stays imported: numpy cannot be imported twice."""

from functools import cache

import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pytest

from tests.support.pytest_suites import RUNS, Suite
from zprof.model.report import Report
from zprof.notebook import report as diagnosing
from zprof.run.reader import Run, load
from zprof.testing import limits  # noqa: F401


@cache
def _report() -> Report:
    return diagnosing.diagnose(load(RUNS / "zero3"))


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    report = _report()

    def same(run: Run) -> Report:
        assert run.path == RUNS / "zero3"
        return report

    monkeypatch.setattr(diagnosing, "diagnose", same)
    return Suite(pytester, monkeypatch)
