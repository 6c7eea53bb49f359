"""A plan, carried out."""

import numpy as np

from zprof.simulator.engine.cpu import CpuMachine
from zprof.simulator.engine.device import DeviceMachine
from zprof.simulator.engine.schedule import Schedule
from zprof.simulator.plan import Plan, Vendor
from zprof.simulator.program.mesh import Mesh
from zprof.simulator.program.step import step_instructions


def run(plan: Plan) -> Schedule:
    """Simulate every step of every rank."""
    mesh = Mesh(plan)
    machine = CpuMachine(plan, mesh) if plan.vendor is Vendor.GLOO else DeviceMachine(plan, mesh)
    for step in range(plan.steps):
        machine.state.begin_step(step)
        for instruction in step_instructions(plan, step):
            machine.carry_out(instruction)
    machine.finish()
    ends = [line.end for line in machine.state.lines]
    return Schedule(
        plan=plan,
        mesh=mesh,
        lines=machine.state.lines,
        end_ns=np.maximum(machine.state.host[0], np.max(ends, axis=0)),
    )
