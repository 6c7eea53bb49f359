"""Names of kernels that are collectives."""

import re

_COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|cross_device_reduce|multimem_|(one|two)_shot_", re.IGNORECASE)


def is_collective_kernel(name: str) -> bool:
    """Whether a kernel belongs to a communication library."""
    return _COLLECTIVE_KERNEL.search(name) is not None
