"""The recipes of docs/ci.md, run as they stand in an empty repository."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.support.command_calls import run_command

ROOT = Path(__file__).parents[3]
DOCS = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
#: Of a hosted machine; the environment of the tests has zprof already.
_INSTALLS = "pip install"

pytestmark = [pytest.mark.ranks, pytest.mark.timed, pytest.mark.slow]


def section(page: str, title: str) -> str:
    """What stands below a heading, up to the next of its rank."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,3}} |\Z)", page, re.M | re.S)
    assert found, f"no section {title!r}"
    return found[2]


def block(page: str, title: str, language: str) -> str:
    """The first fenced block of a section."""
    found = re.search(rf"```{language}\n(.*?)```", section(page, title), re.S)
    assert found, f"no {language} in {title!r}"
    return found[1]


def commands_of(page: str, title: str) -> list[str]:
    return [line for line in block(page, title, "sh").splitlines() if line and not line.startswith("#")]


def github_commands() -> Iterator[str]:
    steps = yaml.safe_load(block(DOCS, "GitHub", "yaml"))["jobs"]["zprof"]["steps"]
    yield from (step["run"] for step in steps if "run" in step)


def gitlab_commands() -> Iterator[str]:
    yield from yaml.safe_load(block(DOCS, "GitLab", "yaml"))["zprof"]["script"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty repository with the baseline that the first steps of the page save, and wide limits."""
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    limits = {"peak_memory": "+30%", "exposed_ratio": "off", "overlap_ratio": "off", "step_time": "off"}
    lines = [f'{name} = "{limit}"' for name, limit in limits.items()]
    (folder / "pyproject.toml").write_text("\n".join(["[tool.zprof.check]", *lines, ""]), encoding="utf-8")
    for command in commands_of(DOCS, "The first baseline") + commands_of(DOCS, "A plain shell step"):
        run_shell(command, folder)
    assert (folder / "zprof-baseline.json").stat().st_size < 10_000
    return folder


def run_shell(command: str, folder: Path, **environment: str) -> str:
    """What a command prints; it must succeed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "OMP_NUM_THREADS": "1"} | environment
    return run_command("bash", "-euo", "pipefail", "-c", command, cwd=folder, **environment)


def test_the_shell_step_writes_junit(repository: Path) -> None:
    """It ran when the repository was made."""
    suite = ElementTree.parse(repository / "zprof.xml").getroot()
    cases = [case.get("name") for case in suite.iter("testcase")]
    assert {"peak_memory", "collective_bytes", "collective_count"} <= set(cases)
    assert not list(suite.iter("failure"))


def test_the_github_workflow(repository: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    for command in github_commands():
        if not command.startswith(_INSTALLS):
            run_shell(command, repository, GITHUB_STEP_SUMMARY=str(summary), GITHUB_ACTIONS="true")
    assert "| ✓ peak_memory |" in summary.read_text(encoding="utf-8").replace("`", "")
    assert (repository / "zprof.sarif").is_file()


def test_the_gitlab_job(repository: Path) -> None:
    (repository / "zprof.xml").unlink()
    for command in gitlab_commands():
        if not command.startswith(_INSTALLS):
            run_shell(command, repository)
    assert (repository / "zprof.xml").is_file()


def test_an_update_can_be_run(repository: Path) -> None:
    (command,) = commands_of(DOCS, "Accepting a change")
    assert run_shell(command, repository)


@pytest.mark.timed
def test_the_recipe_fails_if_overlap_is_lost(tmp_path: Path) -> None:
    """Without limits of one's own: the defaults guard what the page says."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    record, save = commands_of(DOCS, "The first baseline")
    _, check = commands_of(DOCS, "A plain shell step")
    for command in (record, save, check):
        run_shell(command, tmp_path)
    run_shell(record.replace("--prefetch 1", "--prefetch 0"), tmp_path)
    (tmp_path / "zprof.xml").unlink()
    with pytest.raises(AssertionError, match="✗ overlap_ratio"):
        run_shell(check, tmp_path)
