"""The plugin within pytest: what makes a test red, in which words, and what is kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.pytest_suites import Suite, said_by_zprof
from zprof.model.check import Check, GateResult, Limit, Outcome
from zprof.testing import judging

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


def failure(result: pytest.RunResult) -> list[str]:
    """The lines below the name of the one test that failed, to where its captured output begins."""
    lines = result.outlines
    first = next(place for place, line in enumerate(lines) if line.startswith("____"))
    rest = lines[first + 1 :]
    return rest[: next(place for place, line in enumerate(rest) if line.startswith(("---", "===")))]


def edited(file: Path, **leaves: Any) -> None:
    """A baseline as an earlier run could have left it."""
    content = json.loads(file.read_text())
    for path, value in leaves.items():
        *parents, last = path.split("__")
        inner = content
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    file.write_text(json.dumps(content))


def test_limits_that_hold_say_nothing(suite: Suite) -> None:
    result = suite.run(HOLDS)
    result.assert_outcomes(passed=1)
    assert not said_by_zprof(result)
    assert not (suite.folder / "zprof-baselines").exists()


def test_a_limit_that_does_not_hold_is_one_line_without_a_traceback(suite: Suite) -> None:
    result = suite.run(HOLDS.replace("24 MiB", "9 MiB"))
    result.assert_outcomes(failed=1)
    (line,) = failure(result)
    assert line.startswith("peak_memory: 9.9 MiB on rank 0 ")
    assert "allowed at most 9.0 MiB" in line
    assert "communication buffers" in line


def test_several_limits_are_a_line_each_in_the_order_of_the_marker(suite: Suite) -> None:
    result = suite.run(HOLDS.replace("24 MiB", "9 MiB").replace("3Ψ", "2Ψ"))
    assert [line.partition(":")[0] for line in failure(result)] == ["peak_memory", "collective_bytes_law"]


def test_a_failure_says_where_the_run_is(suite: Suite) -> None:
    result = suite.run(HOLDS.replace("24 MiB", "9 MiB"))
    result.stdout.fnmatch_lines(["*Captured zprof call*", "zprof report */tests/data/tui/zero3"])


def test_a_warning_is_in_the_summary_and_the_test_passes(suite: Suite) -> None:
    result = suite.run(HOLDS.replace('untagged="0.1%"', 'wait="1 us"'))
    result.assert_outcomes(passed=1)
    (line,) = said_by_zprof(result)
    assert line.startswith("test_cost.py::test_step: warning: exposed_wait: ")


@pytest.mark.parametrize(
    ("mark", "line"),
    [
        ('peek="1 KiB"', "zprof_limit: there is no limit peek; did you mean peak?"),
        ('peak="1 KiBs"', 'zprof_limit, peak: "1 KiBs" *'),
        ("", "zprof_limit: states no limit; *"),
        ('"24 MiB"', "zprof_limit: every limit has a name; *"),
    ],
)
def test_a_mistake_in_the_marker_is_an_error_before_the_test_runs(suite: Suite, mark: str, line: str) -> None:
    result = suite.run(f"@pytest.mark.zprof_limit({mark})\ndef test_a(zprof_run): print('it ran')")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ERROR at setup of test_a*", line])
    assert len(failure(result)) == 1
    result.stdout.no_fnmatch_line("*it ran*")


def test_a_marker_without_the_fixture_is_an_error(suite: Suite) -> None:
    result = suite.run('@pytest.mark.zprof_limit(peak="24 MiB")\ndef test_a(): pass')
    result.assert_outcomes(errors=1)
    (line,) = failure(result)
    assert line.endswith("the test has none: give it the fixture zprof_run")


def test_a_limit_that_is_turned_off_asks_nothing_of_the_test(suite: Suite) -> None:
    result = suite.run(
        '@pytest.mark.zprof_limit(peak="1 KiB")\n'
        "class TestSizes:\n"
        "    @pytest.mark.zprof_limit(peak=False)\n"
        "    def test_records(self, zprof_run):\n"
        "        zprof_run.load(RUN)\n"
        "    @pytest.mark.zprof_limit(peak=False)\n"
        "    def test_records_nothing(self):\n"
        "        pass\n"
    )
    result.assert_outcomes(passed=2)
    assert not said_by_zprof(result)


def test_a_test_that_recorded_nothing_is_red(suite: Suite) -> None:
    result = suite.run('@pytest.mark.zprof_limit(peak="24 MiB")\ndef test_a(zprof_run): pass')
    result.assert_outcomes(failed=1)
    assert failure(result) == ["zprof_limit: the test recorded no run; call the fixture: zprof_run(step)"]


def test_the_failure_of_the_test_itself_is_not_hidden(suite: Suite) -> None:
    result = suite.run(HOLDS.replace("24 MiB", "9 MiB").replace("== 3", "== 2"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E * assert 3 == 2"])
    result.stdout.no_fnmatch_line("*allowed at most*")


def test_who_skips_or_expects_the_failure_gets_that(suite: Suite) -> None:
    result = suite.run(
        '@pytest.mark.zprof_limit(peak="1 KiB")\n'
        "def test_skips(zprof_run):\n    zprof_run.load(RUN)\n    pytest.skip()\n"
        '@pytest.mark.xfail(strict=True)\n@pytest.mark.zprof_limit(peak="1 KiB")\n'
        "def test_expects(zprof_run):\n    zprof_run.load(RUN)\n"
    )
    result.assert_outcomes(skipped=1, xfailed=1)


def test_a_run_that_is_not_there_is_one_line(suite: Suite) -> None:
    result = suite.run("def test_a(zprof_run): zprof_run.load('none.zprof')")
    result.assert_outcomes(failed=1)
    assert failure(result) == ["none.zprof: no such run; give the folder that a recording made"]


def test_a_call_that_cannot_be_recorded_is_one_line(suite: Suite) -> None:
    result = suite.run("def test_a(zprof_run): zprof_run(None)")
    result.assert_outcomes(failed=1)
    assert failure(result) == ["zprof_run: its first argument is no function; zprof_run(step, model=model)"]


def test_a_first_run_passes_with_a_notice(suite: Suite) -> None:
    result = suite.run(COMPARED)
    result.assert_outcomes(passed=1)
    assert said_by_zprof(result) == [
        "test_cost.py::test_step: notice: peak_memory, peak_memory.activations, collective_count: nothing to "
        f"compare with yet, pytest --zprof-update-baseline writes {KEPT}"
    ]
    assert not (suite.folder / KEPT).exists()


def test_a_first_run_fails_where_a_baseline_is_required(suite: Suite) -> None:
    suite.folder.joinpath("pytest.ini").write_text("[pytest]\nzprof_require_baseline = true\n")
    result = suite.run(COMPARED.replace('untagged="1%"', 'bytes="2Ψ"'))
    result.assert_outcomes(failed=1)
    volume, first = failure(result)
    assert volume.startswith("collective_bytes_law: ")
    assert first == (
        "peak_memory, peak_memory.activations, collective_count: nothing to compare with yet, "
        f"pytest --zprof-update-baseline writes {KEPT} (zprof_require_baseline)"
    )
    assert not said_by_zprof(result)
    suite.run(COMPARED, "--zprof-update-baseline").assert_outcomes(passed=1)
    suite.again().assert_outcomes(passed=1)
    suite.run(HOLDS.replace("test_step", "test_other")).assert_outcomes(passed=1)


def test_a_first_run_is_held_to_what_needs_no_baseline(suite: Suite) -> None:
    result = suite.run(COMPARED.replace('untagged="1%"', 'bytes="2Ψ"'))
    result.assert_outcomes(failed=1)
    assert failure(result)[0].startswith("collective_bytes_law: ")


def test_a_baseline_is_written_said_and_compared_with(suite: Suite) -> None:
    result = suite.run(COMPARED, "--zprof-update-baseline")
    result.assert_outcomes(passed=1)
    assert said_by_zprof(result) == [f"test_cost.py::test_step: wrote: {KEPT}"]
    assert json.loads((suite.folder / KEPT).read_text())["schema"] == "zprof.baseline/1"
    result = suite.again()
    result.assert_outcomes(passed=1)
    assert not said_by_zprof(result)


def test_growth_says_limit_value_and_the_tenant_that_grew(suite: Suite) -> None:
    suite.run(COMPARED, "--zprof-update-baseline")
    edited(suite.folder / KEPT, memory__tenants__activations=1000, memory__peak_bytes=10414528 - 262848)
    result = suite.again()
    result.assert_outcomes(failed=1)
    peak, activations = failure(result)
    assert peak.startswith("peak_memory: 9.9 MiB on rank 0 ")
    assert "2.6 % above the baseline's 9.7 MiB, allowed +2%" in peak
    assert "activations grew most, +256.7 KiB" in peak
    assert activations.startswith("peak_memory.activations: ")


def test_less_memory_is_no_failure(suite: Suite) -> None:
    suite.run(COMPARED, "--zprof-update-baseline")
    edited(suite.folder / KEPT, memory__tenants__activations=9_000_000, memory__peak_bytes=10414528 + 8736152)
    suite.again().assert_outcomes(passed=1)


def test_what_grew_on_purpose_is_accepted_by_updating(suite: Suite) -> None:
    suite.run(COMPARED, "--zprof-update-baseline")
    kept = (suite.folder / KEPT).read_text()
    edited(suite.folder / KEPT, memory__tenants__activations=1000)
    suite.again("--zprof-update-baseline").assert_outcomes(passed=1)
    assert (suite.folder / KEPT).read_text() == kept


@pytest.mark.parametrize(
    "source",
    [COMPARED.replace('untagged="1%"', 'bytes="2Ψ"'), f"{COMPARED}    assert False\n"],
    ids=["a limit without baseline does not hold", "its own assertion fails"],
)
def test_a_test_that_fails_keeps_no_baseline(suite: Suite, source: str) -> None:
    result = suite.run(source, "--zprof-update-baseline")
    result.assert_outcomes(failed=1)
    assert not (suite.folder / "zprof-baselines").exists()
    assert not said_by_zprof(result)


def test_a_test_without_changes_keeps_no_baseline(suite: Suite) -> None:
    suite.run(HOLDS, "--zprof-update-baseline").assert_outcomes(passed=1)
    assert not (suite.folder / "zprof-baselines").exists()


def test_a_baseline_of_other_conditions_is_refused_with_the_way_out(suite: Suite) -> None:
    suite.run(COMPARED, "--zprof-update-baseline")
    edited(suite.folder / KEPT, conditions__torch="1.0.0", conditions__world_size=4)
    result = suite.again()
    result.assert_outcomes(failed=1)
    (line,) = failure(result)
    assert "torch" in line
    assert "world size" in line
    assert line.endswith("pytest --zprof-update-baseline makes this run its baseline")
    suite.again("--zprof-update-baseline").assert_outcomes(passed=1)
    suite.again().assert_outcomes(passed=1)


def test_a_damaged_baseline_is_one_line(suite: Suite) -> None:
    suite.run(COMPARED, "--zprof-update-baseline")
    (suite.folder / KEPT).write_text('{"schema": "zprof.baseline/1", "\x1b[31m": ')
    result = suite.again()
    result.assert_outcomes(failed=1)
    (line,) = failure(result)
    assert line.endswith("pytest --zprof-update-baseline writes it again")
    assert line.isprintable()


def test_parameters_and_classes_have_baselines_of_their_own_and_the_nearest_marker_counts(
    suite: Suite,
) -> None:
    result = suite.run(
        '@pytest.mark.zprof_limit(peak="1 KiB", count="exact")\n'
        "class TestSizes:\n"
        '    @pytest.mark.zprof_limit(peak="24 MiB")\n'
        '    @pytest.mark.parametrize("width", [1, "a/b"])\n'
        "    def test_width(self, zprof_run, width):\n"
        "        zprof_run.load(RUN)\n",
        "--zprof-update-baseline",
    )
    result.assert_outcomes(passed=2)
    names = sorted(path.name for path in (suite.folder / "zprof-baselines").iterdir())
    assert [name.partition("-")[0] for name in names] == ["test_cost.TestSizes.test_width"] * 2
    assert len(set(names)) == 2


def test_a_group_of_workers_in_parallel_has_no_baseline_of_its_own(suite: Suite) -> None:
    suite.run(COMPARED, "--zprof-update-baseline")
    (suite.folder / "conftest.py").write_text(
        "def pytest_collection_modifyitems(items):\n"  # as pytest-xdist does with --dist loadgroup
        "    for item in items:\n"
        "        item._nodeid = f'{item.nodeid}@group'\n"
    )
    result = suite.again()
    result.assert_outcomes(passed=1)
    assert not said_by_zprof(result)


def test_values_are_properties_of_the_test(suite: Suite) -> None:
    suite.run(HOLDS, "--junitxml=j.xml")
    text = (suite.folder / "j.xml").read_text()
    assert '<property name="zprof.peak_memory" value="10414528" />' in text
    assert '<property name="zprof.collective_bytes_law" value="2.75' in text


def gate(outcome: Outcome, sentence: str, *, subject: str = "", remedy: str = "") -> GateResult:
    limit = Limit(gate="step_time", unit="ns", value=1.0, said="1 ns", origin="zprof_limit")
    return GateResult(limit=limit, outcome=outcome, sentence=sentence, remedy=remedy, subject=subject)


def says(monkeypatch: pytest.MonkeyPatch, outcome: Outcome, *results: GateResult, notice: str = "") -> None:
    made = Check(
        zprof_version="0",
        run="run",
        baseline=None,
        outcome=outcome,
        results=results,
        notices=(notice,) if notice else (),
    )
    monkeypatch.setattr(judging, "check", lambda *_, **__: made)


def test_what_could_not_be_measured_is_red_with_its_remedy(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, Outcome.UNKNOWN, gate(Outcome.UNKNOWN, "step_time: 1 step", remedy="record 8"))
    result = suite.run(HOLDS, "--junitxml=j.xml")
    result.assert_outcomes(failed=1)
    assert failure(result) == ["step_time: 1 step; record 8"]
    assert '"zprof.step_time" value="unknown"' in (suite.folder / "j.xml").read_text()


def test_where_nothing_could_be_judged_it_is_red(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = gate(Outcome.SKIPPED, "step_time: one rank")
    says(monkeypatch, Outcome.UNKNOWN, skipped, notice="nothing was judged")
    result = suite.run(HOLDS)
    result.assert_outcomes(failed=1)
    assert failure(result) == ["nothing was judged"]


def test_a_skipped_gate_is_a_notice(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, Outcome.PASSED, gate(Outcome.SKIPPED, "step_time: one rank"), notice="no baseline yet")
    result = suite.run(HOLDS)
    result.assert_outcomes(passed=1)
    assert said_by_zprof(result) == ["test_cost.py::test_step: notice: step_time: one rank"]


def test_several_results_of_a_gate_are_properties_of_their_own(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = [gate(Outcome.PASSED, "", subject=subject) for subject in ("all_gather", "<b>\x1b")]
    says(monkeypatch, Outcome.PASSED, *two)
    suite.run(HOLDS, "--junitxml=j.xml")
    text = (suite.folder / "j.xml").read_text()
    assert '"zprof.step_time.all_gather"' in text
    assert '"zprof.step_time.&lt;b&gt;\\x1b"' in text


def test_hostile_names_are_harmless_in_failures_and_in_the_summary(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "\x1b[31m</script>\u202e\nPASSED\ud800::error::"
    says(monkeypatch, Outcome.FAILED, gate(Outcome.FAILED, hostile), gate(Outcome.WARNED, hostile))
    result = suite.run(HOLDS, "--junitxml=j.xml")
    (line,) = failure(result)
    assert line == "\\x1b[31m</script>\\u202e\\x0aPASSED\\ud800::error::"
    assert said_by_zprof(result) == [f"test_cost.py::test_step: warning: {line}"]
    assert "</script>" not in (suite.folder / "j.xml").read_text()
