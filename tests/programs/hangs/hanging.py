"""Train on 2 or 4 gloo ranks, and hang, or seem to: ``--fault NAME``.

The line that is to blame has a comment ``# fault: NAME``; if the others wait in another one, that has ``#
waits: NAME``. A hang ends by gloo's timeout, or by itself.

skipped_all_reduce   rank 1 does not enter one all_reduce, and waits in the next collective
skipped_barrier      rank 1 returns early from a function that ends with a barrier, and computes on
more_elements        rank 1 reduces a larger tensor; small ones abort the process in gloo, large ones hang
different_kind       rank 1 broadcasts where the others reduce
different_order      two ranks enter the collectives of two groups in a different order
killed               rank 1 kills itself: gloo notices, and its peers end with an error
stopped              rank 1 stops itself (SIGSTOP), which nobody notices
endless_loop         rank 1 polls for what never comes
lock_held            rank 1 waits for a lock that another of its threads holds
gil_held             rank 1 is in a call that does not release the GIL
checkpoint           rank 0 writes for --pause seconds, then all go on
evaluation           rank 0 evaluates for --pause seconds, then all go on
compilation          all ranks compile for --pause seconds before their first step
none                 nothing happens
"""

import argparse
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

STEPS, FAULT_STEP, WIDTH = 8, 5, 32
#: A gloo collective fails after this time, with which the program ends.
TIMEOUT_S = 30.0


class Job:
    """One rank: its model, its groups, and the step in which something goes wrong."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.fault, self.pause_s = options.fault, options.pause
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.model = nn.Linear(WIDTH, WIDTH)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.first = dist.new_group(list(range(self.size)), group_desc="tensor")
        self.second = dist.new_group(list(range(self.size)), group_desc="expert")
        pairs = [dist.new_group([start, start + 1], group_desc="pair") for start in range(0, self.size, 2)]
        self.pair = pairs[self.rank // 2]

    def train(self) -> None:
        if self.fault == "compilation":
            time.sleep(self.pause_s)  # fault: compilation
        for step in range(STEPS):
            self.run_step(step)
        dist.barrier()

    def run_step(self, step: int) -> None:
        loss = self.model(torch.ones(4, WIDTH)).square().mean()
        loss.backward()
        is_faulty = step == FAULT_STEP
        if not (is_faulty and self.fault == "skipped_all_reduce" and self.rank == 1):
            dist.all_reduce(torch.ones(7), group=self.first)  # fault: skipped_all_reduce
        if not (is_faulty and self.fault == "skipped_in_pair" and self.rank == 1):
            dist.all_reduce(torch.ones(3), group=self.pair)  # fault: skipped_in_pair
        if is_faulty:
            FAULTS[self.fault](self)
        self.reduce_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def reduce_gradients(self) -> None:
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)  # waits: stopped, endless_loop, lock_held, gil_held, stuck_loader


def skip_barrier(job: Job) -> None:
    if job.rank == 1:
        sleep_long()  # fault: skipped_barrier
    else:
        dist.barrier()  # waits: skipped_barrier


def reduce_more_elements(job: Job) -> None:
    size = MISMATCHED_ELEMENTS * (2 if job.rank == 1 else 1)
    dist.all_reduce(torch.ones(size))  # fault: more_elements


def enter_different_kind(job: Job) -> None:
    if job.rank == 1:
        dist.broadcast(torch.ones(7), src=0)  # fault: different_kind
    else:
        dist.reduce(torch.ones(7), dst=0)  # waits: different_kind


def enter_different_order(job: Job) -> None:
    groups = [job.first, job.second]
    for group in reversed(groups) if job.rank == 1 else groups:
        dist.all_reduce(torch.ones(7), group=group)  # fault: different_order


def kill_process(job: Job) -> None:
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # fault: killed


def stop_process(job: Job) -> None:
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)  # fault: stopped


def loop_endlessly(job: Job) -> None:
    end = time.monotonic() + TIMEOUT_S
    while job.rank == 1 and time.monotonic() < end:  # fault: endless_loop
        pass  # fault: endless_loop


def wait_for_lock(job: Job) -> None:
    lock = threading.Lock()
    if job.rank == 1:
        threading.Thread(target=lambda: lock.acquire() and sleep_long(), daemon=True).start()
        time.sleep(0.1)
        lock.acquire(timeout=TIMEOUT_S)  # fault: lock_held


def wait_for_batch(job: Job) -> None:
    if job.rank == 1:
        next(iter(DataLoader([0], collate_fn=lambda batch: sleep_long())))  # fault: stuck_loader


def leave_early(job: Job) -> None:
    if job.rank == 1:
        os._exit(3)  # fault: left_early


def hold_gil(job: Job) -> None:
    if job.rank == 1:
        ctypes.PyDLL(None).sleep(int(TIMEOUT_S))  # fault: gil_held


def write_checkpoint(job: Job) -> None:
    if job.rank == 0:
        time.sleep(job.pause_s)  # fault: checkpoint
    dist.barrier()


def evaluate(job: Job) -> None:
    end = time.monotonic() + job.pause_s
    while job.rank == 0 and time.monotonic() < end:
        job.model(torch.ones(4, WIDTH))  # fault: evaluation
        time.sleep(0.005)
    dist.broadcast(torch.ones(1), src=0)


def do_nothing(job: Job) -> None:
    """What is wrong is in the step itself."""


def sleep_long() -> None:
    time.sleep(TIMEOUT_S)


#: As large as gloo's largest segments, so that a different number of them does not abort.
MISMATCHED_ELEMENTS = 1 << 21
FAULTS: dict[str, Callable[[Job], None]] = {
    "skipped_barrier": skip_barrier,
    "more_elements": reduce_more_elements,
    "different_kind": enter_different_kind,
    "different_order": enter_different_order,
    "killed": kill_process,
    "stopped": stop_process,
    "endless_loop": loop_endlessly,
    "lock_held": wait_for_lock,
    "gil_held": hold_gil,
    "stuck_loader": wait_for_batch,
    "left_early": leave_early,
    "checkpoint": write_checkpoint,
    "evaluation": evaluate,
    "compilation": do_nothing,
    "skipped_all_reduce": do_nothing,
    "skipped_in_pair": do_nothing,
    "none": do_nothing,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--pause", type=float, default=6.0, help="seconds of a slow phase")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    Job(options).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
