"""Make regular jobs (equal blocks, little noise, given sizes), and plant a cause with a given strength.

`draw.py` draws realistic random jobs; these are for commands and tests that need a specific one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from zprof.simulator import kernels
from zprof.simulator.draw import make_rng
from zprof.simulator.faults import ENGINES, PLANTS, remove, squeeze
from zprof.simulator.ground_truth import measure_gain, step_time_ns, window_time_ns
from zprof.simulator.job import (
    HEALTHY,
    RANKS_PER_HOST,
    Block,
    Cluster,
    Dialect,
    Engine,
    Gpu,
    Host,
    Job,
    Kernel,
    Pace,
    Start,
    Vendor,
    hash_key,
)
from zprof.simulator.run import run_job

STAGES: Final[dict[int, Engine]] = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp2"}
_CLEAR_RATIO: Final = 0.15
"""What a cause of strength 1 costs, as a share of the step."""
_POSITIONS: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
_REFINEMENTS: Final = 3
_PREPARED: Final[dict[str, dict[str, Any]]] = {
    "last_unit_regathered": {"reads_loss": True},
    "uneven_shapes": {"padding_cost": 6.0},
}
"""Settings without which a cause costs nothing, or does not show: a host that runs ahead would launch the
last unit's gather early enough, and only the copies tell padding from a larger model."""
_FORWARD: Final = ((kernels.NORM, 1), (kernels.GEMM, 7), (kernels.FLASH, 4), (kernels.GEMM2, 8))
_BACKWARD: Final = (
    (kernels.ADD, 1), (kernels.GEMM2, 8), (kernels.GEMM2, 8), (kernels.FLASH_BACKWARD, 9), (kernels.GEMM, 6),
    (kernels.GEMM, 6), (kernels.NORM, 1), (kernels.ADD, 1),
)  # fmt: skip
_GPUS: Final[dict[Vendor, Gpu]] = {
    "nvidia": Gpu(
        name="NVIDIA H100 80GB HBM3", sms=132, memory_bytes=85_018_279_936, memory_rate=2500.0, gap_ns=700,
    ),
    "amd": Gpu(
        name="AMD Instinct MI300X", sms=304, memory_bytes=205_571_227_648, memory_rate=2500.0, gap_ns=700,
    ),
    "gloo": Gpu(name="", sms=1, memory_bytes=0, memory_rate=2500.0, gap_ns=0),
}  # fmt: skip


def make_job(
    *,
    seed: int = 0,
    vendor: Vendor = "nvidia",
    ranks: int = 4,
    steps: int = 3,
    stage: int = 3,
    units: int = 8,
    unit_params: int = 16 << 20,
    forward_ns: int = 2_000_000,
    backward_ns: int = 4_000_000,
    bus: float = 100.0,
    alpha_ns: int = 15_000,
    names_collectives: bool = False,
    **settings: Any,
) -> Job:
    """Return a healthy job whose units are blocks of equal size.

    Args:
        seed: Seed of the noise.
        vendor: Vendor whose profiler writes the traces; "gloo" has no devices.
        ranks: Number of ranks, eight per host.
        steps: Recorded steps.
        stage: ZeRO stage: 0 is DDP, 3 is FSDP2.
        units: Blocks, each one unit.
        unit_params: Parameters of each unit.
        forward_ns: Compute time of a unit's forward pass.
        backward_ns: Compute time of a unit's backward pass.
        bus: Bus bandwidth of every link, in bytes per ns.
        alpha_ns: Latency of every link.
        names_collectives: Whether CPU ranks record which collective they launch and wait for, as zprof's
            engine does.
        settings: Other fields of `Job`.
    """
    block = Block(
        name="", params=unit_params, forward=_spread(_FORWARD, forward_ns),
        backward=_spread(_BACKWARD, backward_ns),
    )  # fmt: skip
    job = Job(
        seed=seed,
        key=hash_key("regular", seed) >> 1,
        shape="training",
        faults=(),
        engine=STAGES[stage],
        world=ranks,
        steps=steps,
        micro_batches=1,
        blocks=tuple(replace(block, name=f"layers.{index}") for index in range(units)),
        cluster=Cluster(
            ranks_per_node=min(RANKS_PER_HOST, ranks), intra_bus=bus, inter_bus=bus, intra_alpha_ns=alpha_ns,
            inter_alpha_ns=alpha_ns, end_spread_ns=300,
        ),
        gpu=_GPUS[vendor],
        host=Host(
            python_ns=8_000, quick_ns=2_500, autograd_factor=1.0, launch_ns=4_000, latency_ns=4_000,
            hook_ns=15_000, collective_ns=24_000, queue_depth=1022, noise=0.02, hiccup_rate=0.0,
            pcie_rate=20.0,
        ),
        ranks=(Pace(),) * ranks,
        starts=(Start(),) * ranks,
        dialect=Dialect(
            era="new", annotations="fsdp2" if stage == 3 else "none", profiler_step=True,
            optimizer_range=True,
            metadata=True, sequence=True, distributed_info=True, python_rows=False, gpu_annotations=True,
            shapes=False, syncs=False, gz=True, keys_first=False, one_nccl_stream=True, first_step=3,
            vendor=vendor, host_names=True, names_collectives=names_collectives,
        ),
        noise=0.005,
        shard_size=ranks,
        root_unit=False,
        clip=True,
        blocking="step",
        optimizer_gather_pieces=units,
    )  # fmt: skip
    return replace(job, **settings)


