"""Keeps a recorded run as a fixture: its files as they are, without the paths of the machine.

python -m tests.support.freeze_run zero3.zprof tests/data/tui/zero3
"""

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_INSTALLED = re.compile(r"^.*/(lib/python[\d.]+/)")
_OWN = re.compile(r"^.*/(zprof|reference_engine)/")


def neutral(path: str) -> str:
    """A file as any machine could have it."""
    if _INSTALLED.search(path):
        return _INSTALLED.sub(r"/usr/\1", path)
    return _OWN.sub(r"/train/\1/", path)


def freeze(source: Path, target: Path) -> None:
    """Copy a run, and rewrite the files of its stacks."""
    shutil.copytree(source, target)
    for stacks in target.glob("rank*/stack.parquet"):
        table = pq.read_table(stacks)
        files = pa.array([neutral(str(file)) for file in table["file"].to_pylist()])
        place = table.schema.get_field_index("file")
        files = files.cast(table.schema.field(place).type)
        pq.write_table(table.set_column(place, table.schema.field(place), files), stacks, compression="zstd")
        _sign(stacks)


def _sign(file: Path) -> None:
    manifest = file.parent / "rank.json"
    content = json.loads(manifest.read_text())
    entry = content["files"][file.stem]
    entry["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    content["host"] = "node"
    manifest.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    freeze(Path(sys.argv[1]), Path(sys.argv[2]))
