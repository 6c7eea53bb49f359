"""``zprof simulate``: what it writes, says and refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from zprof.cli.entry import main
from zprof.simulator.causes import Cause
from zprof.simulator.truth.model import read_truth

SMALL = ["--ranks", "2", "--steps", "1", "--units", "2"]


def simulate(folder: Path, *more: str) -> int:
    return main(["simulate", "-o", str(folder), *SMALL, *more])


def test_it_writes_traces_and_truth_and_says_what_was_planted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert (
        simulate(folder, "--cause", "straggler_rank", "--seed", "3", "--vendor", "amd", "--stage", "2") == 0
    )
    assert sorted(path.name for path in folder.iterdir()) == ["rank0.json.gz", "rank1.json.gz", "truth.json"]
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == (
        "zprof: simulated 2 ranks, 1 step, stage 2, amd; planted straggler_rank: one rank computes slower"
    )
    truth = read_truth(folder)
    assert (truth.cause, truth.seed, truth.stage, truth.vendor) == ("straggler_rank", 3, 2, "amd")


def test_a_simulation_is_replaced_only_when_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(tmp_path, "--ranks", "3") == 0
    assert simulate(tmp_path) == 2
    assert "--force" in capsys.readouterr().err
    assert simulate(tmp_path, "--force") == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_no_simulation_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    assert simulate(tmp_path, "--force") == 2
    (tmp_path / "rank0.json.gz").write_text("a trace of a real job")
    (tmp_path / "mine.txt").unlink()
    assert simulate(tmp_path, "--force") == 2
    assert (tmp_path / "rank0.json.gz").read_text() == "a trace of a real job"
    assert "empty folder" in capsys.readouterr().err
    file = tmp_path / "rank0.json.gz"
    assert simulate(file, "--force") == 2


@pytest.mark.parametrize(
    "wrong",
    [["--ranks", "1025"], ["--stage", "4"], ["--steps", "0"], ["--cause", "gremlins"], ["--strength", "0"],
     ["--megabytes", "-1"], ["--skew-us", "nan"], ["--seed", "-1"], ["--units", "0"], ["--prefetch", "-1"]],
)  # fmt: skip
def test_what_cannot_be_simulated_is_one_line(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(tmp_path / "out", *wrong) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_clocks_of_hosts_are_skewed(tmp_path: Path) -> None:
    assert simulate(tmp_path, "--ranks", "16", "--skew-us", "500") == 0
    offsets = [rank.offset_ns for rank in read_truth(tmp_path).per_rank]
    assert offsets[0] == offsets[7] != offsets[8] == offsets[15]
    assert 0 < max(map(abs, offsets)) <= 500_000


def test_traces_are_filled_up(tmp_path: Path) -> None:
    assert simulate(tmp_path, "--megabytes", "2") == 0
    assert (tmp_path / "rank0.json.gz").stat().st_size > 50_000


def test_help_names_every_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--help"]) == 0
    said = capsys.readouterr().out
    assert "examples:" in said
    assert all(str(cause) in said for cause in Cause)


def test_it_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from zprof.cli.entry import main; "
        f"main(['simulate', '-o', {str(tmp_path)!r}, '--ranks', '2', '--steps', '1']); "
        "print(sorted({'torch', 'hta', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