def _spread(shares: tuple[tuple[int, int], ...], total_ns: int) -> tuple[Kernel, ...]:
    whole = sum(share for _, share in shares)
    return tuple(Kernel(kind=kind, ns=max(2_000, total_ns * share // whole)) for kind, share in shares)


def plant(job: Job, cause: str, strength: float = 1.0) -> Job:
    """Return the job with a cause whose removal gains about 15 % of the step, times `strength`.

    The engine changes if the cause cannot occur in it; a cause that has no strength is planted as it is.

    Raises:
        ValueError: The cause is unknown or cannot occur in such a job, or the strength is not above 0 or
            exceeds 100.
    """
    if not 0 < strength <= 100:
        raise ValueError(f"strength must be above 0 and at most 100, not {strength}")
    if cause == "none":
        return job
    if cause == "tight":
        return squeeze(job, make_rng(job.seed, cause), 0.9, 0.9)
    if cause not in PLANTS:
        raise ValueError(f"unknown cause {cause!r}: one of {', '.join((*HEALTHY, *PLANTS))}")
    target = min(0.45, _CLEAR_RATIO * strength)
    job = replace(fit_engine(job, cause), faults=(*job.faults, cause), **_PREPARED.get(cause, {}))
    small = shrink(job)
    shares: dict[float, float] = {}

    def plant_at(job: Job, position: float) -> Job:
        return PLANTS[cause](job, Dial(hash_key(job.seed, cause), position))

    def measure_at(position: float) -> float:
        shares[position] = measure_share(plant_at(small, position), cause)
        return abs(shares[position] - target)

    best = min(_POSITIONS, key=measure_at)
    for _ in range(_REFINEMENTS):
        if abs(shares[best] - target) > 0.05 * target:
            measure_between(shares, best, target, measure_at)
        best = min(shares, key=lambda position: abs(shares[position] - target))
    planted = plant_at(job, best)
    if remove(planted, cause) in (None, planted):
        raise ValueError(f"{cause} cannot occur in such a job")
    return planted


def shrink(job: Job) -> Job:
    """Return the job with only as many ranks and steps as needed to measure the cost of a cause."""
    job = replace(job, steps=min(max(3, job.steps), 4))
    if job.world <= 2 * RANKS_PER_HOST or job.tensor_size > 1 or job.shard_size < job.world:
        return job
    ranks, starts = job.ranks[:RANKS_PER_HOST], job.starts[:RANKS_PER_HOST]
    return replace(job, world=RANKS_PER_HOST, shard_size=RANKS_PER_HOST, ranks=ranks, starts=starts)


def measure_between(
    shares: dict[float, float], best: float, target: float, measure_at: Callable[[float], float]
) -> None:
    """Measure halfway between the best position and a neighbor beyond the target."""
    ordered = sorted(shares)
    place = ordered.index(best)
    for neighbor in (*ordered[place + 1 : place + 2], *ordered[max(0, place - 1) : place]):
        if (shares[neighbor] > target) != (shares[best] > target):
            measure_at((neighbor + best) / 2)
            return


class Dial(np.random.Generator):
    """A generator that does not draw from a range, but returns its value at one position, from 0 (low) to 1.

    A range that starts at 0 is a location, not a strength, and is drawn from.
    """

    def __init__(self, seed: int, position: float) -> None:
        super().__init__(np.random.PCG64(seed))
        self.position = position

    def choice(self, a: Any, *arguments: Any, p: Any = None, **more: Any) -> Any:
        """Return the most likely option."""
        return a[int(np.argmax(p))] if p is not None else super().choice(a, *arguments, **more)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        """Return the value at the dial's position."""
        return super().uniform(low, high, size) if low == 0.0 else low + (high - low) * self.position


def fit_engine(job: Job, cause: str) -> Job:
    """Return the job with an engine in which the cause can occur."""
    engines = ENGINES.get(cause, ())
    if not engines or job.engine in engines:
        return job
    annotations = engines[0] if engines[0] in ("fsdp1", "fsdp2") else "none"
    return replace(job, engine=engines[0], dialect=replace(job.dialect, annotations=annotations))


def measure_share(job: Job, cause: str) -> float:
    """Return the gain of removing a cause as a share of the step in which it shows."""
    schedule = run_job(job, record=False)
    gain = measure_gain(job, cause, schedule)
    by_window = cause == "measurement_artifact"
    return (gain[by_window] if gain else 0) / (window_time_ns if by_window else step_time_ns)(schedule)
