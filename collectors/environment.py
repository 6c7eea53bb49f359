"""What the run's manifest says of the machine: an allow-list, never the whole environment.

Traces in the wild carry environment dumps with access tokens; nothing is copied that is not named here.
"""

import os
import platform

import torch

from zprof.version import __version__

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
    """Versions, processor count and the allowed variables that are set."""
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
    """``cpu``, or the name of the current CUDA device."""
    # Not is_available(): that starts the driver, and a program that forks later could not use CUDA there.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return f"cuda ({torch.cuda.get_device_name()})"
    return "cpu"
