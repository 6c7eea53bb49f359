"""What a child hears of a recording: its sitecustomize runs the user's own, and watches for torch."""

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zprof.collectors.record.launch.record import get_launcher_start_ns
from zprof.collectors.record.launch.session import (
    STARTUP_FOLDER,
    VARIABLE,
    ProgramSettings,
    Session,
    make_child_environment,
    remove_recording,
)

WATCH = STARTUP_FOLDER.parent / "torch_watch.py"
FAKE_TORCH = "import sys; print('torch runs')"
Printed = tuple[str, str]


@pytest.mark.parametrize("before", [None, "", f"/mine{os.pathsep}/yours"])
def test_a_child_hears_all_and_forgets_all(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ProgramSettings(run="/x/run.zprof", skip=3, init=False, session="/y")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    environment = make_child_environment(settings)
    assert ProgramSettings.from_json(environment[VARIABLE]) == settings
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(STARTUP_FOLDER)
    assert "" not in environment["PYTHONPATH"].split(os.pathsep), "an empty entry is the current folder"
    remove_recording(environment)
    assert environment.get("PYTHONPATH", "") == (before or "")
    assert VARIABLE not in environment


def test_one_process_records_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(tmp_path)
    assert [session.claim(rank) for rank in (0, 1, 0)] == [True, True, False]
    (note,) = session.notes()
    assert "rank 0" in note
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert session.claim(0), "a job that its launcher has started again"


def test_a_launcher_is_older_than_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    assert get_launcher_start_ns() >= now_ns, "nobody else can have begun"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert get_launcher_start_ns() < now_ns


def python(code: str, *folders: Path, **variables: str) -> Printed:
    """Return the output of a child that starts with these folders on its path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ZPROF"))}
    environment = kept | {"PYTHONPATH": os.pathsep.join(map(str, folders))} | variables
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("own", "variables"),
    [
        ("print('mine', __name__, __file__.endswith('mine/sitecustomize.py'))", {}),
        ("import sys; sys.flag = 'set'; sys.path.append('/added')", {VARIABLE: "{}", "ZPROF": "0"}),
        ("raise ValueError('of the user')", {}),
        ("import nothing_of_that_name", {}),
        (None, {}),
    ],
)
def test_the_users_own_runs_exactly_as_without(
    own: str | None, variables: dict[str, str], tmp_path: Path
) -> None:
    if own is not None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine/sitecustomize.py").write_text(own)
    show = "import sys; print(getattr(sys, 'flag', None), sys.path, [type(each) for each in sys.meta_path])"
    if own is not None:
        show += "; print('sitecustomize' in sys.modules)"
    plain = python(show, tmp_path / "mine", **variables)
    recorded = python(show, STARTUP_FOLDER, tmp_path / "mine", **variables)
    assert recorded == plain


def test_torch_is_watched_for_by_a_finder_that_goes_away(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    settings = json.dumps({"session": str(tmp_path), "home": "/nowhere"})
    code = (
        "from sys import meta_path as m; n = len(m); import torch; print(n - len(m), torch.__spec__.loader)"
    )
    out, error = python(code, STARTUP_FOLDER, tmp_path, **{VARIABLE: settings})
    assert out.startswith("torch runs\n1 <_frozen_importlib_external.SourceFileLoader")
    assert not error


def test_a_child_without_zprof_runs_on_and_leaves_a_note(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    (tmp_path / "zprof.py").write_text("raise ImportError('no such thing here')")
    settings = json.dumps({"session": str(tmp_path), "home": "/nowhere"})
    assert python("import torch", STARTUP_FOLDER, tmp_path, **{VARIABLE: settings}) == ("torch runs\n", "")
    (note,) = tmp_path.glob("note.*")
    assert "no such thing here" in note.read_text()


@pytest.mark.parametrize("broken", ["{", '{"run": 1}'])
def test_a_broken_request_is_never_seen(broken: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    assert python("import torch", STARTUP_FOLDER, tmp_path, **{VARIABLE: broken}) == ("torch runs\n", "")


@pytest.mark.parametrize("before", ["importlib.util.find_spec('torch')", "fail.add(1)"])
def test_looking_for_torch_ends_no_watch(before: str, tmp_path: Path) -> None:
    """Libraries look for torch before a program imports it; an import may also fail at first."""
    (tmp_path / "torch.py").write_text("import __main__\nif __main__.fail: raise OSError('first')\n")
    code = f"""
import importlib.util, sys
fail = set()
sys.path.insert(0, {str(WATCH.parent)!r})
from torch_watch import call_after_import
call_after_import(lambda: print('seen', 'torch' in sys.modules))
before = len(sys.meta_path)
{before}
print(before - len(sys.meta_path))
try:
    import torch
except OSError:
    fail.clear()
    import torch
print(before - len(sys.meta_path), 'exec_module' in vars(torch.__spec__.loader))
"""
    assert python(code, tmp_path) == ("0\nseen True\n1 False\n", "")


def test_interpreters_of_the_system_can_read_it() -> None:
    """Tools that a command starts may be of Python 3.6, which cannot read ``annotations`` of the future."""
    source = (STARTUP_FOLDER / "sitecustomize.py").read_text()
    ast.parse(source, feature_version=(3, 6))
    assert "__future__" not in source
