"""Provide a fixture that records training code, and a marker with limits on its memory, time and traffic.

    @pytest.mark.zprof_limit(peak="24 MiB", activations="+0%")
    def test_step(zprof_run):
        zprof_run(step, model=model, optimizer=optimizer)

Without them a session has no overhead: the first test that needs the implementation imports it.
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from zprof.base.errors import ZprofError
from zprof.base.formatting import printable

if TYPE_CHECKING:
    from zprof.model.comparison import Limit
    from zprof.testing.limits import LimitVerdict
    from zprof.testing.run_fixture import RunFixture


_MARKER, _FIXTURE, _UPDATE = "zprof_limit", "zprof_run", "--zprof-update-baseline"
_REQUIRE = "zprof_require_baseline"
_HELP = (
    f'{_MARKER}(peak="24 MiB", activations="+0%", untagged="0.1%", exposed="10%", overlap=">=0.7", '
    'bytes="3Ψ", count="+0%", step="+3%", …): limits on the run that the test records with '
    f"{_FIXTURE}."
)
_LIMITS: "pytest.StashKey[tuple[Limit, ...]]" = pytest.StashKey()
_RUNS: "pytest.StashKey[RunFixture]" = pytest.StashKey()
_MESSAGES: "pytest.StashKey[list[tuple[str, str]]]" = pytest.StashKey()
#: Attribute of a test's report, which pytest-xdist sends from its workers to the main process.
_ATTRIBUTE = "zprof_messages"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line option and the ini setting."""
    parser.addini(
        _REQUIRE,
        type="bool",
        default=False,
        help=f"fail tests with {_MARKER} whose limits need a baseline that does not exist yet",
    )
    parser.getgroup("zprof").addoption(
        _UPDATE,
        action="store_true",
        help=f"save the measurements of passing tests with {_MARKER} as their baselines",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _HELP)


@pytest.fixture
def zprof_run(request: pytest.FixtureRequest, tmp_path: Path) -> "_Fixture":
    """Record training code and open the recording: ``run = zprof_run(step, model=model)``.

    A function without arguments is one step; a function with an argument ``record`` is the entire training:
    ``with record(model=model) as recording: ... recording.step()``.  ``ranks=2`` runs it in two processes.
    ``steps=zprof.steps(...)`` selects the recorded steps.  ``run.report`` is the diagnosis of the run.
    ``zprof_run.load(path)`` opens a run recorded by the test itself.
    """
    from zprof.testing.run_fixture import RunFixture

    runs = RunFixture(tmp_path / "zprof-runs")
    request.node.stash[_RUNS] = runs
    return _Fixture(runs)


class _Fixture:
    """Reports zprof errors as one line of a failed test; exceptions in test code pass through."""

    def __init__(self, runs: "RunFixture") -> None:
        self._runs = runs

    def __call__(self, *arguments: Any, **keyword_arguments: Any) -> Any:
        __tracebackhide__ = True
        try:
            return self._runs(*arguments, **keyword_arguments)
        except ZprofError as error:
            line = _format_error(error)
        pytest.fail(line, pytrace=False)

    def load(self, *arguments: Any, **keyword_arguments: Any) -> Any:
        __tracebackhide__ = True
        try:
            return self._runs.load(*arguments, **keyword_arguments)
        except ZprofError as error:
            line = _format_error(error)
        pytest.fail(line, pytrace=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Parse the limits before recording, so invalid limits are a test error."""
    markers = list(item.iter_markers(_MARKER))
    if not markers:
        return
    from zprof.testing.limits import Marker, parse_markers

    try:
        limits = parse_markers(Marker(positional=m.args, named=m.kwargs) for m in markers)
    except ZprofError as error:
        line = _format_error(error)
    else:
        if not limits or _FIXTURE in getattr(item, "fixturenames", ()):
            item.stash[_LIMITS] = limits
            return
        line = f"{_MARKER} limits a recorded run, but the test records none: use the fixture {_FIXTURE}"
    pytest.fail(line, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Check the run against the limits after the test code has passed."""
    result = yield
    limits = item.stash.get(_LIMITS, ())
    if limits:
        failures = _check_limits(item, limits)
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
    return result


def _check_limits(item: pytest.Item, limits: "tuple[Limit, ...]") -> tuple[str, ...]:
    from zprof.base.formatting import format_next_step
    from zprof.testing.limits import baseline_path, judge

    try:
        run = item.stash[_RUNS].get_limited_run()
        item.add_report_section("call", "zprof", format_next_step(run.path))
        update = item.config.getoption(_UPDATE)
        verdict = judge(run, limits, baseline_path(item.path, _list_names(item)), update=update)
    except ZprofError as error:
        return (_format_error(error),)
    item.user_properties.extend(verdict.properties)
    item.stash[_MESSAGES] = messages = list(_iter_messages(verdict, item.config.rootpath))
    if not verdict.first_run:
        return verdict.failures
    if item.config.getini(_REQUIRE):
        return (*verdict.failures, f"{verdict.first_run} ({_REQUIRE})")
    messages.append(("notice", verdict.first_run))
    return verdict.failures


def _list_names(item: pytest.Item) -> list[str]:
    """List the names of a test's classes and of the test; the node id may end with a pytest-xdist group."""
    return [node.name for node in item.listchain() if isinstance(node, pytest.Class)] + [item.name]


def _iter_messages(verdict: "LimitVerdict", root: Path) -> Iterator[tuple[str, str]]:
    """Yield (kind, line) of a test's messages for the terminal summary."""
    yield from (("warning", line) for line in verdict.warnings)
    yield from (("notice", line) for line in verdict.notices)
    if verdict.written is not None:
        path = verdict.written
        yield "wrote", printable(path.relative_to(root) if path.is_relative_to(root) else path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    """Attach the messages for the terminal summary to the test's report."""
    report = yield
    if call.when == "call" and (messages := item.stash.get(_MESSAGES, None)):
        setattr(report, _ATTRIBUTE, messages)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the messages of all tests in a section."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    messages = [
        (report.nodeid, kind, line) for report in reports for kind, line in getattr(report, _ATTRIBUTE, ())
    ]
    if not messages:
        return
    terminalreporter.write_sep("=", "zprof")
    for nodeid, kind, line in messages:
        terminalreporter.write_line(f"{printable(nodeid)}: {kind}: {line}", yellow=kind == "warning")


def _format_error(error: ZprofError) -> str:
    return printable(f"{error.message}; {error.hint}" if error.hint else error.message)
