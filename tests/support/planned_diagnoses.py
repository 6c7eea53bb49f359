"""Planned jobs of the older simulator with a planted cause, diagnosed, and what the cause truly costs."""

from pathlib import Path
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from tests.support.simulated_fixes import plant_and_fix
from zprof.analysis.analysis import RunAnalysis, analyse_time_only
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence, Finding
from zprof.model.memory import DeviceMemory, Memory
from zprof.model.report import Report
from zprof.run.reader import Run, load
from zprof.simulator.causes import plant
from zprof.simulator.plan import Gathering, SimulationPlan, Vendor
from zprof.simulator.simulate import simulate
from zprof.simulator.truth.model import GroundTruth

#: On a device: more than any simulated model has parameters.
_ROOM_BYTES = 1 << 40


def base(seed: int, vendor: Vendor = Vendor.NVIDIA) -> SimulationPlan:
    """A healthy job of four ranks, small enough for a second of work."""
    gathering = Gathering(keep_last_unit=True)  # to drop it and gather it at once is a cause
    return SimulationPlan(seed=seed, vendor=vendor, ranks=4, steps=4, units=6, gathering=gathering)


class Diagnosed(Struct, frozen=True, kw_only=True):
    """A job, its truth, and what zprof says of it."""

    plan: SimulationPlan
    truth: GroundTruth
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
    plan: SimulationPlan, folder: Path, baseline: RunAnalysis | None = None, *, free_bytes: int | None = None
) -> Diagnosed:
    """Simulate, import the traces in this process, analyse, ask all rules.

    ``free_bytes``: of each device at its peak, as far as somebody sampled it; traces do not say it.
    """
    truth = simulate(plan, folder / "traces")
    import_paths([folder / "traces"], folder / "run.zprof")
    run = load(folder / "run.zprof")
    analysis = analyse_time_only(run)
    if free_bytes is not None:
        devices = tuple(device_with_room(rank, free_bytes) for rank in run.ranks)
        analysis = replace(analysis, memory=Memory(devices=devices))
    report = diagnose(analysis, baseline)
    return Diagnosed(plan=plan, truth=truth, run=run, analysis=analysis, report=report)


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


def planted(cause: str, plan: SimulationPlan, folder: Path, strength: float = 1.0) -> Diagnosed:
    """The job with a cause in it, by itself; dropping units is needless only where there is room for them."""
    room = _ROOM_BYTES if cause == "needless_reshard_after_forward" else None
    return diagnosed(plant(plan, cause, strength), folder, free_bytes=room)


def planted_beside_healthy(
    cause: str, plan: SimulationPlan, folder: Path, strength: float = 1.0
) -> Diagnosed:
    """The job with a cause in it, and the healthy job as its baseline."""
    healthy = diagnosed(plan, folder / "healthy")
    return diagnosed(plant(plan, cause, strength), folder / "planted", healthy.analysis)


def true_saving_ns(cause: str, plan: SimulationPlan, folder: Path, strength: float = 1.0) -> float:
    """How much shorter a step gets when the cause is fixed: means over ranks and steps."""
    sick = simulate(plant(plan, cause, strength), folder / "sick")
    well = simulate(plant_and_fix(plan, cause, strength), folder / "well")
    return step_ns(sick) - step_ns(well)


def assert_first_and_priced(
    job: Diagnosed,
    cause: str,
    plan: SimulationPlan,
    folder: Path,
    strength: float = 1.0,
    *,
    widest: float | None = None,
) -> Finding:
    """What was planted in ``plan`` is the first finding of ``job``, and its range holds what the cure saves.

    ``widest``: of the range, the most by which its end may be its beginning.
    """
    first = job.first
    assert first is not None
    assert first.cause == cause
    low, high = first.saving_ns
    assert job.plan == plant(plan, cause, strength), "it is the sick one of which the cure is priced"
    true = step_ns(job.truth) - step_ns(simulate(plant_and_fix(plan, cause, strength), folder / "well"))
    assert low <= true <= high, (low, true, high)
    assert widest is None or high <= widest * low, (low, high)
    return first


def step_ns(truth: GroundTruth) -> float:
    """The mean wall time of a step, without the first: nothing of a step before runs into that one."""
    return fmean(step.wall_ns for step in truth.per_step if step.step or len(truth.per_step) == 1)
