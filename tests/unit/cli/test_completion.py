"""Completion in bash, by the script that zprof prints and zprof itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_calls import Call

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
#: Completes each line of stdin as a key press would, and prints what bash would offer.
_BASH = """
source "$1"
while IFS= read -r line; do
    COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9 COMPREPLY=()
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _python_argcomplete zprof
    echo "${COMPREPLY[*]}"
done
"""


def complete(call: Call, folder: Path, *lines: str) -> list[list[str]]:
    """What bash offers for each line, in a folder."""
    script, program = folder / ".script", folder / ".bin/zprof"
    script.write_text(call("completion", "bash")[1])
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m zprof "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
    }
    done = subprocess.run(
        ["bash", "-c", _BASH, "bash", str(script)],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=environment,
    )
    return [line.split() for line in done.stdout.splitlines()]


def test_bash_completes_commands_options_choices_findings_and_runs(
    call: Call, runs: Path, tmp_path: Path
) -> None:
    for name in ("good.zprof", "slow.zprof"):
        (tmp_path / name).symlink_to(runs / name)
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces/rank0.json.gz").touch()
    (tmp_path / "traces/notes.txt").touch()
    offered = complete(
        call,
        tmp_path,
        "zprof dia",
        "zprof diagnose --base",
        "zprof report good.zprof -f s",
        "zprof baseline u",
        "zprof explain straggler",
        "zprof diagnose sl",
        "zprof diagnose good.zprof --baseline sl",
        "zprof diagnose tr",
        "zprof diagnose traces/",
        "zprof nonsense --base",
    )
    assert offered == [
        ["diagnose"],
        ["--baseline", "--baseline-tokens-per-step"],
        ["sarif", "svg"],
        ["update"],
        ["straggler_rank"],
        ["slow.zprof"],
        ["slow.zprof"],
        ["traces/"],
        ["traces/rank0.json.gz"],
        [],
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(call: Call, shell: str) -> None:
    code, out, err = call("completion", shell)
    assert (code, err, "zprof" in out) == (0, "", True)
