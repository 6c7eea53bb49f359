"""A test session that does not use the plugin does not notice it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pytest_suites import ROOT, Suite

USES_NOTHING = """
import sys

def test_imports():
    heavy = {"torch", "pandas", "numpy", "pyarrow", "msgspec", "textual"}
    assert not heavy & set(sys.modules)
    parts = (
        "analysis", "causes", "diagnosis", "checks", "run", "collectors", "testing", "integrations", "tui",
        "cli",
    )  # fmt: skip
    assert not {f"zprof.{part}" for part in parts} & set(sys.modules)

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
    # these plugins of others import for seconds
    without = ("-p", "no:cacheprovider", "-p", "no:textual-snapshot", "-p", "no:hypothesispytest")
    command = [sys.executable, "-m", "pytest", *without, "--strict-markers", *options]
    return subprocess.run(command, cwd=suite.folder, capture_output=True, text=True, check=False, timeout=100)


def timeless(text: str) -> str:
    """Without times, and without pytest's own list of what is installed."""
    return re.sub(r"=+| in \d+\.\d+s|^plugins: .*$", "", text, flags=re.MULTILINE)


def test_who_does_not_use_it_pays_nothing_and_sees_nothing(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.write(USES_NOTHING)
    with_it = pytest_run(suite, monkeypatch, "-v", "-ra")
    assert "1 passed, 1 skipped" in with_it.stdout, with_it.stdout + with_it.stderr
    without = pytest_run(suite, monkeypatch, "-v", "-ra", "-p", "no:zprof")
    assert timeless(with_it.stdout) == timeless(without.stdout)
    assert with_it.stderr == without.stderr == ""


def test_pytest_lists_marker_fixture_and_option(suite: Suite) -> None:
    suite.write("")
    suite.again("--markers").stdout.fnmatch_lines(["@pytest.mark.zprof_limit(peak=*"])
    suite.again("--fixtures").stdout.fnmatch_lines(["zprof_run*"])
    suite.again("--help").stdout.fnmatch_lines(["*--zprof-update-baseline*"])
