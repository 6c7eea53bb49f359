"""List the formula and the source of each predicted figure of a changed run."""

from collections.abc import Mapping

from zprof.model.plan import Assumption

WALL = "whatif.wall"
COMPUTE = "whatif.compute"
EXPOSED = "whatif.exposed"
IDLE = "whatif.idle"
STATES = "whatif.states"
GRADIENTS = "whatif.gradients"
BUFFERS = "whatif.buffers"
KEPT = "whatif.kept"
PEAK = "whatif.peak"

ASSUMPTIONS: Mapping[str, Assumption] = {
    WALL: Assumption(
        formula="measured + (model of the changed step - model of this step); the model replays "
        "the recorded steps of all ranks: work as recorded, messages of latency + bytes / bandwidth; "
        "latency is the entire cost of a message apart from its bytes, including software and threads",
        source="the run, and the order in which the reference engine gathers, waits and reduces",
        deviation="other engines are assumed to order their passes in the same way; a range includes the "
        "noise of this run and the model's uncertainty (at least 8 % of the step for another stage, 3 % for "
        "other changes), not the difference between two recordings of the same job",
    ),
    COMPUTE: Assumption(
        formula="as recorded; equal on all ranks if the change evens them out",
        source="the run",
        deviation="kernels are assumed to be equally fast when overlapped with other messages",
    ),
    EXPOSED: Assumption(
        formula="time in which a rank waits for a message: wait until the last rank arrives, transfer after "
        "that; a link carries one message at a time",
        source="latency and bandwidth of each kind of message in the run",
    ),
    IDLE: Assumption(
        formula="wall - compute - exposed time - copies - unexplained",
        source="terms of the ledger add up to the step",
    ),
    STATES: Assumption(
        formula="(p, k) psi / N if the stage shards them, else psi, with padding and step counters",
        source="arXiv 1910.02054, section 5, figure 1",
    ),
    GRADIENTS: Assumption(
        formula="unsharded gradients in stages 0 and 1; from stage 2 on, at the time of the peak, the shards "
        "of reduced units and the unsharded gradients of the unit in its backward",
        source="arXiv 1910.02054, section 5, and the reference engine's schedule",
    ),
    BUFFERS: Assumption(
        formula="units gathered at the time of the peak (stage 3: the root, the unit, prefetched units), and "
        "reductions in flight; measured + (model of the changed step - model of this step)",
        source="the reference engine's schedule",
        deviation="gloo needs scratch memory during a gather: if units stay gathered, no gather runs in the "
        "backward, so keeping them may lower the peak",
    ),
    KEPT: Assumption(
        formula="as recorded; activations in proportion to the share still live at the time of the peak",
        source="the run",
    ),
    PEAK: Assumption(
        formula="the highest sum of the tenants over the moments of a step",
        source="the run, arXiv 1910.02054, section 5",
    ),
}
