"""Run the hosts of a job's ranks, with devices or only on CPUs, until all have finished."""

from __future__ import annotations

from zprof.simulator.cpu_host import CpuHost
from zprof.simulator.host import Host
from zprof.simulator.job import Job
from zprof.simulator.machine import Machine
from zprof.simulator.mesh.machine import MeshHost, MeshMachine
from zprof.simulator.state import Rank, Schedule


def run_job(job: Job, record: bool = True) -> Schedule:
    """Simulate a job. Without `record` only the step ends are kept, which is faster."""
    machine = MeshMachine(job, record) if job.parallel else Machine(job, record)
    for rank in machine.ranks:
        machine.at(job.starts[rank.index].skew_ns, _make_host(machine, rank).resume)
    return machine.run()


def _make_host(machine: Machine, rank: Rank) -> Host:
    if isinstance(machine, MeshMachine):
        return MeshHost(machine, rank)
    return CpuHost(machine, rank) if machine.job.on_cpu else Host(machine, rank)
