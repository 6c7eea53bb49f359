"""Identify this rank and its recording, stop a recording from outside (``zprof record``) in favor of the
program's own, and describe the machine for the manifest.

Environment variables are copied from an allow-list only: traces in the wild carry environment dumps with
access tokens.
"""

import gc
import os
import platform
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from zprof.collectors.torch_private import default_store
from zprof.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Rank, world size and backend. ``run_id`` identifies the recording on all ranks."""

    rank: int
    world_size: int
    backend: str
    run_id: str


def identify_rank() -> Identity:
    """Return the identity from the process group, else from the launcher's environment.

    Waits for no other rank.
    """
    joined = dist.is_available() and dist.is_initialized()
    return Identity(
        rank=dist.get_rank() if joined else int(os.environ.get("RANK", "0")),
        world_size=dist.get_world_size() if joined else int(os.environ.get("WORLD_SIZE", "1")),
        backend=dist.get_backend() if joined else "none",
        run_id=agree_on_run_id(),
    )


def agree_on_run_id() -> str:
    """Return an id that is equal on all ranks and differs between recordings, without waiting for a rank.

    Without a process group, several ranks share the launcher's name for the job only: then all recordings of
    one job have the same id.
    """
    mine = f"{time.time_ns()}-{os.getpid()}"
    if not (dist.is_available() and dist.is_initialized()):
        # Without a process group, the launcher's name for the job is all that ranks share.
        alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
        return mine if alone else os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get("MASTER_PORT", "")
    store = default_store()
    recording = store.add(f"zprof/recordings/{dist.get_rank()}", 1)
    return str(store.compare_set(f"zprof/run/{recording}", "", mine).decode())


#: Set to the process id while a program is recorded from outside.
RECORDING_VARIABLE = "ZPROF_RECORDS"


class OutsideRecording:
    """A recording from outside, which stops when the program records itself."""

    def stand_down(self) -> None:
        """Stop recording."""
        raise NotImplementedError


def stand_down_others() -> None:
    """Stop the recordings from outside in this process, if there are any."""
    if os.environ.get(RECORDING_VARIABLE) != str(os.getpid()):
        return
    for found in gc.get_objects():
        if issubclass(type(found), OutsideRecording):
            found.stand_down()


_VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "GLOO_SOCKET_IFNAME",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_MAX_CTAS",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
)


def describe_environment() -> dict[str, str]:
    """Return versions, processor count and the variables of the allow-list that are set."""
    facts = {
        "zprof": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "hip": torch.version.hip or "none",
        "machine": platform.machine(),
        "processors": str(os.cpu_count()),
        "torch_threads": str(torch.get_num_threads()),
    }
    return facts | {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def describe_device() -> str:
    """Return ``cpu``, or the name of the current CUDA device."""
    # Not is_available(): it initializes the driver, and a process forked later could not use CUDA.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return f"cuda ({torch.cuda.get_device_name()})"
    return "cpu"
