"""Provide a fixture that records a piece of training, and a marker that limits what it may cost.

    @pytest.mark.zprof_limit(peak="24 MiB", activations="+0%")
    def test_step(zprof_run):
        zprof_run(step, model=model, optimizer=optimizer)

A session that uses neither pays nothing: the implementation is imported by the first test that needs it.
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from zprof.model.errors import ZprofError
from zprof.model.formatting import printable

if TYPE_CHECKING:
    from zprof.model.check import Limit
    from zprof.testing.judging import LimitVerdict
    from zprof.testing.run_fixture import RunFixture


_MARKER, _FIXTURE, _UPDATE = "zprof_limit", "zprof_run", "--zprof-update-baseline"
_REQUIRE = "zprof_require_baseline"
_HELP = (
    f'{_MARKER}(peak="24 MiB", activations="+0%", untagged="0.1%", exposed="10%", overlap=">=0.7", '
    'bytes="3Ψ", count="+0%", step="+3%", …): what the run that the test records with '
    f"{_FIXTURE} may cost."
)
_LIMITS: "pytest.StashKey[tuple[Limit, ...]]" = pytest.StashKey()
_RUNS: "pytest.StashKey[RunFixture]" = pytest.StashKey()
_SAID: "pytest.StashKey[list[tuple[str, str]]]" = pytest.StashKey()
#: Attribute of a test's report, so that it travels from the workers of pytest-xdist.
_ATTRIBUTE = "zprof_said"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the setting."""
    parser.addini(
        _REQUIRE,
        type="bool",
        default=False,
        help=f"a test with {_MARKER} fails where its limits need a baseline that was not written yet",
    )
    parser.getgroup("zprof").addoption(
        _UPDATE,
        action="store_true",
        help=f"keep what the tests with {_MARKER} measure as the baseline of their limits, where they pass",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker."""
    config.addinivalue_line("markers", _HELP)


@pytest.fixture
def zprof_run(request: pytest.FixtureRequest, tmp_path: Path) -> "_Fixture":
    """Record a piece of training and open the recording: ``run = zprof_run(step, model=model)``.

    A function without arguments is one step; one that takes ``record`` is all of the training:
    ``with record(model=model) as recording: ... recording.step()``.  ``ranks=2`` runs that in two
    processes.  ``steps=zprof.steps(...)`` says which steps are recorded.  ``run.report`` is its diagnosis.
    ``zprof_run.load(path)`` opens a run that the test recorded itself.
    """
    from zprof.testing.run_fixture import RunFixture

    runs = RunFixture(tmp_path / "zprof-runs")
    request.node.stash[_RUNS] = runs
    return _Fixture(runs)


class _Fixture:
    """Turn zprof's errors into one line of a failed test; exceptions of the test's own code pass through."""

    def __init__(self, runs: "RunFixture") -> None:
        self._runs = runs

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        try:
            return self._runs(*arguments, **named)
        except ZprofError as error:
            line = _line(error)
        pytest.fail(line, pytrace=False)

    def load(self, *arguments: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        try:
            return self._runs.load(*arguments, **named)
        except ZprofError as error:
            line = _line(error)
        pytest.fail(line, pytrace=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Read the limits before anything is recorded: a mistake in them is an error of the test."""
    markers = list(item.iter_markers(_MARKER))
    if not markers:
        return
    from zprof.testing.marker import Marker, parse_markers

    try:
        limits = parse_markers(Marker(positional=m.args, named=m.kwargs) for m in markers)
    except ZprofError as error:
        line = _line(error)
    else:
        if not limits or _FIXTURE in getattr(item, "fixturenames", ()):
            item.stash[_LIMITS] = limits
            return
        line = f"{_MARKER} limits a recorded run, and the test has none: give it the fixture {_FIXTURE}"
    pytest.fail(line, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Check the run against the limits after the test's own code has passed."""
    result = yield
    limits = item.stash.get(_LIMITS, ())
    if limits:
        failures = _hold(item, limits)
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
    return result


def _hold(item: pytest.Item, limits: "tuple[Limit, ...]") -> tuple[str, ...]:
    from zprof.testing.judging import baseline_path, judge

    try:
        run = item.stash[_RUNS].held()
        item.add_report_section("call", "zprof", f"zprof report {run.path}")
        update = item.config.getoption(_UPDATE)
        judged = judge(run, limits, baseline_path(item.path, _names(item)), update=update)
    except ZprofError as error:
        return (_line(error),)
    item.user_properties.extend(judged.properties)
    item.stash[_SAID] = said = list(_said(judged, item.config.rootpath))
    if not judged.first_run:
        return judged.failures
    if item.config.getini(_REQUIRE):
        return (*judged.failures, f"{judged.first_run} ({_REQUIRE})")
    said.append(("notice", judged.first_run))
    return judged.failures


def _names(item: pytest.Item) -> list[str]:
    """Return the names of a test and its classes; its nodeid may end with the group of pytest-xdist."""
    return [node.name for node in item.listchain() if isinstance(node, pytest.Class)] + [item.name]


def _said(judged: "LimitVerdict", root: Path) -> Iterator[tuple[str, str]]:
    """Yield kind and line of what the terminal summary reports for a test."""
    yield from (("warning", line) for line in judged.warnings)
    yield from (("notice", line) for line in judged.notices)
    if judged.written is not None:
        path = judged.written
        yield "wrote", printable(path.relative_to(root) if path.is_relative_to(root) else path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    """Attach the lines for the terminal summary to the report."""
    report = yield
    if call.when == "call" and (said := item.stash.get(_SAID, None)):
        setattr(report, _ATTRIBUTE, said)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a section if there is something to report."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    said = [
        (report.nodeid, kind, line) for report in reports for kind, line in getattr(report, _ATTRIBUTE, ())
    ]
    if not said:
        return
    terminalreporter.write_sep("=", "zprof")
    for nodeid, kind, line in said:
        terminalreporter.write_line(f"{printable(nodeid)}: {kind}: {line}", yellow=kind == "warning")


def _line(error: ZprofError) -> str:
    return printable(f"{error.message}; {error.hint}" if error.hint else error.message)
