"""Starting is cheap: no torch, no HTA, nothing that a command does not need; a closed pipe is quiet."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.schedules import Spec, play, write
from zprof.cli.registry import COMMANDS

_PROBE = """
import sys
from zprof.cli import main
code = main(sys.argv[2:])
loaded = [name for name in sys.argv[1].split(",") if name in sys.modules]
print("loaded:", *loaded, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec(ranks=2, steps=4)
    return write(tmp_path_factory.mktemp("runs") / "good.zprof", spec, play(spec))


def loaded(names: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, names, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1].removeprefix("loaded:").split()


def test_help_loads_next_to_nothing() -> None:
    assert loaded("torch,hta,numpy,pandas,pyarrow,textual,rich,zprof.cli.report", "--help") == []


#: ``train`` takes its options from the engine's configuration, which needs torch.
NEEDS_TORCH = {"train"}


@pytest.mark.parametrize("command", sorted({entry.name for entry in COMMANDS} - NEEDS_TORCH))
def test_help_of_a_command_loads_no_torch(command: str) -> None:
    assert loaded("torch,hta,pandas,pyarrow,textual", command, "--help") == []


def test_the_probe_can_see_a_module() -> None:
    assert loaded("argparse,zprof.cli.report", "report", "--help") == ["argparse", "zprof.cli.report"]


def test_report_loads_no_torch(run: Path) -> None:
    names = "torch,hta,textual,zprof.collectors,zprof.reference_engine,pandas"
    assert loaded(names, "report", str(run)) == ["pandas"]


def test_check_and_baseline_load_no_torch(run: Path, tmp_path: Path) -> None:
    names = "torch,hta,textual,jinja2,plotly,zprof.collectors,zprof.reference_engine"
    saved = str(tmp_path / "base.json")
    assert loaded(names, "baseline", "save", str(run), "-o", saved) == []
    assert loaded(names, "baseline", "show", saved) == []
    limits = tmp_path / "limits.toml"
    limits.write_text("[check]\n")
    asked = ("--baseline", saved, "--config", str(limits), "-o", str(tmp_path / "check.md"))
    assert loaded(names, "check", str(run), *asked) == []


def test_a_reader_that_goes_away_is_quiet(run: Path) -> None:
    command = f"'{sys.executable}' -m zprof report '{run}' | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
