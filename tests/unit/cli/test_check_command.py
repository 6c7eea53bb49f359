"""``zprof check`` on runs as a user has them: exit codes, whose limit counts, what is written where."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.schedules import MS, Spec, play, write
from zprof.cli import main
from zprof.cli.inputs import is_saved_baseline

pytestmark = pytest.mark.usefixtures("diagnosed_once")
STEPS = 8


def recorded(path: Path, **changes: object) -> Path:
    spec = Spec(**({"ranks": 2, "steps": STEPS} | changes))  # type: ignore[arg-type]
    return write(path, spec, play(spec))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One job recorded twice, slower, with more collectives, on more ranks; and its saved baseline."""
    folder = tmp_path_factory.mktemp("runs")
    recorded(folder / "good.zprof")
    recorded(folder / "again.zprof", seed=2)
    recorded(folder / "slow.zprof", forward_ns=12 * MS)
    recorded(folder / "chatty.zprof", units=5)
    recorded(folder / "wide.zprof", ranks=3)
    assert main(["baseline", "save", str(folder / "good.zprof"), "-o", str(folder / "good.json")]) == 0
    return folder


@pytest.fixture
def check(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command in an empty repository; RUNS/ in an argument is where the runs are."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def asked(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["check", *(argument.replace("RUNS", str(runs)) for argument in arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return asked


Ask = Callable[..., tuple[int, str, str]]
GOOD = ("RUNS/good.zprof", "--baseline", "RUNS/good.json")


def outcomes(page: str) -> dict[str, str]:
    return {result["limit"]["gate"]: result["outcome"] for result in json.loads(page)["results"]}


@pytest.mark.parametrize("baseline", ["RUNS/good.json", "RUNS/good.zprof"])
@pytest.mark.parametrize("run", ["good", "again"])
def test_an_equal_run_passes(check: Ask, run: str, baseline: str) -> None:
    code, out, err = check(f"RUNS/{run}.zprof", "--baseline", baseline)
    assert (code, err) == (0, "")
    assert "✓ collective_count" in out
    assert "✗" not in out


def test_a_regression_of_what_is_exact_fails(check: Ask) -> None:
    code, out, _ = check("RUNS/chatty.zprof", "--baseline", "RUNS/good.json")
    assert code == 1
    assert "✗ collective_count" in out
    assert "✗ collective_bytes" in out


def test_on_cpu_ranks_a_slower_step_warns_until_a_limit_is_stated(check: Ask) -> None:
    slow = ("RUNS/slow.zprof", "--baseline", "RUNS/good.json")
    code, out, _ = check(*slow, "-f", "json")
    assert code == 0
    assert outcomes(out)["step_time"] == "warned"
    assert any("that you state fails" in notice for notice in json.loads(out)["notices"])
    code, out, _ = check(*slow, "-f", "json", "--step-time", "+5%@0.95")
    assert code == 1
    assert outcomes(out)["step_time"] == "failed"
    assert json.loads(out)["results"][-2]["limit"]["origin"] == "--step-time"
    assert check(*slow, "--step-time", "off", "--exposed-ratio", "off")[0] == 0


def test_what_was_not_measured_is_no_pass(check: Ask) -> None:
    code, out, _ = check(*GOOD, "--peak-memory", "24 MiB", "-f", "json")
    assert code == 3
    assert outcomes(out)["peak_memory"] == "unknown"


def test_a_first_run_passes_and_says_how_to_save_a_baseline(check: Ask, runs: Path) -> None:
    code, out, _ = check("RUNS/good.zprof", "--baseline", "ci/base.json", "-f", "json")
    assert code == 0
    notice = json.loads(out)["notices"][-1]
    assert notice.startswith("ci/base.json is not there yet")
    assert f"zprof baseline save {runs}/good.zprof -o ci/base.json" in notice
    code, out, _ = check("RUNS/good.zprof", "-f", "json")
    assert code == 0
    assert "-o zprof-baseline.json" in json.loads(out)["notices"][-1]


def test_a_required_baseline_that_is_not_there_is_bad_input(check: Ask, runs: Path) -> None:
    for flags in (("--baseline", "ci/base.json"), ()):
        code, out, err = check("RUNS/good.zprof", *flags, "--require-baseline")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "no such baseline" in err
        assert (
            f"zprof baseline save {runs}/good.zprof -o {flags[1] if flags else 'zprof-baseline.json'}" in err
        )
    assert check(*GOOD, "--require-baseline")[0] == 0


def test_a_first_run_is_held_to_absolute_limits(check: Ask) -> None:
    assert check("RUNS/good.zprof", "--baseline", "none.json", "--collective-count", "1")[0] == 1
    assert check("RUNS/good.zprof", "--baseline", "none.json", "--collective-count", "1000")[0] == 0


@pytest.mark.parametrize("baseline", ["RUNS/good.json", "RUNS/good.zprof"])
def test_a_baseline_of_other_conditions_is_refused_unless_asked(check: Ask, baseline: str) -> None:
    code, out, err = check("RUNS/wide.zprof", "--baseline", baseline)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "world size 3, the baseline has 2" in err
    assert "--any-conditions" in err
    code, out, _ = check("RUNS/wide.zprof", "--baseline", baseline, "--any-conditions")
    assert code == 0
    assert "world size 3, the baseline has 2" in " ".join(out.split())


def test_limits_of_files_and_flags(check: Ask, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.zprof.check]\ncollective_count = 1\n")
    assert check(*GOOD)[0] == 1
    assert check(*GOOD, "--collective-count", "+0%")[0] == 0
    (tmp_path / "zprof.toml").write_text("[check]\ncollective_count = false\n")
    assert check(*GOOD)[0] == 0
    (tmp_path / "strict.toml").write_text("[check]\ncollective_bytes = '1 B'\n")
    code, out, _ = check(*GOOD, "--config", "strict.toml")
    assert code == 1
    assert "(strict.toml)" in out


def test_parts_of_the_peak(check: Ask) -> None:
    flags = (
        "--tenant",
        "activations=+0%",
        "--tenant",
        "optimizer-state=3 MiB",
        "--tenant",
        "activations=1 B",
    )
    _, out, _ = check(*GOOD, *flags, "-f", "json")
    limits = {result["limit"]["gate"]: result["limit"]["said"] for result in json.loads(out)["results"]}
    assert limits["peak_memory.activations"] == "1 B"
    assert limits["peak_memory.optimizer_state"] == "3 MiB"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.zprof", "--step-time", "fast"], '--step-time: "fast" is no limit; '),
        (["none.zprof", "--peak-memory", "24 ms"], "--peak-memory: "),
        (["none.zprof", "--exposed-ratio", "300%"], "more than exposed_ratio can be"),
        (["none.zprof", "--step-time", "+3%@2"], "no confidence"),
        (["none.zprof", "--tenant", "activations"], "--tenant activations=+0%"),
        (["none.zprof", "--tenant", "=+0%"], "--tenant activations=+0%"),
        (["none.zprof", "--tenant", "activation=+0%"], "did you mean activations"),
        (["none.zprof", "--tenant", "gradients=fast"], "--tenant gradients: "),
        (["none.zprof", "--config", "none.toml"], "none.toml: no such file"),
        (["none.zprof", "-f", "yaml"], "no format 'yaml'; formats: text, json"),
        (["none.zprof", "-o", "check.xyz"], "its suffix names no format"),
        (["none.zprof", "-o", "no/check.md"], "no such folder"),
        (["none.zprof", "-o", "a.json", "-o", "a.json"], "a.json: asked for twice"),
        (["none.zprof", "--junit", "a.xml", "-o", "./a.xml"], "asked for twice"),
        (["none.zprof", "--github", "-f", "json"], "with -o FILE"),
        (["none.zprof"], "no such run"),
        (["RUNS/good.zprof", "--baseline", "none.zprof"], "no such run"),
        (["RUNS/good.zprof", "--baseline", "x" * 300 + ".json"], "name another baseline"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_code_2(check: Ask, arguments: list[str], words: str) -> None:
    code, out, err = check(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("zprof: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "hello", '{"schema": "zprof.baseline/9"}', '{"schema": "zprof.baseline/1"}', '{"a": 1}'],
)
def test_a_damaged_baseline_is_no_first_run(check: Ask, tmp_path: Path, content: str) -> None:
    (tmp_path / "base.json").write_text(content)
    code, out, err = check("RUNS/good.zprof", "--baseline", "base.json")
    assert (code, out) == (2, "")
    *notes, line = err.splitlines()
    assert notes in ([], ["zprof: base.json: a trace, importing"])
    assert line.startswith("zprof: base.json: ")
    assert "zprof baseline save RUN" in line


def test_files_beside_the_page(check: Ask, tmp_path: Path) -> None:
    files = ("-o", "a.json", "-o", "a.md", "--junit", "j.xml", "--sarif", "s.sarif", "-o", "plain.log")
    code, out, err = check(*GOOD, *files)
    assert (code, out) == (2, "")
    assert "plain.log" in err
    assert list(tmp_path.glob("*.*")) == [tmp_path / ".git"]
    code, page, err = check(*GOOD, *files, "-f", "text")
    assert code == 0
    assert err.count("wrote") == 5
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == "zprof.check/1"
    assert (tmp_path / "a.md").read_text().startswith("#")
    assert list(ElementTree.fromstring((tmp_path / "j.xml").read_text()).iter("testcase"))
    assert json.loads((tmp_path / "s.sarif").read_text())["version"] == "2.1.0"
    assert (tmp_path / "plain.log").read_text() == page


def test_files_are_written_where_the_check_fails_too(check: Ask, tmp_path: Path) -> None:
    assert check("RUNS/chatty.zprof", "--baseline", "RUNS/good.json", "--junit", "j.xml")[0] == 1
    assert "<failure" in (tmp_path / "j.xml").read_text()


def test_a_file_is_overwritten_only_by_force(check: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("mine")
    code, out, err = check(*GOOD, "-o", "a.md")
    assert (code, out, (tmp_path / "a.md").read_text()) == (2, "", "mine")
    assert "--force" in err
    assert check(*GOOD, "-o", "a.md", "--force")[0] == 0
    assert (tmp_path / "a.md").read_text() != "mine"


BAD = ("RUNS/chatty.zprof", "--baseline", "RUNS/good.json")


def test_github_gets_annotations_and_a_summary_after_what_is_there(
    check: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert check(*BAD)[0] == 1
    assert summary.read_text() == "before\n"
    code, out, _ = check(*BAD, "--github", "-o", "a.md")
    assert code == 1
    lines = out.splitlines()
    commands = [line for line in lines if line.startswith("::")]
    assert any(line.startswith("::error") and "collective_count" in line for line in commands)
    assert lines[0].startswith("✗ FAILED")
    assert lines[-len(commands) :] == commands
    assert summary.read_text() == "before\n" + (tmp_path / "a.md").read_text()


def test_github_without_a_summary_or_with_one_that_cannot_be_written(
    check: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(*BAD, "--github")[0] == 1
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    code, _, err = check(*BAD, "--github")
    assert code == 1
    assert "GITHUB_STEP_SUMMARY cannot be written" in err
    assert err.count("\n") == 1


def test_annotations_alone(check: Ask) -> None:
    _, out, _ = check(*BAD, "-f", "github", "--github")
    assert out.splitlines()
    assert all(line.startswith("::") for line in out.splitlines())


def test_a_path_that_steers_a_terminal(check: Ask, runs: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "x\x1b[2J\n::error::y.zprof"
    shutil.copytree(runs / "good.zprof", hostile)
    code, out, _ = check(str(hostile), "--baseline", "none\x1b[2J\n::error::.json", "--github")
    assert code == 0
    assert "\x1b" not in out
    assert not [line for line in out.splitlines() if line.startswith("::error")]


def test_what_a_saved_baseline_is(runs: Path, tmp_path: Path) -> None:
    assert is_saved_baseline(runs / "good.json")
    assert not is_saved_baseline(runs / "good.zprof")
    assert not is_saved_baseline(tmp_path / "none.json")
    trace = tmp_path / "trace.json"
    trace.write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert not is_saved_baseline(trace)
    os.mkfifo(tmp_path / "pipe.json")
    assert not is_saved_baseline(tmp_path / "pipe.json")
