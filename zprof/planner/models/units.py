"""The units that a shape is made of: elements, what they keep for the backward, what they need beside."""

from zprof.model.planning.job import Job


def with_units(job: Job) -> Job:
    """The job with the units of its shape, one model-parallel rank's part of each.

    A job that has units, or no shape, comes back as it is; without a batch units know their elements only.
    """
    raise NotImplementedError
