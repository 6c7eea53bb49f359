"""What carries collectives takes of the allocator: gloo copies, NCCL does not."""

from zprof.model.planning.job import Backend, Job

#: Collectives that gloo carries at a time: the threads of a process group.
AT_ONCE = 2
#: Of them gathers within a pass: the backward's reductions take the other thread.
GATHERS_AT_ONCE = 1


def copied_bytes(job: Job, size_bytes: int) -> int:
    """Of a copy that the backend makes of a whole tensor."""
    return size_bytes if job.backend is Backend.GLOO else 0
