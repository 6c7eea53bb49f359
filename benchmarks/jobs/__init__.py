"""Simulate sharded training jobs with known causes of slowness, and write them as Kineto traces.

A test bed that knows nothing of the rules of diagnosis: jobs are drawn from what is public about models,
clusters and PyTorch, and what a cause costs is the difference to the same job without it.
"""

from __future__ import annotations

from benchmarks.jobs.faults import remove
from benchmarks.jobs.job import CAUSES, SHAPES, Job
from benchmarks.jobs.machine import Schedule, run_job
from benchmarks.jobs.truth import Truth, draw_job, gain_ns, step_time_ns, window_time_ns, write_job

__all__ = [
    "CAUSES", "SHAPES", "Job", "Schedule", "Truth", "draw_job", "gain_ns", "remove", "run_job",
    "step_time_ns", "window_time_ns", "write_job",
]  # fmt: skip
