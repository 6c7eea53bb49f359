"""What ZeRO calls residual state, as its paper counts it (arXiv 1910.02054, sections 3.2 and 6).

L layers, h hidden, t = b s tokens of a micro-batch, e bytes an element, psi parameters of a rank:

    activations                12 h t L e
    checkpointed               h t L e, and 12 h t e while a block is computed again
    Pa, Pa+cpu                 checkpoints / mp, and none on the device
    fused buffers              4 psi bytes, or 4 CB with buffers of a constant size
    optimizer's gradients      c of each of its elements, c CB with buffers of a constant size

What a gathered unit takes is not in the paper: the largest unit, one more with prefetch, and what encloses.
"""

from zprof.model.planning.job import Job, Residual, Shape, Unit
from zprof.planner.memory.elements import rank_elements
from zprof.planner.memory.walk.layout import trained_elements
from zprof.planner.rounding import ceil_div

#: Elements of activations for each element of hidden, of a block and token (section 3.2, footnote).
BLOCK_ELEMENTS = 12
#: Of an element of a fused buffer: fp32.
FUSED_BYTES = 4


def activation_bytes(shape: Shape, tokens: int, element_bytes: int, *, mp: int = 1) -> int:
    """Of all blocks, nothing computed again."""
    return shape.layers * working_set_bytes(shape, tokens, element_bytes, mp=mp)


def working_set_bytes(shape: Shape, tokens: int, element_bytes: int, *, mp: int = 1) -> int:
    """Of one block: its input whole, and what else it makes split over the model-parallel ranks."""
    row = shape.hidden * tokens * element_bytes
    return row + ceil_div((BLOCK_ELEMENTS - 1) * row, mp)


def checkpoint_bytes(
    shape: Shape, tokens: int, element_bytes: int, residual: Residual, *, mp: int = 1
) -> int:
    """Of the inputs of all blocks, on the device."""
    if residual.offload:
        return 0
    whole = shape.layers * shape.hidden * tokens * element_bytes
    return ceil_div(whole, mp) if residual.partition else whole


def fused_buffer_bytes(elements: int, residual: Residual) -> int:
    """Of the flat fp32 copy of all gradients that reductions and norms are made on."""
    return FUSED_BYTES * _capped(elements, residual)


def gradient_copy_bytes(job: Job, sharded_over: int) -> int:
    """Of the gradients in the optimizer's type while it runs; the units' largest where units are known.

    ``sharded_over``: ranks that share the optimizer's work (1: each does all of it).  Frozen ones have none.
    """
    kinds = {(unit.elements, unit.frozen_elements): unit for unit in job.units}
    whole = Unit(name="", elements=rank_elements(job))
    elements = max(trained_elements(unit, job) for unit in kinds.values() or (whole,))
    return job.element_bytes.gradient_copy * _capped(ceil_div(elements, sharded_over), job.residual)


def gathered_bytes(job: Job) -> int:
    """Of the units that are surely whole on a device at once under stage 3; ``job.units`` must be known.

    Fetched further ahead than one, the others are there when gradients are not all there yet.
    """
    inner = sorted((unit.elements for unit in job.units if not unit.encloses), reverse=True)
    around = sum(unit.elements for unit in job.units if unit.encloses)
    return job.element_bytes.gathered * (around + sum(inner[: 1 + min(1, job.overlap.prefetch)]))


def _capped(elements: int, residual: Residual) -> int:
    most = residual.constant_buffer_elements
    return elements if most is None else min(elements, most)
