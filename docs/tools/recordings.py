"""Record the runs that the pages and their pictures show: the demonstration, and a program of somebody's own.

The runs stand in docs/pictures/runs, so that every page and picture can be made again from one recording.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from docs.tools.examples import ROOT, select_notes
from zprof.run.manifest import MANIFEST_NAME, RANK_NAME, rank_folder, read_rank_manifest, to_json
from zprof.run.reader import load
from zprof.run.writer import write_provisional

RUNS = ROOT / "docs/pictures/runs"
#: What the recording commands printed, by command.
OUTPUTS = RUNS / "outputs.json"
PROGRAM = ROOT / "docs/pictures/train.py"
DEMO_COMMAND = "zprof demo"
RECORD_COMMAND = "zprof record -o run.zprof -- torchrun --nproc-per-node 2 train.py"


def record_runs() -> None:
    """Replace the runs of docs/pictures/runs by new recordings; takes about two minutes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(PROGRAM, folder)
        outputs = {command: _record(command, folder) for command in (DEMO_COMMAND, RECORD_COMMAND)}
        for run in (*sorted((folder / "zprof-demo").glob("*.zprof")), folder / "run.zprof"):
            shorten_paths(run, folder)
        for recorded in ("zprof-demo", "run.zprof"):  # the others are docs.tools.framework_runs's
            shutil.rmtree(RUNS / recorded, ignore_errors=True)
            shutil.copytree(folder / recorded, RUNS / recorded)
    outputs = json.loads(OUTPUTS.read_text(encoding="utf-8")) | outputs
    OUTPUTS.write_text(json.dumps(outputs, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _record(command: str, folder: Path) -> str:
    """Run a command that records; return what it prints, without the notes of torch."""
    tools = str(Path(sys.executable).parent)
    environment = os.environ | {
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        command.split(),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return (done.stdout + select_notes(done.stderr)).replace(f"{folder}/", "")


def shorten_paths(run: Path, folder: Path) -> None:
    """Leave out where the packages and the program lie on this machine, and what its name is."""
    packages = (path for path in map(Path, sys.path) if path.name == "site-packages")
    library = Path(sysconfig.get_path("stdlib"))
    prefixes = [f"{prefix}/" for prefix in (*packages, library, folder, ROOT)]
    recorded = load(run)
    for rank in recorded.ranks:
        for name in ("stack", "host_stack"):
            if recorded.has_table(rank, name):
                _shorten_stacks(run, rank, name, prefixes)
    manifest = replace(recorded.manifest, folder="")
    (run / MANIFEST_NAME).write_text(to_json(manifest), encoding="utf-8")


def _shorten_stacks(run: Path, rank: int, name: str, prefixes: Sequence[str]) -> None:
    table = load(run).table(rank, name)
    files = table["file"].cast(pa.string())
    for prefix in prefixes:
        files = pc.replace_substring(files, prefix, "")
    table = table.set_column(table.column_names.index("file"), "file", files)
    folder, manifest = rank_folder(run, rank), read_rank_manifest(run, rank)
    written = write_provisional(folder, name, table)
    manifest = replace(manifest, host="host", files=manifest.files | {name: written})
    (folder / RANK_NAME).write_text(to_json(manifest), encoding="utf-8")
