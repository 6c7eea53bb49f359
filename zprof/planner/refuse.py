"""Refuses jobs that cannot be."""

from zprof.model.planning.job import Job


def refuse_impossible(job: Job) -> None:
    """Check sizes and degrees.

    Raises:
        BadInput: one line that says what does not fit, and what would.
    """
    raise NotImplementedError
