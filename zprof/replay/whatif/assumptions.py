"""State formula and source of each predicted figure of a changed run."""

from collections.abc import Mapping

from zprof.model.whatif import Assumption

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
        formula="measured + (model of the changed step - model of this step); the model plays the recorded "
        "steps of all ranks again: work of each pass as recorded, messages of latency + bytes / bandwidth; "
        "latency is all that a message costs beside its bytes, software and threads too",
        source="the run, and the order in which the reference engine gathers, waits and reduces",
        deviation="other engines are taken to order their passes in the same way; a range holds the noise of "
        "this run and the model's uncertainty (at least 8 % of the step for another stage, 3 % for other "
        "changes), not what two recordings of one job differ by",
    ),
    COMPUTE: Assumption(
        formula="as recorded; equal on all ranks where they are made even",
        source="the run",
        deviation="kernels are taken to run no faster or slower beside other messages",
    ),
    EXPOSED: Assumption(
        formula="while a rank waits for a message: before its last rank came it is waiting, after that "
        "transfer; a link carries one message after another",
        source="the run's own latency and bandwidth of each kind",
    ),
    IDLE: Assumption(
        formula="wall - compute - exposed time - copies - unexplained",
        source="the ledger's identity",
    ),
    STATES: Assumption(
        formula="(p, k) psi / N where the stage shards them, else psi, with padding and step counters",
        source="arXiv 1910.02054, section 5, figure 1",
    ),
    GRADIENTS: Assumption(
        formula="whole gradients in stages 0 and 1; from stage 2 on the shards of units that are reduced, "
        "and the whole ones of the unit in its backward, at the moment of the peak",
        source="arXiv 1910.02054, section 5, and the reference engine's schedule",
    ),
    BUFFERS: Assumption(
        formula="units gathered at that moment (stage 3: the root, the unit, those ahead), and reductions in "
        "flight; measured + (model of the changed step - model of this step)",
        source="the reference engine's schedule",
        deviation="gloo takes scratch beside a running gather: where units stay gathered none runs in the "
        "backward, so keeping them may lower the peak",
    ),
    KEPT: Assumption(
        formula="as recorded; what the forward keeps, by how much of it is left at the moment of the peak",
        source="the run",
    ),
    PEAK: Assumption(
        formula="the highest sum of the tenants over the moments of a step",
        source="the run, arXiv 1910.02054, section 5",
    ),
}
