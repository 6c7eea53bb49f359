"""A script in zprof's own process: as ``python script.py`` would run it, to its last byte."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from zprof.integrations.program.in_process import check_program, is_python_program
from zprof.integrations.program.record import record_here
from zprof.integrations.program.session import ProgramSettings
from zprof.model.errors import BadInput

ROOT = Path(__file__).parents[4]
RECORD = ("-m", "zprof", "record", "-o", "r", "--")

SHOW = """
import sys, pickle, os
class Own: pass
print(__name__, __file__, __spec__, __package__, __doc__, __annotations__, __cached__)
print(type(__loader__).__name__)
print(sys.argv, sys.path, sorted(set(globals()) - {"__builtins__"}), __builtins__.__class__)
print(pickle.loads(pickle.dumps(Own())).__class__ is Own, sys.modules["__main__"].Own is Own, sys.flags)
import atexit
atexit.register(lambda: print("at exit", sys.modules["__main__"].Own.__name__))
"""
ENDINGS = {
    "nothing": "",
    "code": "sys.exit(4)",
    "message": "sys.exit('words')",
    "error": "def f(): raise KeyError('x')\nf()",
    "chained": "try:\n 1/0\nexcept ZeroDivisionError as e:\n raise ValueError('y') from e",
    "hook": "sys.excepthook = lambda kind, value, trace: print('hook', trace.tb_lineno, trace.tb_next)\n1/0",
    "interrupt": "raise KeyboardInterrupt",
    "thread": "import threading\nthreading.Thread(target=lambda: print(sys.modules['__main__'].Own)).start()",
    "own error": "from zprof.model.errors import BadInput\nraise BadInput('mine', hint='h')",
    "syntax": "def",
    "hard": "sys.stdout.flush(); os._exit(6)",
}


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ZPROF_DEBUG": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_cannot_tell(ending: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/show.py").write_text(f"{SHOW}\n{ENDINGS[ending]}\n")
    plain = run("in/show.py", "--force", "--", "-x", folder=tmp_path)
    recorded = run(
        "-m", "zprof", "record", "-o", "r", "--", "in/show.py", "--force", "--", "-x", folder=tmp_path
    )
    assert (recorded.stdout, recorded.returncode) == (plain.stdout, plain.returncode)
    errors = [line for line in recorded.stderr.splitlines() if not line.startswith("zprof:")]
    assert errors == plain.stderr.splitlines()


def test_a_module_cannot_tell(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(SHOW.replace("__spec__, ", "__spec__.name, ") + "sys.exit(3)")
    plain = run("-m", "package.train", "-o", "x", folder=tmp_path)
    recorded = run(
        "-m", "zprof", "record", "-o", "r", "--", "-m", "package.train", "-o", "x", folder=tmp_path
    )
    assert plain.returncode == 3
    assert (recorded.stdout, recorded.returncode) == (plain.stdout, plain.returncode)


def test_the_switch_runs_the_program_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "show.py").write_text("import sys; print(sys.meta_path[0].__class__, sys.argv); sys.exit(2)")
    monkeypatch.setenv("ZPROF", "0")
    for command in (["show.py", "a"], [sys.executable, "show.py", "a"]):
        recorded = run(*RECORD, *command, folder=tmp_path)
        assert (recorded.returncode, recorded.stderr) == (2, "")
        assert "TorchWatch" not in recorded.stdout


def test_a_run_that_is_there_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("print('ran')")
    (tmp_path / "r").mkdir()
    (tmp_path / "r/mine.txt").write_text("")
    for command in (["show.py"], [sys.executable, "show.py"]):
        refused = run(*RECORD, *command, folder=tmp_path)
        assert (refused.stdout, refused.returncode) == ("", 2)
        assert refused.stderr.count("\n") == 1
        assert "exists and is not a run" in refused.stderr


def test_what_runs_here() -> None:
    assert is_python_program(["train.py", "x"])
    assert is_python_program(["-m", "train"])
    assert not is_python_program(["python", "train.py"])


@pytest.mark.parametrize("command", [["missing.py"], ["-m"]])
def test_what_cannot_run_is_said(command: list[str]) -> None:
    with pytest.raises(BadInput):
        check_program(command)


@pytest.mark.parametrize("program", [["show.py"], [sys.executable, "show.py"]])
@pytest.mark.parametrize("close", ["2>&-", "2>&1 | true"])
def test_nobody_reads_the_notes(program: list[str], close: str, tmp_path: Path) -> None:
    """Standard error is closed or its reader is gone: the exit code is the program's all the same."""
    (tmp_path / "show.py").write_text("import sys, time\nprint('out')\ntime.sleep(0.2)\nsys.exit(5)\n")
    command = shlex.join([sys.executable, *RECORD, *program])
    shell = f"set +e; ({command} > out; echo $? > code) {close}; cat code"
    done = subprocess.run(
        ["bash", "-c", shell],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "5"


def test_no_folder_for_notes_is_an_error_before_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(prefix: str) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(FileNotFoundError):
        record_here([str(script)], ProgramSettings(run="r.zprof"), force=False, on=True, say=print)
