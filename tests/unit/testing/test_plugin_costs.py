"""A test session that does not use the plugin does not notice it; workers in parallel do what one does."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.pytest_suites import ROOT, Suite, said_by_zprof

USES_NOTHING = """
import sys

def test_imports():
    heavy = {"torch", "pandas", "numpy", "pyarrow", "msgspec", "textual", "plotly"}
    assert not heavy & set(sys.modules)
    parts = ("analysis", "rules", "checks", "run", "collectors", "testing", "integrations", "tui", "cli")
    assert not {f"zprof.{part}" for part in parts} & set(sys.modules)
"""
ORDINARY = """
def test_passes(): pass

@pytest.mark.skip
def test_skips(): pass
"""


def installed(folder: Path) -> Path:
    """A folder that says what an installed zprof says of itself."""
    facts = folder / "zprof_plugin-1.dist-info"
    facts.mkdir(parents=True, exist_ok=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: zprof-plugin\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[pytest11]\nzprof = zprof.pytest_plugin\n")
    return folder


def pytest_run(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, *options: str
) -> "subprocess.CompletedProcess[str]":
    """As somebody runs it who installed zprof: the plugin comes by its entry point."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{installed(suite.folder / 'site')}:{ROOT}")
    # These plugins of others import for seconds.
    without = ("-p", "no:cacheprovider", "-p", "no:textual-snapshot", "-p", "no:hypothesispytest")
    command = [sys.executable, "-m", "pytest", *without, "--strict-markers", *options]
    return subprocess.run(command, cwd=suite.folder, capture_output=True, text=True, check=False, timeout=100)


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"zprof": "zprof.pytest_plugin"}


def test_who_does_not_use_it_pays_nothing(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.write(USES_NOTHING + ORDINARY)
    done = pytest_run(suite, monkeypatch, "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 skipped" in done.stdout
    # Above that pytest lists plugins, and paths in which any word may stand.
    header, collecting, rest = done.stdout.partition("collecting")
    assert "plugins: " in header
    assert collecting
    assert "zprof" not in rest


def test_it_changes_nothing_of_the_output(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.write(ORDINARY)
    with_it = pytest_run(suite, monkeypatch, "-v", "-ra")
    without = pytest_run(suite, monkeypatch, "-v", "-ra", "-p", "no:zprof")
    assert "1 passed, 1 skipped" in with_it.stdout
    assert timeless(with_it.stdout) == timeless(without.stdout)
    assert with_it.stderr == without.stderr == ""


def timeless(text: str) -> str:
    """Without times, and without pytest's own list of what is installed."""
    return re.sub(r"=+| in \d+\.\d+s|^plugins: .*$", "", text, flags=re.MULTILINE)


def test_it_can_be_left_out(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.write("def test_a(zprof_run): pass")
    done = pytest_run(suite, monkeypatch, "-p", "no:zprof")
    assert "fixture 'zprof_run' not found" in done.stdout
    assert done.returncode == 1


def test_pytest_lists_marker_fixture_and_option(suite: Suite) -> None:
    suite.write("")
    suite.again("--markers").stdout.fnmatch_lines(["@pytest.mark.zprof_limit(peak=*"])
    suite.again("--fixtures").stdout.fnmatch_lines(["zprof_run*"])
    suite.again("--help").stdout.fnmatch_lines(["*--zprof-update-baseline*"])


def test_workers_in_parallel_write_and_say_what_one_process_does(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.write(
        '@pytest.mark.zprof_limit(peak="+0%", wait="1 us")\n'
        '@pytest.mark.parametrize("number", range(4))\n'
        "def test_step(zprof_run, number):\n    zprof_run.load(RUN)\n"
    )
    done = pytest_run(suite, monkeypatch, "-n", "2", "--zprof-update-baseline", "--junitxml=j.xml")
    assert done.returncode == 0, done.stdout + done.stderr
    files = sorted(path.name for path in (suite.folder / "zprof-baselines").iterdir())
    assert len(files) == 4
    assert all(
        json.loads((suite.folder / "zprof-baselines" / name).read_text())["memory"]["peak_bytes"] == 10414528
        for name in files
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("test_cost.py::")]
    assert sorted(line.partition("wrote: ")[2] for line in said if "wrote" in line) == [
        f"zprof-baselines/{name}" for name in files
    ]
    assert len([line for line in said if "warning: exposed_wait" in line]) == 4
    assert (suite.folder / "j.xml").read_text().count('name="zprof.peak_memory" value="10414528"') == 4


def test_the_summary_is_there_once(suite: Suite) -> None:
    result = suite.run(
        '@pytest.mark.zprof_limit(peak="+0%")\ndef test_a(zprof_run): zprof_run.load(RUN)\n', "-ra"
    )
    assert len(said_by_zprof(result)) == 1
    assert [line.strip("=") for line in result.outlines].count(" zprof ") == 1
