"""ZP419: the first gather of a step is launched after the next batch, and nothing hides it.

Prefetch hides the gather of a unit behind the compute of the previous unit. The first unit has no previous
unit. Its parameters are new as soon as the optimizer has updated them, but an engine gathers them when the
forward begins: after logging, the data loader, and the copy of the batch. Launched right after the update,
the gather overlaps all of these (torchtitan#1955, Megatron-LM#4389; NVIDIA's Apex overlaps it with the update
itself).

Only playing the measured step shows it, with each first gather launched right after the last preceding kernel
that is not a copy. It is reported from a gain of 1.5 % of the step, like all causes that only the step shows,
and if 1 % of the step is exposed in these gathers: less is not worth playing.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis, make_fact, mean_per_step, mean_wall_ns
from zprof.analysis.columns import Columns
from zprof.causes.cause import Cause, Need, Observation, Sign
from zprof.causes.fix import Fix
from zprof.model.findings import Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine
from zprof.step.edits import edit_ranks, reorder_tasks
from zprof.step.gathers import select_opening_gathers
from zprof.step.play import PlayedStep
from zprof.step.structure import find_main_stream
from zprof.step.tasks import NONE, Graph, RankGraph, mark_rows

#: Minimum share of the step that is exposed in first gathers.
_MIN_EXPOSED_RATIO = 0.01
_COPIES = ("Memcpy", "Memset")

CAUSE = Cause(
    id="ZP419",
    name="first_gather_exposed",
    meaning="The first gather of a step is launched after the next batch, and nothing hides it.",
    needs=(Need.STEPS, Need.DEVICE),
    terms=("exposed_transfer_ns", "idle_ns", "exposed_memcpy_ns", "exposed_wait_ns"),
    sign=Sign.FIRST_GATHER,
    observed="the first all_gather of a step starts when its forward needs it (exposed {exposed:ns} of "
    "{transfer:ns} {per_step}): launched right after the update, "
    "{step_is} shorter",
    evidence={
        "first_gathers_per_step": ("first all_gathers {per_step}", Unit.COUNT),
        "first_gather_transfer_per_step": ("their transfer {per_step}", Unit.NS),
    },
    fix=Fix(
        forms={
            Engine.FSDP2: "optimizer.step()\nmodel.unshard(async_op=True)  # before the next batch is loaded",
        },
        general="gather the first unit right after the optimizer's step, before the next batch is loaded\n"
        "or make the first unit small: embeddings in a unit of their own",
    ),
    disprove="launch it after the optimizer's step and record again: if the step takes as long, the gather "
    "waits for something else",
)


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return the exposed part of the first gathers; the step without it shows the cost."""
    analysis, first = step.analysis, step.analysis.compute_once(_find_first_gathers)
    exposed_ns = mean_per_step(analysis, first.ints("exposed_transfer_ns").sum())
    if exposed_ns < _MIN_EXPOSED_RATIO * mean_wall_ns(analysis):
        return None
    transfer_ns = mean_per_step(analysis, first.ints("transfer_ns").sum())
    return Observation(
        words={"exposed": exposed_ns, "transfer": transfer_ns},
        facts=[
            make_fact("first_gathers_per_step", mean_per_step(analysis, len(first))),
            make_fact("first_gather_transfer_per_step", transfer_ns),
            make_fact("exposed_part", exposed_ns),
        ],
    )


def _find_first_gathers(analysis: RunAnalysis) -> Columns:
    """Return the first gather that a forward or backward pass needs, for each step and rank."""
    gathers = analysis.collectives.at(np.array(sorted(select_opening_gathers(analysis)), dtype=np.int64))
    steps = gathers.group_by("rank", "step")
    in_order = np.lexsort((gathers.ints("start_ns"), steps.codes))
    return gathers.at(in_order[steps.starts])


@CAUSE.edit
def launch_after_update(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step with each first gather launched right after the last kernel before it."""
    rows = frozenset(analysis.compute_once(_find_first_gathers).row.tolist())
    return [edit_ranks(graph, lambda rank: _launch_earlier(rank, rows))]


def _launch_earlier(rank: RankGraph, rows: frozenset[int]) -> RankGraph:
    """Move these gathers, with the copies into their buffers, behind the last kernel that is not a copy."""
    main = find_main_stream(rank.tasks, rank.collective != NONE)
    computes = (rank.stream == main) & (rank.collective == NONE)
    computes &= ~rank.tasks.kernel.match(lambda name: name.startswith(_COPIES))
    kernels, place = np.flatnonzero(computes), np.arange(len(rank.tasks), dtype=np.float64)
    waits, lag_ns = list(rank.waits_on), rank.lag_ns.copy()
    for at in np.flatnonzero(mark_rows(rank, rows)).tolist():
        before = kernels[kernels < at]
        moved = [each for each in (int(rank.copy_in[at]), at) if each != NONE]
        if not len(before) or before[-1] > moved[0]:
            continue
        waits[moved[0]], waits[at] = (int(before[-1]),), (moved[0] if len(moved) > 1 else int(before[-1]),)
        place[moved] = before[-1] + np.arange(1, 1 + len(moved)) / 4
        lag_ns[moved] = 0.0
    return reorder_tasks(
        replace(rank, waits_on=tuple(waits), lag_ns=lag_ns), np.argsort(place, kind="stable")
    )
