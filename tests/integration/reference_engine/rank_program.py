"""One rank: runs the cases of each job of a folder in one process group, and writes what it saw.

python rank_program.py FOLDER        (RANK, WORLD_SIZE and MASTER_* in the environment)
"""

import importlib
import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def serve(folder: Path) -> None:
    """Take jobs until there is a file ``stop`` and no job is left."""
    number = 0
    while True:
        job = folder / f"job{number}.json"
        if job.exists():
            run_job(folder, number, json.loads(job.read_text()))
            number += 1
        elif (folder / "stop").exists():
            return
        else:
            time.sleep(0.01)


def run_job(folder: Path, number: int, job: dict) -> None:
    """``run`` of the program gets one case after the other, on all ranks in the same order."""
    run = importlib.import_module(job["program"]).run
    results = {name: run(case) for name, case in job["cases"].items()}
    draft = folder / f"draft{dist.get_rank()}"
    draft.write_text(json.dumps(results))
    draft.rename(folder / f"rank{dist.get_rank()}.{number}.json")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    try:
        serve(place)
    except BaseException:
        (place / f"rank{dist.get_rank()}.failed").touch()
        raise
    finally:
        dist.destroy_process_group()
