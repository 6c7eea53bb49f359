"""Flight-recorder dumps and logs of simulated jobs that hang, with a known truth.

Written without knowledge of how zprof finds the cause of a hang. The logs: :mod:`benchmarks.hang_jobs.logs`.
"""

from benchmarks.hang_jobs.dumps import write_dumps
from benchmarks.hang_jobs.faults import FAULTS, HEALTHY
from benchmarks.hang_jobs.job import Job, TrueOperation, Truth, draw_job, make_large_job

__all__ = [
    "FAULTS",
    "HEALTHY",
    "Job",
    "TrueOperation",
    "Truth",
    "draw_job",
    "make_large_job",
    "write_dumps",
]
