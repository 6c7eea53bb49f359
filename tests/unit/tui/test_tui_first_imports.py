"""The first screen waits for the app and the manifest, not for the libraries that read tables."""

import json
import subprocess
import sys
from pathlib import Path

HEAVY = (
    "numpy",
    "pandas",
    "pyarrow",
    "torch",
    "zprof.analysis.analysis",
    "zprof.rules.diagnose",
    "zprof.planner",
)
_PREVIEW = f"""
import json, sys
from pathlib import Path
import zprof.tui.app
from zprof.run.reader import load
from zprof.tui.session import RunRequest, preview_run
look = preview_run(RunRequest(path=Path(sys.argv[1]), opener=load))
print(json.dumps([look.facts.name, [name for name in {HEAVY!r} if name in sys.modules]]))
"""


def test_the_preview_of_a_run_imports_nothing_that_reads_tables(slow_run: Path) -> None:
    command = [sys.executable, "-c", _PREVIEW, str(slow_run)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [slow_run.name, []]
