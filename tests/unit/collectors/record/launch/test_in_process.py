"""A script in zprof's own process: as ``python script.py`` would run it, to its last byte."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from zprof.base.errors import BadInput
from zprof.collectors.record.launch.in_process import check_program, is_python_program

ROOT = Path(__file__).parents[5]
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
    "message": "sys.exit('words')",
    "chained": "try:\n 1/0\nexcept ZeroDivisionError as e:\n raise ValueError('y') from e",
    "hook": "sys.excepthook = lambda kind, value, trace: print('hook', trace.tb_lineno, trace.tb_next)\n1/0",
    "thread": "import threading\nthreading.Thread(target=lambda: print(sys.modules['__main__'].Own)).start()",
    "own error": "from zprof.base.errors import BadInput\nraise BadInput('mine', hint='h')",
}
SLOW_ENDINGS = {
    "code": "sys.exit(4)",
    "interrupt": "raise KeyboardInterrupt",
    "syntax": "def",
    "hard": "sys.stdout.flush(); os._exit(6)",
}


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ZPROF_DEBUG": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    "ending",
    [*ENDINGS.values(), *(pytest.param(code, marks=pytest.mark.slow) for code in SLOW_ENDINGS.values())],
    ids=[*ENDINGS, *SLOW_ENDINGS],
)
def test_a_script_cannot_tell(ending: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/show.py").write_text(SHOW + ending)
    program = ["in/show.py", "--force", "--", "-x"]
    plain, recorded = run(*program, folder=tmp_path), run(*RECORD, *program, folder=tmp_path)
    assert (recorded.stdout, recorded.returncode) == (plain.stdout, plain.returncode)
    errors = [line for line in recorded.stderr.splitlines() if not line.startswith("zprof:")]
    assert errors == plain.stderr.splitlines()


def test_a_module_cannot_tell(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(SHOW.replace("__spec__, ", "__spec__.name, ") + "sys.exit(3)")
    program = ["-m", "package.train", "-o", "x"]
    plain, recorded = run(*program, folder=tmp_path), run(*RECORD, *program, folder=tmp_path)
    assert (recorded.stdout, recorded.returncode) == (plain.stdout, plain.returncode)
    assert plain.returncode == 3


def test_switched_off_it_runs_the_program_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "show.py").write_text("import sys; print(sys.meta_path[0].__class__, sys.argv); sys.exit(2)")
    monkeypatch.setenv("ZPROF", "0")
    for command in (["show.py", "a"], [sys.executable, "show.py", "a"]):
        recorded = run(*RECORD, *command, folder=tmp_path)
        assert (recorded.returncode, recorded.stderr) == (2, "")
        assert "TorchWatch" not in recorded.stdout


def test_a_folder_that_is_no_run_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("print('ran')")
    (tmp_path / "r").mkdir()
    (tmp_path / "r/mine.txt").write_text("")
    for command in (["show.py"], [sys.executable, "show.py"]):
        refused = run(*RECORD, *command, folder=tmp_path)
        assert (refused.stdout, refused.returncode, refused.stderr.count("\n")) == ("", 2, 1)


def test_scripts_and_modules_run_here_and_executables_do_not() -> None:
    assert is_python_program(["train.py", "x"])
    assert is_python_program(["-m", "train"])
    assert not is_python_program(["python", "train.py"])
    for command in (["missing.py"], ["-m"]):
        with pytest.raises(BadInput):
            check_program(command)


def test_closed_standard_error_changes_no_exit_code(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import sys, time\nprint('out')\ntime.sleep(0.2)\nsys.exit(5)\n")
    command = shlex.join([sys.executable, *RECORD, "show.py"])
    shell = f"set +e; ({command} > out; echo $? > code) 2>&1 | true; cat code"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, env=environment, capture_output=True)
    assert done.stdout.split()[-1] == b"5"
