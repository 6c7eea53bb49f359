"""Refuses jobs that cannot be: one line that says what does not fit, and what would.

In this order, so that a later check may rest on the earlier ones: sizes, the shape against the parameters,
degrees, residual state, hardware, and the largest unit against the device.
"""

from zprof.model.planning.job import Job
from zprof.planner.refusals.degrees import refuse_degrees
from zprof.planner.refusals.hardware import refuse_hardware, refuse_large_units
from zprof.planner.refusals.model import refuse_contradiction, refuse_model
from zprof.planner.refusals.running import refuse_residual, refuse_running


def refuse_impossible(job: Job) -> None:
    """Check sizes and degrees.

    Raises:
        BadInput: one line that says what does not fit, and what would.
    """
    refuse_model(job)
    refuse_running(job)
    refuse_contradiction(job)
    refuse_degrees(job)
    refuse_residual(job)
    if job.hardware is not None:
        refuse_hardware(job.hardware)
        refuse_large_units(job, job.hardware)
