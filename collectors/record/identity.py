"""Identify this rank and its recording, stop a recording from outside (``zprof record``) in favor of the
program's own recording, and describe the machine for the manifest.

Environment variables are copied from an allow-list only: traces in the wild carry environment dumps with
access tokens.
"""

import gc
import os
import platform
import time

import torch
import torch.distributed as dist
from msgspec import Struct

from zprof.collectors.record.torch_private import default_store
from zprof.version import __version__

#: Set to the process id while a program is recorded from outside.
RECORDING_VARIABLE = "ZPROF_RECORDS"
_RECORDED_VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "GLOO_SOCKET_IFNAME",
    "NCCL_ALGO",
    "NCCL_BLOCKING_WAIT",
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
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_NCCL_BLOCKING_WAIT",
)


class RankIdentity(Struct, frozen=True, kw_only=True):
    """Rank, world size and backend. ``run_id`` identifies the recording on all ranks."""

    rank: int
    world_size: int
    backend: str
    run_id: str


def identify_rank() -> RankIdentity:
    """Return the identity from the process group, else from the launcher's environment.

    Does not wait for other ranks.
    """
    is_distributed = dist.is_available() and dist.is_initialized()
    return RankIdentity(
        rank=dist.get_rank() if is_distributed else int(os.environ.get("RANK", "0")),
        world_size=dist.get_world_size() if is_distributed else int(os.environ.get("WORLD_SIZE", "1")),
        backend=dist.get_backend() if is_distributed else "none",
        run_id=agree_on_run_id(),
    )


def agree_on_run_id() -> str:
    """Return an id that is equal on all ranks and unique per recording, without waiting for other ranks.

    Without a process group, ranks share only the launcher's job id: then all recordings of a job have the
    same id.
    """
    own_id = f"{time.time_ns()}-{os.getpid()}"
    if not (dist.is_available() and dist.is_initialized()):
        # Without a process group, ranks share only the launcher's job id.
        is_single_rank = int(os.environ.get("WORLD_SIZE", "1")) == 1
        return (
            own_id
            if is_single_rank
            else os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get("MASTER_PORT", "")
        )
    store = default_store()
    recording = store.add(f"zprof/recordings/{dist.get_rank()}", 1)
    return str(store.compare_set(f"zprof/run/{recording}", "", own_id).decode())


class OutsideRecording:
    """A recording from outside, which stops when the program records itself."""

    def stand_down(self) -> None:
        """Stop recording."""
        raise NotImplementedError


def stop_outside_recordings() -> None:
    """Stop the recordings from outside in this process, if there are any."""
    if os.environ.get(RECORDING_VARIABLE) != str(os.getpid()):
        return
    for candidate in gc.get_objects():
        if issubclass(type(candidate), OutsideRecording):
            candidate.stand_down()


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
    return facts | {name: os.environ[name] for name in _RECORDED_VARIABLES if name in os.environ}


def describe_device() -> str:
    """Return ``cpu``, or the name of the current CUDA device."""
    # Not is_available(): it initializes the driver, and a process forked later could not use CUDA.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return f"cuda ({torch.cuda.get_device_name()})"
    return "cpu"
