"""One trace is read by another process while the command imports the analysis, with the same outcome."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.trace_folders import trace_document, write_trace

ROOT = Path(__file__).parents[5]
#: Files of this size are worth a process.
LARGE_BYTES = 3 << 20
#: Imports a file into a run; without threads, as the command line starts.
PROGRAM = """
import json, sys
from pathlib import Path
from zprof.collectors.read.imports import traces
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.collectors.read.imports.options import ImportOptions
from zprof.base.errors import BadInput

path, run, mode = sys.argv[1:]
calls = []
if mode == "dies":
    from dying_reader import import_trace
    traces.import_trace = import_trace
traces.count_usable_processors = lambda: 1 if mode == "one processor" else 2
while_reading = None if mode == "alone" else lambda: calls.append(1)
try:
    import_paths([Path(path)], Path(run), options=ImportOptions(while_reading=while_reading))
    error = ""
except BadInput as found:
    error = found.message + found.hint
reads_here = "zprof.collectors.read.kineto.reading.reader" in sys.modules
print(json.dumps([error, reads_here, calls, "pandas" in sys.modules]))
"""
#: Reads a file in the first process, and dies in any other.
DYING_READER = """
import os, signal
from zprof.collectors.read.imports import trace_worker

parent = os.getpid()

def import_trace(job, *on_bytes):
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return trace_worker.import_trace(job, *on_bytes)
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "rank0.json"
    write_trace(path, trace_document(0, 1))
    path.write_bytes(path.read_bytes() + b" " * LARGE_BYTES)
    return path


def import_file(path: Path, run: Path, mode: str) -> tuple[str, bool, list[int], bool]:
    """Return the error, whether this process read the file, the calls meanwhile, and whether pandas came."""
    (path.parent / "dying_reader.py").write_text(DYING_READER)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{path.parent}"}
    line = [sys.executable, "-c", PROGRAM, str(path), str(run), mode]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment)
    assert not done.stderr
    error, reads_here, calls, has_pandas = json.loads(done.stdout)
    return error, reads_here, calls, has_pandas


def read_tables(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*.parquet")}


@pytest.mark.parametrize(
    ("mode", "reads_here", "calls"),
    [("beside", False, [1]), ("dies", True, [1]), ("one processor", True, []), ("alone", True, [])],
)
def test_who_reads_makes_no_difference(
    mode: str, reads_here: bool, calls: list[int], trace: Path, tmp_path: Path
) -> None:
    assert import_file(trace, tmp_path / "r.zprof", mode) == ("", reads_here, calls, False)
    import_file(trace, tmp_path / "alone.zprof", "alone")
    assert len(read_tables(tmp_path / "r.zprof")) == 3
    assert read_tables(tmp_path / "r.zprof") == read_tables(tmp_path / "alone.zprof")
    assert sorted(os.listdir(tmp_path / "r.zprof")) == ["manifest.json", "rank00000"]


def test_a_file_that_is_no_trace_is_refused_in_the_same_words(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"traceEvents": 7}' + b" " * LARGE_BYTES)
    found, alone = (import_file(path, tmp_path / "r.zprof", mode)[0] for mode in ("beside", "alone"))
    assert found == alone != ""
    assert not (tmp_path / "r.zprof").exists()
