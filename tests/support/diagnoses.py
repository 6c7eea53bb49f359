"""Simulated jobs with a planted cause, diagnosed as a user's would be, and what the cause truly costs."""

from pathlib import Path
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis, analyse_time_only
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence, Finding
from zprof.model.memory import DeviceMemory, Memory
from zprof.model.report import Report
from zprof.run.reader import Run, load
from zprof.simulator.faults import remove
from zprof.simulator.ground_truth import Truth, write_job
from zprof.simulator.job import Job, Vendor
from zprof.simulator.ledger import measure_steps
from zprof.simulator.regular import make_job, plant
from zprof.simulator.run import run_job

#: On a device: more than any simulated model has parameters.
_ROOM_BYTES = 1 << 40


def base(seed: int, vendor: Vendor = "nvidia", **settings: object) -> Job:
    """A healthy job of four ranks, small enough for a second of work.

    A link of gloo is slower than NVLink.  Only engines that name their collectives launch those of CPU ranks
    ahead, so these are named.
    """
    bus = 25.0 if vendor == "gloo" else 100.0
    whole = {"ranks": 4, "steps": 4, "units": 6, "bus": bus, "names_collectives": True, **settings}
    return make_job(seed=seed, vendor=vendor, **whole)  # type: ignore[arg-type]


class Diagnosed(Struct, frozen=True, kw_only=True):
    """A job, its truth, and what zprof says of it."""

    job: Job
    truth: Truth
    run: Run
    analysis: RunAnalysis
    report: Report

    @property
    def sure(self) -> tuple[Finding, ...]:
        """The findings in their order, notes of low confidence aside."""
        return tuple(f for f in self.report.findings if f.confidence is not Confidence.LOW)

    @property
    def first(self) -> Finding | None:
        """The finding that stands first of those."""
        return next(iter(self.sure), None)


def diagnosed(
    job: Job, folder: Path, baseline: RunAnalysis | None = None, *, free_bytes: int | None = None
) -> Diagnosed:
    """Simulate, import the traces in this process, analyse, ask all rules.

    ``free_bytes``: of each device at its peak, as far as somebody sampled it; traces do not say it.
    """
    truth = write_job(job, folder / "traces", with_baseline=False)
    import_paths([folder / "traces"], folder / "run.zprof")
    run = load(folder / "run.zprof")
    analysis = analyse_time_only(run)
    if free_bytes is not None:
        devices = tuple(device_with_room(rank, free_bytes) for rank in run.ranks)
        analysis = replace(analysis, memory=Memory(devices=devices))
    report = diagnose(analysis, baseline)
    return Diagnosed(job=job, truth=truth, run=run, analysis=analysis, report=report)


def device_with_room(rank: int, free_bytes: int) -> DeviceMemory:
    """Return what a sample of an empty device of that size says at the peak."""
    return DeviceMemory(
        rank=rank,
        device=f"cuda:{rank}",
        moment="allocated peak",
        live_bytes=0,
        tenants={},
        device_used_bytes=0,
        device_total_bytes=free_bytes,
    )


def planted(cause: str, job: Job, folder: Path, strength: float = 1.0) -> Diagnosed:
    """The job with a cause in it, by itself; dropping units is needless only where there is room for them."""
    room = _ROOM_BYTES if cause == "needless_reshard_after_forward" else None
    return diagnosed(plant(job, cause, strength), folder, free_bytes=room)


def planted_beside_healthy(cause: str, job: Job, folder: Path, strength: float = 1.0) -> Diagnosed:
    """The job with a cause in it, and the same job without it as its baseline."""
    faulty = plant(job, cause, strength)
    healthy = remove(faulty, cause)
    assert healthy is not None
    return diagnosed(faulty, folder / "planted", diagnosed(healthy, folder / "healthy").analysis)


def true_saving_ns(cause: str, job: Job) -> float:
    """How much shorter a step of the planted job gets without the cause: means over ranks and steps."""
    fixed = remove(job, cause)
    assert fixed is not None
    return true_step_ns(job) - true_step_ns(fixed)


def true_step_ns(job: Job) -> float:
    """The mean wall time of a step of a job; nothing is written for it."""
    schedule = run_job(job)
    steps = [step for rank in schedule.ranks for step in measure_steps(schedule, rank)]
    return fmean(step.wall_ns for step in steps if step.step)


def assert_first_and_priced(job: Diagnosed, cause: str, *, widest: float | None = None) -> Finding:
    """What was planted is the first finding, and its range holds what the fix saves.

    ``widest``: of the range, the most by which its end may be its beginning.
    """
    first = job.first
    assert first is not None
    assert first.cause == cause
    low, high = first.saving_ns
    true = true_saving_ns(cause, job.job)
    assert low <= true <= high, (low, true, high)
    assert widest is None or high <= widest * low, (low, high)
    return first


def step_ns(truth: Truth) -> float:
    """The mean wall time of a step, without the first: nothing of a step before runs into that one."""
    return fmean(step.wall_ns for step in truth.per_step if step.step or truth.steps == 1)
