"""The store through which the ranks of a job agree without a collective."""

from typing import Any

import torch.distributed as dist


def default_store() -> Any:
    """That of the default process group; torch has no public name for it."""
    return dist.distributed_c10d._get_default_store()
