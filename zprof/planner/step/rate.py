"""Flop/s that a device reaches in the precision of a job (peak x efficiency), and what to state if unknown.

Peaks are those of the vendor's data sheet: of 16-bit matrices, or of fp32 without TF32 where an element of
the parameters has 4 bytes.
"""

from zprof.model.gaps import Gap
from zprof.model.planning.hardware import Hardware
from zprof.model.planning.job import Job


def reached_flops_per_s(job: Job, hardware: Hardware) -> float | None:
    """None where the job computes in fp32, and the peak of that is not known."""
    peak = hardware.peak_flops_per_s(job.element_bytes.parameter)
    return None if peak is None else peak * hardware.efficiency_ratio


def rate_gaps(job: Job) -> tuple[Gap, ...]:
    """That a job has no time on its hardware; empty where it has, or needs none."""
    hardware = job.hardware
    if hardware is None or reached_flops_per_s(job, hardware) is not None:
        return ()
    return (
        Gap(
            what="times of a step",
            reason=f"the fp32 peak of {hardware.name} is not known, and its peak is that of 16-bit matrices",
            remedy="state peak_fp32_tflops in the hardware's file, or plan with --precision bf16",
        ),
    )
