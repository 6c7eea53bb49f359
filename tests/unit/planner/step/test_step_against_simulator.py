"""The planned step against the simulator's schedule of the same units, with a host that costs nothing."""

import numpy as np
import pytest

from zprof.model.job import Batch, Degrees, Hardware, Job, Overlap, Unit
from zprof.model.plan import Scheme
from zprof.planner.step.ledger import plan_step
from zprof.simulator.plan import Compute, Gathering, Host, Network, Plan
from zprof.simulator.program.instructions import Kernel
from zprof.simulator.simulate import run_plan

RANKS, UNITS, ELEMENTS, TOKENS = 4, 24, 8 * 1024 * 1024, 128
ALPHA_NS = 20_000
FLOPS = 2 * ELEMENTS * TOKENS / 1e-3  # a forward of 1 ms


def planned(beta: float, scheme: Scheme, prefetch: int = 1) -> int:
    hardware = Hardware(
        name="small",
        memory_bytes=10**10,
        flops_per_s=FLOPS,
        efficiency_ratio=1.0,
        devices_per_node=RANKS,
        node_bytes_per_s=beta,
        intra_bytes_per_s=beta,
        intra_latency_ns=ALPHA_NS // (RANKS - 1),
    )
    job = Job(
        parameters=UNITS * ELEMENTS,
        units=tuple(Unit(name=f"u{i}", elements=ELEMENTS) for i in range(UNITS)),
        degrees=Degrees(dp=RANKS),
        batch=Batch(samples=1, sequence=TOKENS),
        overlap=Overlap(prefetch=prefetch),
        hardware=hardware,
    )
    found = plan_step(job, scheme)
    assert found is not None
    return found.wall_ns


def simulated(beta: float, stage: int, prefetch: int = 1) -> int:
    """Of a step in the middle, without the optimizer's kernel."""
    optimizer_ns = 1_000
    plan = Plan(
        ranks=RANKS,
        steps=3,
        stage=stage,
        units=UNITS,
        unit_elements=ELEMENTS,
        prefetch=prefetch,
        bucket_bytes=2 * ELEMENTS,
        hide_optimizer_gather=True,
        data_ns=0,
        batch_bytes=1,
        loss_all_reduce=False,
        norm_all_reduce=False,
        network=Network(alpha_ns=ALPHA_NS, beta_bytes_per_s=beta, spread_ns=0),
        host=Host(
            launch_ns=1,
            collective_launch_ns=1,
            latency_ns=1,
            run_ahead=10_000,
            sync_ns=1,
            sync_each_step=False,
            resume_ns=1,
        ),
        compute=Compute(
            forward_ns=1_000_000,
            backward_ns=2_000_000,
            optimizer_ns=optimizer_ns,
            forward_kernels=1,
            backward_kernels=1,
            noise_ratio=0.0,
            gap_ns=0,
            copy_ns=0,
        ),
        gathering=Gathering(reshard_after_forward=True),
        ranks_per_host=RANKS,
    )
    ends = [
        int(np.max(line.end))
        for line in run_plan(plan).lines
        if isinstance(line.instruction, Kernel) and line.instruction.key == "optimizer"
    ]
    return ends[2] - ends[1] - optimizer_ns


#: A gather takes from a fifth of a forward to five of them.
BETAS = (60e9, 20e9, 12.5e9, 8e9, 4e9, 2.5e9)


@pytest.mark.parametrize("beta", BETAS)
def test_stage_3(beta: float) -> None:
    """The simulator gathers the first unit of the backward beside the last forward: a gather less."""
    assert planned(beta, Scheme.ZERO_3) == pytest.approx(simulated(beta, 3), rel=0.015)


@pytest.mark.parametrize("beta", BETAS)
def test_stage_2(beta: float) -> None:
    assert planned(beta, Scheme.ZERO_2) == pytest.approx(simulated(beta, 2), rel=1e-5)


@pytest.mark.parametrize("beta", BETAS)
def test_stage_3_without_prefetch(beta: float) -> None:
    assert planned(beta, Scheme.ZERO_3, prefetch=0) == pytest.approx(simulated(beta, 3, prefetch=0), rel=1e-5)
