"""The plugin within pytest: what makes a test red, what is said of it, and what is kept."""

import json
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tests.support.pytest_suites import Suite, said_by_zprof
from zprof.model.comparison import Check, GateResult, Limit, Outcome
from zprof.model.quantities import Unit
from zprof.testing import limits

HOLDS = """
@pytest.mark.zprof_limit(peak="24 MiB", untagged="0.1%", bytes="3Ψ")
def test_step(zprof_run):
    assert zprof_run.load(RUN).report.run.stage == 3
"""
COMPARED = """
@pytest.mark.zprof_limit(peak="+2%", activations="+0%", count="exact", untagged="1%")
def test_step(zprof_run):
    zprof_run.load(RUN)
"""
KEPT = "zprof-baselines/test_cost.test_step.json"
UPDATE = "--zprof-update-baseline"
#: Tests that end without a baseline: limit, fixture, body, and how each ends with which words.
ENDS = [
    ('peak="24 MiB", untagged="0.1%", bytes="3Ψ"', True, "zprof_run.load(RUN)", "passed", ()),
    ('peak="9 MiB"', True, "zprof_run.load(RUN)", "failure", ("peak_memory", "9.9 MiB", "rank 0", "9.0 MiB")),
    (
        'bytes="2Ψ", peak="9 MiB"',
        True,
        "zprof_run.load(RUN)",
        "failure",
        ("law: ", "\npeak_memory: "),
    ),
    ('wait="1 us"', True, "zprof_run.load(RUN)", "passed", ()),
    ('peek="1 KiB"', True, "print('it ran')", "error", ("peek", "peak")),
    ("", True, "print('it ran')", "error", ("zprof_limit",)),
    ('"24 MiB"', True, "print('it ran')", "error", ("zprof_limit",)),
    ('peak="24 MiB"', False, "pass", "error", ("zprof_run",)),
    ("peak=False", False, "pass", "passed", ()),
    ('peak="24 MiB"', True, "pass", "failure", ("zprof_run(step)",)),
    ('peak="9 MiB"', True, "zprof_run.load(RUN); assert 3 == 2", "failure", ("assert 3 == 2",)),
    ('peak="9 MiB"', True, "zprof_run.load(RUN); pytest.skip()", "skipped", ()),
    ('peak="9 MiB"', True, "zprof_run.load('none.zprof')", "failure", ("none.zprof",)),
    ('peak="9 MiB"', True, "zprof_run(None)", "failure", ("zprof_run(step, model=model)",)),
]


def ends(folder: Path) -> list[tuple[str, str]]:
    """How each test of a JUnit file ended, and its failure."""
    cases = []
    for case in ElementTree.parse(folder / "j.xml").iter("testcase"):
        children = [child for child in case if child.tag in ("failure", "error", "skipped")]
        cases.append((children[0].tag, children[0].text or "") if children else ("passed", ""))
    return cases


def failure(suite: Suite, source: str | None = None, *options: str) -> list[str]:
    """The lines of the failure of the only test; none if it passed."""
    if source is not None:
        suite.write(source)
    suite.again("--junitxml=j.xml", *options)
    ((_, text),) = ends(suite.folder)
    return text.splitlines()


def test_every_way_to_end(suite: Suite) -> None:
    suite.write("".join(
        f"@pytest.mark.zprof_limit({limit})\ndef test_{at}({'zprof_run' * has_run}):\n    {body}\n"
        for at, (limit, has_run, body, _, _) in enumerate(ENDS)
    ))  # fmt: skip
    result = suite.again("--junitxml=j.xml")
    for (*case, outcome, named), (ended, text) in zip(ENDS, ends(suite.folder), strict=True):
        assert ended == outcome, (case, text)
        assert all(word in text for word in named), (case, text)
        if ended == "failure" and "assert" not in text:
            assert len(text.splitlines()) == case[0].count("="), "a line for each limit"
    result.stdout.no_fnmatch_line("*it ran*")
    result.stdout.fnmatch_lines(["*Captured zprof call*", "*zprof diagnose */tests/data/tui/zero3"])
    (line,) = said_by_zprof(result)
    assert line.startswith("test_cost.py::test_3: warning: exposed_wait: ")
    assert not (suite.folder / "zprof-baselines").exists()
    values = {
        each.get("name"): each.get("value")
        for each in ElementTree.parse(suite.folder / "j.xml").iter("property")
    }
    assert values["zprof.peak_memory"] == "10414528"
    assert str(values["zprof.collective_bytes_law"]).startswith("2.75")


def test_the_nearest_marker_counts_and_each_parameter_has_a_baseline(suite: Suite) -> None:
    result = suite.run(
        '@pytest.mark.zprof_limit(peak="1 KiB", count="exact")\n'
        "class TestSizes:\n"
        '    @pytest.mark.zprof_limit(peak="24 MiB")\n'
        '    @pytest.mark.parametrize("width", [1, "a/b"])\n'
        "    def test_width(self, zprof_run, width):\n"
        "        zprof_run.load(RUN)\n"
        "    @pytest.mark.zprof_limit(peak=False, count=False)\n"
        "    def test_records_nothing(self): pass\n",
        UPDATE,
    )
    result.assert_outcomes(passed=3)
    names = os.listdir(suite.folder / "zprof-baselines")
    assert [name.partition("-")[0] for name in names] == ["test_cost.TestSizes.test_width"] * 2
    assert len(set(names)) == 2


