"""A name that all ranks of one recording share, so that a folder that is used again never mixes two jobs."""

import os
import time

import torch.distributed as dist

from zprof.collectors.store import default_store


def agree_on_run_id() -> str:
    """The same on all ranks, another for each recording; no rank waits for another."""
    mine = f"{time.time_ns()}-{os.getpid()}"
    if not (dist.is_available() and dist.is_initialized()):
        # Before there is a process group, only the launcher's name for the job is shared.
        alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
        return mine if alone else os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get("MASTER_PORT", "")
    store = default_store()
    recording = store.add(f"zprof/recordings/{dist.get_rank()}", 1)
    return str(store.compare_set(f"zprof/run/{recording}", "", mine).decode())
