"""The composite action: bash runs its steps as GitHub does, with a gh that writes down what it gets."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.hostile_names import NAMES

ROOT = Path(__file__).parents[3]
ACTION = yaml.safe_load((ROOT / ".github/actions/zprof/action.yml").read_text(encoding="utf-8"))
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
RUNS = ROOT / "docs/pictures/runs/zprof-demo"
GITHUB = {
    "github.repository": "owner/name",
    "github.event.pull_request.number": "7",
    "github.workflow": "ci",
    "github.job": "zprof",
}
#: Writes a line of JSON per call: its arguments, and the body that it posts. It lists earlier comments.
STUB_GH = """#!{python}
import json, os, pathlib, sys
bodies = [pathlib.Path(each[6:]).read_text() for each in sys.argv if each.startswith("body=@")]
with open(os.environ["CALLS"], "a") as calls:
    print(json.dumps([sys.argv[1:], *bodies]), file=calls)
if os.environ.get("GH_FAILS"):
    sys.exit("HTTP 403: Resource not accessible by integration")
if "--jq" in sys.argv:
    assert os.environ["GH_TOKEN"] and os.environ["MARKER"].startswith("<!--") and os.environ["AUTHOR"]
    print(os.environ.get("EARLIER", ""))
"""
STUB_PYTHON = """#!{python}
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    print(json.dumps([sys.argv[1:]]), file=calls)
"""


class DryRun:
    """A runner of one job: inputs, files for outputs and the summary, and commands that are stubs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.inputs = (
            folder,
            {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()},
        )
        self.outputs: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        (folder / "bin").mkdir(parents=True)
        (folder / "temporary").mkdir()
        (folder / "work").mkdir()
        for name, text in (("gh", STUB_GH), ("python", STUB_PYTHON)):
            (folder / "bin" / name).write_text(text.format(python=sys.executable))
            (folder / "bin" / name).chmod(0o755)

    def step(self, name: str) -> tuple[int, str]:
        """Run a step; return its exit code and what it printed."""
        files = {f"GITHUB_{each}": str(self.folder / each.lower()) for each in ("OUTPUT", "STEP_SUMMARY")}
        path = [str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        environment = {
            "PATH": os.pathsep.join(path),
            "HOME": str(self.folder), "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(self.folder / "cache"),
            "RUNNER_TEMP": str(self.folder / "temporary"), "CALLS": str(self.folder / "calls"),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        given = {key: self.fill(value) for key, value in STEPS[name].get("env", {}).items()}
        script = self.folder / "step.sh"
        script.write_text(STEPS[name]["run"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            env=environment | files | given | self.environment,
            cwd=self.folder / "work",
            capture_output=True,
            text=True,
            timeout=300,
        )
        lines = self.read("output").splitlines()
        self.outputs = dict(line.split("=", 1) for line in lines)
        return done.returncode, done.stdout + done.stderr

    def fill(self, text: str) -> str:
        """Fill in the expressions of an environment variable, as the runner does."""
        values = GITHUB | {f"inputs.{name}": value for name, value in self.inputs.items()}
        values |= {f"steps.check.outputs.{name}": value for name, value in self.outputs.items()}
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda match: values[match[1]], text)

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def calls(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.read("calls").splitlines()]


@pytest.fixture
def job(tmp_path: Path) -> DryRun:
    return DryRun(tmp_path)


def test_no_text_of_an_expression_reaches_a_shell() -> None:
    for step in STEPS.values():
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"
    named = set(re.findall(r"inputs\.([\w-]+)", json.dumps(ACTION["runs"])))
    assert named == set(ACTION["inputs"])
    assert set(ACTION["outputs"]) == {"exit-code", "comment"}


def test_a_regression_is_commented_and_fails_the_job(job: DryRun) -> None:
    job.inputs |= {
        "run": str(RUNS / "zero3.zprof"),
        "baseline": str(RUNS / "zero3-prefetch.zprof"),
        "token": "t",
    }
    code, log = job.step("check")
    assert (code, job.outputs["exit-code"]) == (0, "1"), log
    assert "::error title=zprof%3A overlap_ratio failed::" in log
    comment = Path(job.outputs["comment"]).read_text(encoding="utf-8")
    assert comment.startswith("## ✗ zprof check")
    assert job.read("step_summary") == comment
    assert job.step("comment")[0] == 0
    (listing,), (post, body) = job.calls()
    assert listing[:3] == ["api", "--paginate", "repos/owner/name/issues/7/comments"]
    assert post[:5] == ["api", "--silent", "-X", "POST", "repos/owner/name/issues/7/comments"]
    marker, _, rest = body.partition("\n")
    assert re.fullmatch(r"<!-- zprof check [0-9a-f]{16} -->", marker)
    assert rest == comment
    assert len(body.splitlines()) <= 60
    assert job.step("result")[0] == 1


def test_an_earlier_comment_is_replaced(job: DryRun) -> None:
    job.inputs |= {"run": str(RUNS / "zero3.zprof"), "token": "t"}
    job.environment["EARLIER"] = "41\n42"
    job.step("check")
    assert (job.outputs["exit-code"], job.step("comment")[0], job.step("result")[0]) == ("0", 0, 0)
    assert job.calls()[1][0][:5] == ["api", "--silent", "-X", "PATCH", "repos/owner/name/issues/comments/41"]


def test_a_token_that_may_not_comment_warns(job: DryRun) -> None:
    """Such as that of a pull request from a fork."""
    job.inputs |= {"run": str(RUNS / "zero3.zprof"), "token": "t"}
    job.environment["GH_FAILS"] = "1"
    job.step("check")
    code, log = job.step("comment")
    assert (code, "::warning title=zprof::" in log) == (0, True)


def test_limits_are_those_of_the_input(job: DryRun) -> None:
    job.inputs |= {"run": str(RUNS / "zero3.zprof"), "limits": 'peak_memory = "1 MiB"\nstep_time = "off"'}
    job.step("check")
    assert job.outputs["exit-code"] == "1"
    assert "peak_memory: 20.5 MiB" in job.read("step_summary")


def test_a_check_that_cannot_be_made_says_so_and_fails(job: DryRun) -> None:
    job.inputs |= {"run": "absent.zprof"}
    code, log = job.step("check")
    assert (code, job.outputs["exit-code"], "absent.zprof" in log) == (0, "2", True)
    assert "NOT CHECKED: exit code 2" in job.read("step_summary")
    assert job.step("result")[0] == 2


def test_the_package_is_one_argument_of_pip(job: DryRun) -> None:
    job.inputs["package"] = "zprof==1.0; touch made"
    assert job.step("install")[0] == 0
    assert job.calls() == [[["-m", "pip", "install", "--quiet", "--", "zprof==1.0; touch made"]]]


@pytest.mark.parametrize("name", [each for each in NAMES if "\0" not in each and each.isprintable()] + [
    "$(touch made)", "`touch made`", "'; touch made; '", '"; touch made; "', "--help", "-", "a\nb",
])  # fmt: skip
def test_inputs_run_nothing(job: DryRun, name: str) -> None:
    """A run, a baseline and limits with any name: bad input, and nothing else happens."""
    stub = '#!/bin/sh\nfor each in "$@"; do printf "%s\\0" "$each"; done > arguments\nexit 2\n'
    (job.folder / "bin/zprof").write_text(stub)
    (job.folder / "bin/zprof").chmod(0o755)
    job.inputs |= {"run": name, "baseline": name, "limits": name, "token": "t", "author": name}
    assert job.step("check")[0] == 0
    arguments = job.read("work/arguments").split("\0")[:-1]
    assert arguments[-2:] == ["--", name]
    if name:
        assert f"--baseline={name}" in arguments
        limits = arguments[arguments.index("--config") + 1]
        assert Path(limits).read_text() == f"[check]\n{name}\n"
    assert job.step("comment")[0] == 0
    assert {path.name for path in (job.folder / "work").iterdir()} == {"arguments"}


def test_the_page_on_ci_has_the_inputs_of_the_action() -> None:
    page = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## A comment on the pull request")
    section, _, _ = section.partition("## GitLab")
    workflow = yaml.safe_load(section.partition("```yaml")[2].partition("```")[0])
    step = workflow["jobs"]["zprof"]["steps"][-1]
    assert (ROOT / step["uses"] / "action.yml").is_file()
    assert set(step["with"]) <= set(ACTION["inputs"])
    assert set(re.findall(r"^\| `([\w-]+)` \|", section, re.M)) == set(ACTION["inputs"])
