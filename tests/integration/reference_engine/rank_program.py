"""What every program of a rank does: run the cases of a file in one process group, and write what it saw.

python PROGRAM.py FOLDER        (RANK, WORLD_SIZE and MASTER_* in the environment)
"""

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def run_cases(run: Callable[[dict[str, Any]], Any]) -> None:
    """``run`` gets one case after the other, on all ranks in the same order; its results are JSON."""
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    try:
        results = {name: run(case) for name, case in cases.items()}
        (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(results))
    finally:
        dist.destroy_process_group()
