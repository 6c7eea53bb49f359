"""The sitecustomize of recorded children: it runs the user's own as Python would, and watches for torch."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zprof.integrations.program.session import STARTUP, VARIABLE

WATCH = STARTUP.parent / "program" / "torch_watch.py"
FAKE_TORCH = "import sys; print('torch runs')"


def python(code: str, *folders: Path, **variables: str) -> tuple[str, str]:
    """Output of a child that starts with these folders behind the start-up folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ZPROF"))}
    path = os.pathsep.join(map(str, folders))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd="/",
        env=kept | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, done.stderr


def both(code: str, *folders: Path, **variables: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """The same child without and with the start-up folder."""
    return python(code, *folders, **variables), python(code, STARTUP, *folders, **variables)


@pytest.mark.parametrize(
    "own",
    [
        "print('mine', __name__, __file__.endswith('mine/sitecustomize.py'))",
        "import sys; sys.flag = 'set'",
        "raise ValueError('of the user')",
        "import nothing_of_that_name",
        "import sys; sys.path.append('/added')",
    ],
)
def test_the_users_own_runs_exactly_as_without(own: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text(own)
    show = "import sys; print(getattr(sys, 'flag', None), sys.path, 'sitecustomize' in sys.modules)"
    plain, recorded = both(show, mine)
    assert recorded == plain


def test_without_one_nothing_is_seen() -> None:
    plain, recorded = both("import sys; print(sys.path, [type(finder) for finder in sys.meta_path])")
    assert recorded == plain


def test_torch_is_watched_for_by_a_finder_that_goes_away(tmp_path: Path) -> None:
    """Without a zprof that can be imported the child runs undisturbed, and the parent hears of it."""
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    settings = json.dumps({"session": str(tmp_path), "home": "/nowhere"})
    code = (
        "from sys import meta_path as m; n = len(m); import torch; print(n - len(m), torch.__spec__.loader)"
    )
    out, error = python(code, STARTUP, tmp_path, **{VARIABLE: settings})
    assert out.startswith("torch runs\n1 <_frozen_importlib_external.SourceFileLoader")
    assert not error


def test_a_child_without_zprof_runs_on_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    (tmp_path / "zprof.py").write_text("raise ImportError('no such thing here')")
    settings = json.dumps({"session": str(tmp_path), "home": "/nowhere"})
    out, error = python("import torch", STARTUP, tmp_path, **{VARIABLE: settings})
    assert (out, error) == ("torch runs\n", "")
    (note,) = tmp_path.glob("note.*")
    assert "zprof cannot be imported there (no such thing here)" in note.read_text()


@pytest.mark.parametrize("variables", [{}, {VARIABLE: "{}", "ZPROF": "0"}])
def test_nothing_is_watched_where_nothing_is_asked_for(variables: dict[str, str]) -> None:
    code = "import sys; print([type(finder).__name__ for finder in sys.meta_path])"
    plain, recorded = both(code, **variables)
    assert recorded == plain


def test_a_broken_request_is_never_seen(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    for broken in ("", "{", "[]", '{"run": 1}'):
        assert python("import torch", STARTUP, tmp_path, **{VARIABLE: broken}) == ("torch runs\n", "")


@pytest.mark.parametrize(
    "before",
    ["importlib.util.find_spec('torch')", "import absent_torch_user", "fail.add(1)"],
)
def test_who_only_asks_for_torch_ends_no_watch(before: str, tmp_path: Path) -> None:
    """Libraries ask whether torch is there before a program imports it; an import may also fail at first."""
    (tmp_path / "torch.py").write_text("import __main__\nif __main__.fail: raise OSError('first')\n")
    (tmp_path / "absent_torch_user.py").write_text(
        "import importlib.util as u\nassert u.find_spec('torch') and u.find_spec('torch')\n"
    )
    code = f"""
import importlib.util, sys
fail = set()
sys.path.insert(0, {str(WATCH.parent)!r})
from torch_watch import watch
watch(lambda: print('seen', 'torch' in sys.modules, len(sys.meta_path)))
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
    out, error = python(code, tmp_path)
    assert error == ""
    lines = out.splitlines()
    assert lines[0] == "0"
    assert lines[1].startswith("seen True")
    assert lines[2:] == ["1 False"]


def test_old_interpreters_can_read_it() -> None:
    """Tools of the system that a command starts may be of Python 3.6, which has no such future."""
    source = (STARTUP / "sitecustomize.py").read_text()
    ast.parse(source, feature_version=(3, 6))
    assert "__future__" not in source
