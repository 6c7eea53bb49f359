"""Runs of jobs that hang, imported from dumps: of a simulated job, and of one whose names try to steer."""

import pickle
from pathlib import Path

from benchmarks.hang_jobs import draw_job, write_dumps
from tests.support.flight_dumps import make_dump, make_entry
from tests.support.hostile_run import ENDS
from zprof.collectors.read.imports.import_paths import import_paths

EVIL = "".join(ENDS[:7])


def import_hung_job(folder: Path, fault: str = "host_stuck", seed: int = 3) -> Path:
    """The run of a simulated job; by default rank 8 of 16 does not go on, in an expert group."""
    write_dumps(draw_job(seed, fault), folder / "dumps")
    return import_paths([folder / "dumps"], folder / "hung.zprof").run


def import_hostile_dumps(folder: Path) -> Path:
    """The run of a job in which rank 1 does not go on; group, operation and lines have hostile names."""
    dumps = folder / "dumps"
    dumps.mkdir()
    config = {"0": {"name": "0", "desc": EVIL, "ranks": "[0, 1]"}}
    frames = [{"name": EVIL, "filename": f"{EVIL}.py", "line": 3}]
    changes = {"profiling_name": f"nccl:{EVIL}", "frames": frames}
    waiting = make_dump(pg_config=config, entries=[make_entry(0, (0, "0", EVIL), **changes)])
    stuck = make_dump(pg_config=config, count=0)
    for rank, dump in enumerate((waiting, stuck)):
        (dumps / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return import_paths([dumps], folder / "hostile.zprof").run
