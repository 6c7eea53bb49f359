"""The tensor that passes from block to block: what model parallelism sums and a pipeline sends."""

from zprof.model.planning.job import Job


def stream_elements(job: Job) -> int | None:
    """b s h elements, in one micro-batch of one replica; None where the shape or the batch is not known."""
    tokens = job.batch.tokens
    return None if job.shape is None or tokens is None else tokens * job.shape.hidden
