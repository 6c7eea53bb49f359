"""Commands that tests call: in process (``tests/unit/cli/conftest.py``), or in a process of their own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

#: Takes arguments; returns exit code, stdout and stderr.
Call = Callable[..., tuple[int, str, str]]


def run_command(*command: str, cwd: Path | None = None, **environment: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2_000:]}\n{done.stderr[-2_000:]}"
    return done.stdout


def run_python(*arguments: str, cwd: Path | None = None, **environment: str) -> str:
    return run_command(sys.executable, *arguments, cwd=cwd, **environment)


def run_zprof(*arguments: str, **environment: str) -> str:
    return run_python("-m", "zprof", *arguments, **environment)
