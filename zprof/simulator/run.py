"""Run the hosts of a job's ranks, with devices or only on CPUs, until all have finished."""

from __future__ import annotations

from zprof.simulator.cpu_host import CpuHost
from zprof.simulator.host import Host
from zprof.simulator.job import Job
from zprof.simulator.machine import Machine
from zprof.simulator.state import Schedule


def run_job(job: Job, record: bool = True) -> Schedule:
    """Simulate a job. Without `record` only the step ends are kept, which is faster."""
    machine = Machine(job, record)
    for rank in machine.ranks:
        host = CpuHost(machine, rank) if job.on_cpu else Host(machine, rank)
        machine.at(job.starts[rank.index].skew_ns, host.resume)
    return machine.run()