def test_a_first_run_passes_with_a_notice_unless_a_baseline_is_required(suite: Suite) -> None:
    result = suite.run(COMPARED)
    result.assert_outcomes(passed=1)
    (line,) = said_by_zprof(result)
    assert all(word in line for word in ("peak_memory.activations", "collective_count", UPDATE, KEPT))
    assert "untagged" not in line, "it needs no baseline"
    assert not (suite.folder / KEPT).exists()
    suite.folder.joinpath("pytest.ini").write_text("[pytest]\nzprof_require_baseline = true\n")
    volume, first = failure(suite, COMPARED.replace('untagged="1%"', 'bytes="2Ψ"'))
    assert volume.startswith("collective_bytes_law: ")
    assert "zprof_require_baseline" in first
    assert failure(suite, COMPARED, UPDATE) == failure(suite) == []


def edited(suite: Suite, **tenants: int) -> None:
    """The baseline as an earlier run could have left it; the peak is the sum of its tenants."""
    file = suite.folder / KEPT
    content = json.loads(file.read_text())
    before = dict(content["memory"]["tenants"])
    content["memory"]["tenants"] |= tenants
    content["memory"]["tenant_peaks"] |= tenants
    content["memory"]["peak_bytes"] += sum(tenants[name] - before[name] for name in tenants)
    file.write_text(json.dumps(content))


def test_a_baseline_is_written_compared_with_and_updated(suite: Suite) -> None:
    result = suite.run(COMPARED, UPDATE)
    assert [line.partition("wrote: ")[2] for line in said_by_zprof(result)] == [KEPT]
    kept = (suite.folder / KEPT).read_text()
    assert json.loads(kept)["schema"] == "zprof.baseline/1"
    assert failure(suite) == []
    edited(suite, activations=1000)
    peak, activations = failure(suite)
    assert peak.startswith("peak_memory: 9.9 MiB on rank 0")
    assert "256.7 KiB" in peak
    assert activations.startswith("peak_memory.activations: ")
    assert failure(suite, None, UPDATE) == []
    assert (suite.folder / KEPT).read_text() == kept
    edited(suite, activations=9_000_000)
    assert failure(suite) == [], "less memory is no failure"


def test_a_baseline_that_cannot_be_used_is_one_line_with_the_way_out(suite: Suite) -> None:
    suite.run(COMPARED, UPDATE)
    content = json.loads((suite.folder / KEPT).read_text())
    content["conditions"] |= {"torch": "1.0.0", "world_size": 4}
    for text in (json.dumps(content), '{"schema": "zprof.baseline/1", "\x1b[31m": '):
        (suite.folder / KEPT).write_text(text)
        (line,) = failure(suite)
        assert f"pytest {UPDATE}" in line
        assert line.isprintable()
    assert failure(suite, None, UPDATE) == failure(suite) == []


@pytest.mark.parametrize(
    "source", [HOLDS, COMPARED.replace('untagged="1%"', 'bytes="2Ψ"'), f"{COMPARED}    assert False\n"]
)
def test_a_test_that_fails_or_compares_nothing_keeps_no_baseline(suite: Suite, source: str) -> None:
    assert bool(failure(suite, source, UPDATE)) is (source is not HOLDS)
    assert not (suite.folder / "zprof-baselines").exists()


def gate(outcome: Outcome, sentence: str, **more: str) -> GateResult:
    limit = Limit(gate="step_time", unit=Unit.NS, value=1.0, text="1 ns", said="1 ns", origin="zprof_limit")
    return GateResult(limit=limit, outcome=outcome, sentence=sentence, **more)  # type: ignore[arg-type]


HOSTILE = "\x1b[31m</script>\u202e\nPASSED\ud800::error::"
SHOWN = "\\x1b[31m</script>\\u202e\\x0aPASSED\\ud800::error::"


@pytest.mark.parametrize(
    ("outcome", "results", "failures", "said"),
    [
        (Outcome.UNKNOWN, [gate(Outcome.UNKNOWN, "few", remedy="record 8")], ["few; record 8"], 0),
        (Outcome.UNKNOWN, [gate(Outcome.SKIPPED, "one rank")], ["nothing was judged"], 1),
        (Outcome.PASSED, [gate(Outcome.SKIPPED, "one rank")], [], 1),
        (Outcome.FAILED, [gate(Outcome.FAILED, HOSTILE), gate(Outcome.WARNED, HOSTILE)], [SHOWN], 1),
    ],
)
def test_a_result_is_a_harmless_failure_or_a_line_of_the_summary(
    suite: Suite,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Outcome,
    results: Any,
    failures: list[str],
    said: int,
) -> None:
    made = Check(
        zprof_version="0", run="run", baseline=None, outcome=outcome, results=tuple(results),
        notices=("nothing was judged",),
    )  # fmt: skip
    monkeypatch.setattr(limits, "check", lambda *_, **__: made)
    result = suite.run(HOLDS, "--junitxml=j.xml")
    assert ends(suite.folder)[0][1].splitlines() == failures
    assert len(said_by_zprof(result)) == said
    assert all(line.isprintable() for line in said_by_zprof(result))
    assert "</script>" not in (suite.folder / "j.xml").read_text()
