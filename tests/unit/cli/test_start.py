"""Starting is cheap: no command imports torch, HTA or another heavy package that it does not need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from zprof.cli.registry import COMMANDS
from zprof.model.findings import read_index

RUNS = Path(__file__).parents[2] / "data/tui"

#: Runs lines of arguments one after the other and prints which packages are there after each.
_PROBE = """
import json, os, sys
from zprof.cli import main
sys.stdout = open(os.devnull, "w")
names, lines = json.loads(sys.argv[1])
for line in lines:
    code = main(line)
    print(json.dumps([line[:2], code, [name for name in names if name in sys.modules]]), file=sys.stderr)
"""
HEAVY = ("torch", "hta", "numpy", "pandas", "pyarrow", "textual", "rich")
#: ``train`` takes its options from the engine's configuration, which needs torch.
NEEDS_TORCH = {"train"}
PLAN = "plan --layers 4 --hidden 256 --micro-batch 2 --sequence 64 --dp 4 --hardware v100 -f html"


def loaded(names: tuple[str, ...], *lines: list[str], code: int = 0) -> list[list[str]]:
    """The packages that are there after each line; each must end with ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, json.dumps([names, lines])],
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[[")]
    assert [ended for _, ended, _ in rows] == [code] * len(lines), done.stderr
    return [packages for _, _, packages in rows]


def test_help_and_what_needs_no_run_load_next_to_nothing() -> None:
    first, *others = loaded((*HEAVY, "zprof.cli.report"), ["--help"], ["schema", "report"], PLAN.split())
    assert first == []
    assert not {"torch", "pandas", "pyarrow", "hta", "textual"} & {*others[0], *others[1]}


def test_a_mistyped_path_is_refused_before_anything_is_loaded() -> None:
    lines = (["report", "no-such.zprof"], ["diagnose", "no-such.zprof", "--window", "trace"])
    assert loaded((*HEAVY, "msgspec", "dataclasses", "inspect"), *lines, code=2) == [[], []]


def test_an_answer_that_is_kept_needs_no_tables(runs: Path) -> None:
    lines = [[command, str(runs / "again.zprof")] for command in ("diagnose", "report")]
    loaded((), *lines)
    assert loaded(HEAVY, *lines) == [[], []]


def test_help_of_each_command_loads_no_torch() -> None:
    commands = sorted({entry.name for entry in COMMANDS} - NEEDS_TORCH)
    found = loaded(("torch", "hta", "pandas", "pyarrow"), *([name, "--help"] for name in commands))
    assert dict(zip(commands, found, strict=True)) == {command: [] for command in commands}


def test_a_run_of_processors_loads_no_cause_of_hangs_or_devices(runs: Path) -> None:
    wanted = {"hang", "device"}
    others = tuple(f"zprof.causes.{each.name}" for each in read_index() if wanted & set(each.needs))
    lines = ["report", str(runs / "good.zprof"), "--window", "trace"]
    assert len(others) > 12
    assert loaded(others, lines) == [[]]
    assert "zprof.causes.data_loader" in loaded(("zprof.causes.data_loader",), [*lines, "--only", "time"])[0]


def test_the_probe_sees_a_package() -> None:
    assert loaded(("argparse", "zprof.cli.report"), ["report", "--help"]) == [
        ["argparse", "zprof.cli.report"]
    ]


def test_commands_on_a_run_load_no_torch(runs: Path, tmp_path: Path) -> None:
    names = ("torch", "hta", "textual", "jinja2", "zprof.collectors.record", "zprof.reference_engine")
    run, saved = str(runs / "good.zprof"), str(tmp_path / "base.json")
    (tmp_path / "limits.toml").write_text("[check]\n")
    limits = ["--config", str(tmp_path / "limits.toml"), "-o", str(tmp_path / "check.md")]
    lines = (
        ["baseline", "save", run, "-o", saved],
        ["baseline", "show", saved],
        ["check", run, "--baseline", saved, *limits],
        ["report", run],
    )
    assert loaded(names, *lines) == [[]] * len(lines)


def test_the_simulator_needs_neither_torch_nor_pandas(tmp_path: Path) -> None:
    line = ["simulate", "-o", str(tmp_path), "--ranks", "2", "--steps", "1"]
    assert loaded(("torch", "hta", "pandas"), line) == [[]]


@pytest.mark.parametrize("command", ["diagnose", "report", "check"])
def test_an_answer_needs_no_pandas(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are numpy columns: pandas takes 0.6 s, more than the answer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    zero3, ddp = str(RUNS / "zero3"), str(RUNS / "ddp")
    (tmp_path / "limits.toml").write_text("[check]\n")
    options = {
        "diagnose": [zero3],
        "report": [zero3, ddp],
        "check": [zero3, "--baseline", zero3, "--config", str(tmp_path / "limits.toml")],
    }
    assert loaded(("pandas",), [command, *options[command]]) == [[]]
