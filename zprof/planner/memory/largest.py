"""The largest model that fits a device.

Where the layers of the model are known, the larger of two: of the job's width with as many layers as fit (in
steps of a pipeline's stages), and of the job's layers with as large a hidden as fits (in steps that heads and
model-parallel ranks divide; heads stay as many).  What is not known without a batch is left out here too: the
result is then an upper bound, and no model of either kind that is larger fits.  A model without a shape has
no other width.  Else by the model states alone:

    parameters <= memory x mp x pp / (bytes a parameter that the scheme leaves on a device)

(arXiv 1910.02054, table 2, theoretical columns).  Found by a search over whole numbers, so that the next
larger one does not fit; up to the layers and the width that a plan takes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from zprof.model.planning.assumption import Assumption
from zprof.model.planning.job import Job, Shape
from zprof.model.planning.plan import Scheme
from zprof.planner.memory.grown import of_size, parameters_with, with_hidden, with_layers
from zprof.planner.memory.moments import known_bytes
from zprof.planner.memory.rows import memory_of
from zprof.planner.memory.searching import largest_near, largest_that_fits
from zprof.planner.memory.states import law_bytes
from zprof.planner.refusals.model import MOST_LAYERS, MOST_WIDTH

ASSUMPTIONS: Mapping[str, Assumption] = {
    "largest.model": Assumption(
        formula="the larger of two that fit: of the job's width with other layers, of its layers with "
        "another hidden; without layers, memory x mp x pp / bytes of states a parameter",
        source="arXiv 1910.02054, table 2; search over the peak of this plan",
        deviation="an upper bound where a part of the peak is not known: by what is known",
    ),
}
#: Layers up to which any number of them is looked at; beyond, first the one that a straight line says.
MOST_WALKED_LAYERS = 512


def largest_parameters(job: Job, scheme: Scheme) -> int | None:
    """Parameters of the largest model of the job's width or of its layers that fits; None without hardware.

    0: the batch is too much for the smallest of either.
    """
    if job.hardware is None:
        return None
    budget = job.hardware.memory_bytes
    if job.shape is not None:
        return max(_by_layers(job, scheme, budget), _by_hidden(job, job.shape, scheme, budget))
    if any(not unit.encloses for unit in job.units):
        return _by_layers(job, scheme, budget)
    return _by_states(job, scheme, budget)


def _by_states(job: Job, scheme: Scheme, budget: int) -> int:
    def size_of(parameters: int) -> int:
        model = replace(of_size(job, parameters), shape=None, units=())
        return law_bytes(model, scheme)

    return largest_that_fits(size_of, budget)


def _by_layers(job: Job, scheme: Scheme, budget: int) -> int:
    """Layers in steps of a pipeline's stages: each stage has as many."""
    stages = job.degrees.pp

    @cache
    def peak(count: int) -> int:
        return _peak(with_layers(job, count * stages), scheme)

    known, most = max(2, MOST_WALKED_LAYERS // stages), max(1, MOST_LAYERS // stages)
    count = largest_that_fits(_on_from(peak, known), budget, most=most)
    if count >= known:
        count = largest_near(peak, budget, count, most=most)
    return parameters_with(job, count * stages) if count else 0


def _by_hidden(job: Job, shape: Shape, scheme: Scheme, budget: int) -> int:
    """In steps that the heads and the model-parallel ranks divide."""
    step = math.lcm(job.degrees.mp, shape.heads or 1)

    def model(count: int) -> Job:
        return with_hidden(job, shape, count * step)

    count = largest_that_fits(lambda each: _peak(model(each), scheme), budget, most=MOST_WIDTH // step)
    return model(count).parameters if count else 0


def _peak(job: Job, scheme: Scheme) -> int:
    return known_bytes(memory_of(job, scheme).terms)


def _on_from(size_of: Callable[[int], int], known: int) -> Callable[[int], int]:
    """The same up to ``known``; beyond, on the straight line through the last half of that."""
    half = known // 2

    def size(count: int) -> int:
        if count <= known:
            return size_of(count)
        last = size_of(known)
        return last + (last - size_of(known - half)) * (count - known) // half

    return size
