"""The default install, without torch and HTA: everything that looks works, the rest names its extra."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.snapshot_truth.write_snapshot import snapshot_of, write_snapshot
from tests.support.bare_environment import link_packages, make_bare_environment
from tests.support.pty_terminal import PtyTerminal
from tests.support.pytest_suites import RUNS
from tests.support.snapshots import random_history

ABSENT = ("torch", "hta", "plotly", "pynvml", "distributed", "cuda", "pytest")
RUN, BASELINE = str(RUNS / "zero3"), str(RUNS / "ddp")
#: In the order of a user's: each may read what an earlier one wrote.
LOOKING = (
    "simulate -o traces --ranks 2 --steps 3 --units 2",
    "simulate -o late --ranks 2 --steps 3 --units 2 --cause straggler_rank",
    "import traces -o good.zprof",
    "diagnose late --baseline good.zprof",
    "report late -f json",
    f"report {RUN} --baseline {BASELINE} -o run.html",
    f"report {RUN} --only memory -f svg",
    "import snapshot.pickle -o snapshot.zprof",
    *(f"report snapshot.pickle --only memory -f {kind}" for kind in ("text", "md", "junit", "sarif")),
    "baseline save good.zprof -o base.json",
    "baseline show base.json",
    "check good.zprof --baseline base.json --junit check.xml",
    f"compare {BASELINE} {RUN}",
    "plan --preset 7.5b --dp 64 --hardware h100 --micro-batch 4 --sequence 1024",
    "plan --params 7.5e9 --dp 64 -o plan.html",
    f"whatif {RUN}",
    "export good.zprof --perfetto good.json.gz",
    f"bundle {RUN} -o ticket.zip",
    "explain ZP301",
    "explain --list",
    *(f"schema {name}" for name in ("report", "check", "baseline", "plan", "whatif")),
    "doctor",
    "doctor --json",
)
#: What needs an extra, and which.
NEEDS_MORE = {
    "demo": "record",
    "train -o run.zprof": "record",
    "train --stage 3 --help": "record",
    "record -o run.zprof -- train.py": "record",
    "record -o run.zprof -- -m train": "record",
    "record -o run.zprof -- {python} train.py": "record",
    "record -o run.zprof -- no-such-torchrun train.py": "record",
    "plan --model model:build --dp 2 --micro-batch 1 --sequence 8": "record",
    "plan --preset 7.5b --dp 64 --micro-batch 4 --sequence 1024 --verify": "record",
    "verify traces": "hta",
    "report traces --hta": "hta",
    "import traces -o d.zprof --executor dask://127.0.0.1:8786": "dask",
}
#: Runs lines of arguments in one process and prints for each its exit code and what it wrote.
PROBE = """
import contextlib, io, json, sys
from zprof.cli import main

class Captured(io.TextIOWrapper):
    def __init__(self):
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

for line in json.load(sys.stdin):
    out, err = Captured(), Captured()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    print(json.dumps([code, *texts]))
"""


class Bare:
    """The environment's Python, and a folder to work in."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "XDG_CACHE_HOME") if name in os.environ}
        self.environment = {**kept, "PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(folder)}

    def run(self, *arguments: str, given: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(self.python), *arguments],
            input=given,
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def commands(self, lines: list[str]) -> list[tuple[int, str, str]]:
        """Exit code, output and notes of ``zprof`` with each line of arguments."""
        done = self.run("-c", PROBE, given=json.dumps([line.split() for line in lines]))
        assert done.returncode == 0, done.stderr
        return [tuple(json.loads(answer)) for answer in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    python = make_bare_environment(tmp_path_factory.mktemp("bare"), wheel)
    bare = Bare(python, tmp_path_factory.mktemp("work"))
    write_snapshot(bare.folder / "snapshot.pickle", snapshot_of(random_history(3, 400)))
    (bare.folder / "train.py").write_text("import torch\n")
    return bare


def test_it_has_neither_torch_nor_hta(bare: Bare) -> None:
    code = f"from importlib.util import find_spec; print([n for n in {ABSENT} if find_spec(n)])"
    assert bare.run("-c", code).stdout.strip() == "[]"
    assert not bare.run("-c", "import zprof; print(zprof.__file__)").stdout.startswith(str(Path.cwd()))


def test_everything_that_looks_works(bare: Bare) -> None:
    answers = bare.commands([*LOOKING])
    told = dict(zip(LOOKING, answers, strict=True))
    assert not {line: (code, notes) for line, (code, _, notes) in told.items() if code}
    report = json.loads(told["report late -f json"][1])
    assert report["findings"][0]["cause"] == "straggler_rank"
    assert "<svg" in (bare.folder / "run.html").read_text()
    checks = {check["name"]: check for check in json.loads(told["doctor --json"][1])["checks"]}
    for name, extra in {"torch": "record", "nvml": "record", "hta": "hta", "dask": "dask"}.items():
        assert (checks[name]["status"], checks[name]["remedy"]) == ("absent", f"pip install 'zprof[{extra}]'")


def test_what_needs_an_extra_says_which_in_one_line(bare: Bare) -> None:
    lines = [line.format(python=bare.python) for line in NEEDS_MORE]
    for line, extra, (code, out, notes) in zip(lines, NEEDS_MORE.values(), bare.commands(lines), strict=True):
        assert (code, out) == (2, ""), line
        assert len(notes.splitlines()) == 1, line
        assert notes.endswith(f"pip install 'zprof[{extra}]'\n"), line


def test_a_python_of_another_environment_may_have_its_own_torch(bare: Bare) -> None:
    (bare.folder / "plain.py").write_text("print('it ran')\n")
    other = bare.run("-m", "zprof", "record", "-o", "other.zprof", "--", sys.executable, "plain.py")
    assert (other.returncode, other.stdout) == (0, "it ran\n"), other.stderr


def test_the_api_loads_and_diagnoses_and_recording_names_its_extra(bare: Bare) -> None:
    looking = (
        f"import zprof; print(zprof.diagnose(zprof.load({RUN!r})).run.world_size, zprof.steps(time=3).time)"
    )
    done = bare.run("-c", looking)
    assert done.stdout.split() == ["2", "3"], done.stderr
    for code in (
        "import zprof; help(zprof); zprof.record('run.zprof')",
        "from zprof import Recorder; Recorder()",
        "import zprof.integrations.huggingface",
        "import zprof.integrations.deepspeed",
    ):
        caught = f"try:\n    {code}\nexcept ImportError as error:\n    print(error)"
        assert bare.run("-c", caught).stdout.endswith("pip install 'zprof[record]'\n"), code


def test_the_terminal_interface_opens(bare: Bare) -> None:
    terminal = PtyTerminal([str(bare.python.parent / "zprof"), "tui", RUN], bare.environment)
    try:
        terminal.wait_for("zero3")
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_the_pytest_plugin_loads_and_names_the_extra(bare: Bare, tmp_path: Path) -> None:
    link_packages(["pytest"], tmp_path / "site")
    (tmp_path / "test_cost.py").write_text(
        "import pytest\n"
        "def test_plain(): pass\n"
        "@pytest.mark.zprof_limit(peak='1 TiB')\n"
        f"def test_saved(zprof_run): zprof_run.load({RUN!r})\n"
        "def test_recorded(zprof_run): zprof_run(lambda: None)\n"
    )
    options = ("-p", "no:cacheprovider", "--strict-markers", "-q", str(tmp_path / "test_cost.py"))
    done = bare.run("-m", "pytest", *options, PYTHONPATH=str(tmp_path / "site"))
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "pip install 'zprof[record]'" in done.stdout
    assert "Traceback" not in done.stdout
