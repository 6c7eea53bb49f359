"""Commands that diagnose the same runs over and over: each run is diagnosed once for a module of tests."""

from collections.abc import Iterator

import pytest

from zprof.model.report import Report
from zprof.rules import diagnose as diagnosing
from zprof.run.reader import Run


@pytest.fixture(scope="module")
def diagnosed_once() -> Iterator[None]:
    """For modules whose runs do not change once they are written."""
    real, reports = diagnosing.diagnose, dict[str, Report]()

    def same(run: Run) -> Report:
        key = f"{run.path.absolute()} {run.manifest}"
        if key not in reports:
            reports[key] = real(run)
        return reports[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnosing, "diagnose", same)
        yield
