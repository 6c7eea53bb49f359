"""Run one rank of the benchmark: measure every contender, and write the results.

python -m benchmarks.steps.rank time|count PLAN.json RESULT.json     (RANK, WORLD_SIZE, MASTER_* are set)
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional

from benchmarks.steps.launch import Plan, list_contenders, list_pairs
from benchmarks.steps.measure import count_all, time_all
from zprof.reference_engine.train import make_global_batch, take_rank_slice

# torch.distributed.nn.functional keeps the default group alive if it is first imported after
# init_process_group(), which torch's optimizers would do.


TIMEOUT = timedelta(seconds=120)
PASSES: Mapping[str, Callable[[Plan, list[str], torch.Tensor], dict[str, Any]]] = {
    "time": time_all,
    "count": count_all,
}


def make_tokens(plan: Plan, rank: int) -> torch.Tensor:
    """Return this rank's part of the one batch that all train on."""
    whole = make_global_batch(
        seed=plan.seed, step=0, batch=plan.batch, time=plan.context, vocabulary=plan.vocabulary
    )
    return take_rank_slice(whole, rank=rank, ranks=plan.ranks)


def main() -> None:
    measure, plan_path, result_path = sys.argv[1:]
    plan = Plan(**json.loads(Path(plan_path).read_text()))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    names = list_contenders(list_pairs(plan.dtype))
    result = PASSES[measure](plan, names, make_tokens(plan, dist.get_rank()))
    unfinished = Path(result_path + ".part")
    unfinished.write_text(json.dumps(result))
    unfinished.rename(result_path)
    dist.barrier()
    # Not a regular exit: ZeroRedundancyOptimizer's group outlives it and sometimes aborts the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
