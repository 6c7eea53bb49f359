"""``zprof check`` on runs as a user has them: exit codes, which limit counts, what is written where."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.command_calls import Call

pytestmark = pytest.mark.usefixtures("diagnosed_once")
BASELINE = ("--baseline", "RUNS/good.json")
GOOD = ("check", "RUNS/good.zprof", *BASELINE)
#: Every relative default is off.
ABSOLUTE_ONLY = [
    f"--{gate}={limit}"
    for gate, limit in {
        "peak-memory": "off",
        "exposed-ratio": "90%",
        "overlap-ratio": "off",
        "collective-bytes": "off",
        "collective-count": "48",
        "step-time": "off",
        "exposed-wait": "off",
    }.items()
]
BAD = ("check", "RUNS/chatty.zprof", *BASELINE)


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository: no limits are found."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return tmp_path


def outcomes(page: str) -> dict[str, str]:
    return {result["limit"]["gate"]: result["outcome"] for result in json.loads(page)["results"]}


@pytest.mark.parametrize(
    ("run", "baseline"), [("good", "good.json"), ("again", "good.json"), ("again", "good.zprof")]
)
def test_an_equal_run_passes(call: Call, run: str, baseline: str) -> None:
    code, out, err = call("check", f"RUNS/{run}.zprof", "--baseline", f"RUNS/{baseline}", "-f", "json")
    assert (code, err) == (0, "")
    assert "failed" not in outcomes(out).values()
    assert outcomes(out)["collective_count"] == "passed"


DEMO = Path(__file__).parents[3] / "docs" / "pictures" / "runs" / "zprof-demo"


def test_lost_overlap_fails_with_the_four_steps_of_the_demo(call: Call) -> None:
    """83 % of the communication was hidden, 2 % is."""
    command = ("check", DEMO / "zero3.zprof", "--baseline", DEMO / "zero3-prefetch.zprof")
    code, out, _ = call(*command, "--require-baseline", "-f", "json")
    assert code == 1
    assert outcomes(out)["overlap_ratio"] == "failed"
    assert any("no_prefetch" in notice for notice in json.loads(out)["notices"])


@pytest.mark.parametrize(
    ("old", "new", "code", "named"),
    [
        ('"time": {', '"time": null, "old": {', 3, "step_time"),
        ('"memory": null', '"memory": null, "memory": null', 2, "memory"),
        ('"wall_ns":', '"wall_ns": [1], "wall_ns":', 2, "wall_ns"),
    ],
)
def test_an_edited_baseline_is_never_green(
    call: Call, runs: Path, old: str, new: str, code: int, named: str
) -> None:
    Path("edited.json").write_text((runs / "good.json").read_text().replace(old, new, 1))
    command = ("check", "RUNS/good.zprof", "--baseline", "edited.json", "--require-baseline")
    found, out, err = call(*command)
    assert (found, named in out + err) == (code, True)


def test_on_cpu_ranks_a_slower_step_warns_until_a_limit_is_stated(call: Call) -> None:
    slow = ("check", "RUNS/slow.zprof", *BASELINE)
    code, out, _ = call(*slow, "-f", "json")
    assert (code, outcomes(out)["step_time"]) == (0, "warned")
    assert any("step_time" in notice for notice in json.loads(out)["notices"])
    code, out, _ = call(*slow, "-f", "json", "--step-time", "+5%@0.95")
    assert (code, outcomes(out)["step_time"]) == (1, "failed")
    origins = {result["limit"]["gate"]: result["limit"]["origin"] for result in json.loads(out)["results"]}
    assert origins["step_time"] == "--step-time"
    assert call(*slow, "--step-time", "off", "--exposed-ratio", "off")[0] == 0


def test_only_what_lacks_a_baseline_had_nothing_to_compare_with(call: Call) -> None:
    """These runs have no memory: that is not measured, with a baseline or without."""
    _, compared, _ = call(*GOOD)
    _, alone, _ = call("check", "RUNS/good.zprof")
    _, absolute, _ = call("check", "RUNS/good.zprof", "-f", "json", *ABSOLUTE_ONLY)
    assert outcomes(call(*GOOD, "-f", "json")[1])["peak_memory"] == "warned"
    assert ("compare with" in compared, "compare with" in alone) == (False, True)
    assert "skipped" not in " ".join(json.loads(absolute)["notices"])


def test_a_first_run_passes_and_says_how_to_save_a_baseline(call: Call, runs: Path) -> None:
    save = f"zprof baseline save {runs}/good.zprof -o zprof-baseline.json"
    code, out, _ = call("check", "RUNS/good.zprof", "-f", "json")
    assert code == 0
    assert save in json.loads(out)["notices"][-1]
    code, _, err = call("check", "RUNS/good.zprof", "--require-baseline")
    assert (code, save in err) == (2, True)
    assert call(*GOOD, "--require-baseline")[0] == 3, "no memory was measured"
    assert call(*GOOD, "--require-baseline", "--peak-memory", "off", "--overlap-ratio", "off")[0] == 0


@pytest.mark.parametrize("baseline", ["RUNS/good.json", "RUNS/good.zprof"])
def test_a_baseline_of_other_conditions_is_refused_unless_asked(call: Call, baseline: str) -> None:
    code, out, err = call("check", "RUNS/wide.zprof", "--baseline", baseline)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "world size 3" in err
    assert "--any-conditions" in err
    assert call("check", "RUNS/wide.zprof", "--baseline", baseline, "--any-conditions")[0] == 0


def test_flags_are_stronger_than_files(call: Call, repository: Path) -> None:
    (repository / "pyproject.toml").write_text("[tool.zprof.check]\ncollective_count = 1\n")
    assert call(*GOOD)[0] == 1
    assert call(*GOOD, "--collective-count", "+0%")[0] == 0
    (repository / "zprof.toml").write_text("[check]\ncollective_count = false\n")
    assert call(*GOOD)[0] == 0
    (repository / "strict.toml").write_text("[check]\ncollective_bytes = '1 B'\n")
    assert call(*GOOD, "--config", "strict.toml")[0] == 1


def test_files_are_written_beside_the_page_also_where_the_check_fails(call: Call, repository: Path) -> None:
    files = ("-o", "a.json", "-o", "a.md", "--junit", "j.xml", "--sarif", "s.sarif", "-o", "plain.log")
    code, out, err = call(*BAD, *files)
    assert (code, out, "plain.log" in err) == (2, "", True)
    assert list(repository.glob("*.*")) == [repository / ".git"]
    code, page, err = call(*BAD, *files, "-f", "text")
    assert (code, err.count("wrote")) == (1, 5)
    assert json.loads((repository / "a.json").read_text())["schema"] == "zprof.check/1"
    assert (repository / "a.md").read_text().startswith("#")
    assert list(ElementTree.fromstring((repository / "j.xml").read_text()).iter("failure"))
    assert json.loads((repository / "s.sarif").read_text())["version"] == "2.1.0"
    assert (repository / "plain.log").read_text() == page


def test_github_gets_annotations_and_a_summary_after_what_is_there(
    call: Call, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(*BAD, "--github")[0] == 1
    summary = repository / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert call(*BAD)[0] == 1
    assert summary.read_text() == "before\n"
    code, out, _ = call(*BAD, "--github", "-o", "a.md")
    assert code == 1
    lines = out.splitlines()
    commands = [line for line in lines if line.startswith("::")]
    assert any(line.startswith("::error") and "collective_count" in line for line in commands)
    assert lines[-len(commands) :] == commands
    assert len(lines) > len(commands)
    assert summary.read_text() == "before\n" + (repository / "a.md").read_text()
    _, alone, _ = call(*BAD, "-f", "github", "--github")
    assert alone.splitlines() == commands


def test_a_summary_that_cannot_be_written_is_a_note(
    call: Call, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(repository))
    code, _, err = call(*BAD, "--github")
    assert (code, err.count("\n")) == (1, 1)
    assert "GITHUB_STEP_SUMMARY" in err


def test_a_path_steers_no_terminal(call: Call, runs: Path, repository: Path) -> None:
    hostile = repository / "x\x1b[2J\n::error::y.zprof"
    shutil.copytree(runs / "good.zprof", hostile)
    code, out, _ = call("check", hostile, "--github")
    assert (code, "\x1b" in out) == (0, False)
    assert not [line for line in out.splitlines() if line.startswith("::error")]
    code, out, err = call("check", hostile, "--baseline", "none\x1b[2J\n::error::.json", "--github")
    assert (code, out, err.isprintable() or err.count("\n") == 1, "\x1b" in err) == (2, "", True, False)


@pytest.mark.parametrize("baseline", ["RUNS/good.json", "RUNS/good.zprof"])
def test_the_comment_of_a_pull_request_is_written(call: Call, tmp_path: Path, baseline: str) -> None:
    """It has the change of the step by term, whether the baseline is a file or a run."""
    code, out, _ = call("check", "RUNS/chatty.zprof", "--baseline", baseline, "--comment", "comment.md")
    text = (tmp_path / "comment.md").read_text()
    assert code == 1
    assert "✗" in out
    assert text.startswith("## ✗ zprof check")
    assert len(text.splitlines()) <= 60
    row = next(line for line in text.splitlines() if line.startswith("| exposed transfer |"))
    assert "+" in row
    assert " - " not in row
    assert call("check", "RUNS/chatty.zprof", "--baseline", baseline, "-f", "comment")[1] == text
