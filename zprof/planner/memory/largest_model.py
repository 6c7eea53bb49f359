"""Search for the largest model that fits a device.

If the model's layers are known, the result is the larger of two models: one with the job's width and as many
layers as fit (in multiples of the pipeline stages), and one with the job's layers and the largest hidden size
that fits (in multiples of the heads and model-parallel ranks; the number of heads stays). Without a batch,
unknown bytes are omitted. The result is then an upper bound: no larger model of either kind fits. A model
without a shape is tried at its own width only. If the layers are unknown, model states alone decide:

    parameters <= memory x mp x pp / (bytes per parameter that the scheme leaves on a device)

(arXiv 1910.02054, table 2, theoretical columns). The search is over integers, so the next larger value does
not fit. The maximum layers and width of a plan bound it.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache

from msgspec.structs import replace

from zprof.model.job import Job, Shape
from zprof.model.plan import Assumption, Scheme
from zprof.planner.gpt_units import with_units
from zprof.planner.memory.closed_forms import sum_known_bytes, total_state_bytes
from zprof.planner.memory.device_memory import plan_memory
from zprof.planner.model_shapes import count_parameters, scale_width
from zprof.planner.refusals import MAX_LAYERS, MAX_WIDTH
from zprof.planner.rounding import ceil_div

LARGEST_ASSUMPTIONS: Mapping[str, Assumption] = {
    "largest.model": Assumption(
        formula="the larger of two models that fit: the job's width with a different number of layers, or "
        "its layers with another hidden size; without layers, memory x mp x pp / state bytes per parameter",
        source="arXiv 1910.02054, table 2; search over the peak of this plan",
        deviation="an upper bound if part of the peak is unknown: only known terms count",
    ),
}
#: Up to this many layers, any count is evaluated. Above it, the search starts from a linear extrapolation.
MAX_WALKED_LAYERS = 512
#: Size at which the search stops growing: more than the memory of any machine.
MAX_SIZE = 10**18


def largest_parameters(job: Job, scheme: Scheme) -> int | None:
    """Return the parameters of the largest model that fits, by layers or by width; None without hardware.

    0 means that the batch is too large even for the smallest model.
    """
    if job.hardware is None:
        return None
    budget = job.hardware.memory_bytes
    if job.shape is not None:
        return max(
            _largest_by_layers(job, scheme, budget), _largest_by_hidden(job, job.shape, scheme, budget)
        )
    if any(not unit.encloses for unit in job.units):
        return _largest_by_layers(job, scheme, budget)
    return _largest_by_states(job, scheme, budget)


def _largest_by_states(job: Job, scheme: Scheme, budget: int) -> int:
    def size_of(parameters: int) -> int:
        model = replace(with_parameters(job, parameters), shape=None, units=())
        return total_state_bytes(model, scheme)

    return find_largest_fit(size_of, budget)


def _largest_by_layers(job: Job, scheme: Scheme, budget: int) -> int:
    """Search in multiples of the pipeline stages: every stage has the same number of layers."""
    stages = job.degrees.pp

    @cache
    def peak(count: int) -> int:
        return sum_known_bytes(plan_memory(with_layers(job, count * stages), scheme).terms)

    known, max_layers = max(2, MAX_WALKED_LAYERS // stages), max(1, MAX_LAYERS // stages)
    count = find_largest_fit(_extrapolate_from(peak, known), budget, max_value=max_layers)
    if count >= known:
        count = find_largest_near(peak, budget, count, max_value=max_layers)
    return count_parameters_with_layers(job, count * stages) if count else 0


def _largest_by_hidden(job: Job, shape: Shape, scheme: Scheme, budget: int) -> int:
    """Search in multiples of the heads and the model-parallel ranks."""
    step = math.lcm(job.degrees.mp, shape.heads or 1)

    def model(count: int) -> Job:
        # The job with a different hidden size; the numbers of layers and heads stay.
        hidden = count * step
        return _with_shape(job, scale_width(shape, hidden, job.degrees.mp))

    count = find_largest_fit(
        lambda count: sum_known_bytes(plan_memory(model(count), scheme).terms),
        budget,
        max_value=MAX_WIDTH // step,
    )
    return model(count).parameters if count else 0


def _extrapolate_from(size_of: Callable[[int], int], known: int) -> Callable[[int], int]:
    """Return ``size_of`` up to ``known``; above it, extrapolate from the second half of the range."""
    half = known // 2

    def size(count: int) -> int:
        if count <= known:
            return size_of(count)
        last = size_of(known)
        return last + (last - size_of(known - half)) * (count - known) // half

    return size


def with_layers(job: Job, layers: int) -> Job:
    """Return the job with a different number of layers; without a shape, units repeat in order."""
    if job.shape is not None:
        return _with_shape(job, replace(job.shape, layers=layers))
    inner = [unit for unit in job.units if not unit.encloses]
    rounds = ceil_div(layers, len(inner))
    # Copy a unit under a new name, because units are identified by name.
    repeated = [
        (unit if number == 0 else replace(unit, name=f"{unit.name} ({number + 1})"))
        for number in range(rounds)
        for unit in inner
    ][:layers]
    roots = (unit for unit in job.units if unit.encloses)
    return replace(with_parameters(job, count_parameters_with_layers(job, layers)), units=(*roots, *repeated))


def with_parameters(job: Job, parameters: int) -> Job:
    """Return the job with a different number of parameters; the frozen fraction stays."""
    frozen = job.frozen_parameters * parameters // job.parameters
    return replace(job, parameters=parameters, frozen_parameters=frozen)


def count_parameters_with_layers(job: Job, layers: int) -> int:
    """Return the parameters of the job with a different number of layers, without building its units."""
    if job.shape is not None:
        return count_parameters(replace(job.shape, layers=layers))
    inner = [unit.elements for unit in job.units if not unit.encloses]
    root_elements = sum(unit.elements for unit in job.units if unit.encloses)
    rounds, rest = divmod(layers, len(inner))
    return (root_elements + rounds * sum(inner) + sum(inner[:rest])) * job.degrees.mp


def _with_shape(job: Job, shape: Shape) -> Job:
    return with_units(replace(with_parameters(job, count_parameters(shape)), shape=shape, units=()))


def find_largest_fit(size_of: Callable[[int], int], budget: int, *, max_value: int = MAX_SIZE) -> int:
    """Return the largest n in 0..max_value with ``size_of(n) <= budget``; 0 if not even 1 fits.

    ``size_of`` must be non-decreasing. It is called about log2(n) times: at powers of two, then between the
    last value that fits and the first that does not. Each round of the second part tries the linear
    interpolation twice (exact for a linear ``size_of``: the answer and its neighbour), then the middle.
    """
    low, low_size, high = 0, 0, 1
    while high <= max_value and (high_size := size_of(high)) <= budget:
        low, low_size, high = high, high_size, high * 2
    if high > max_value:
        high, high_size = max_value + 1, budget + 1
        if low == max_value:
            return max_value
    return _search_between(size_of, budget, (low, low_size), (high, high_size))


def find_largest_near(
    size_of: Callable[[int], int], budget: int, guess: int, *, max_value: int = MAX_SIZE
) -> int:
    """Return the result of ``find_largest_fit``, searching outward from a guess in 1..max_value.

    Use it if ``size_of`` is expensive: a good guess needs only two calls.
    """
    size, step = size_of(guess), 1
    fits = size <= budget
    inner = outer = (guess, size)
    while (outer[1] <= budget) is fits:
        inner, candidate = outer, outer[0] + (step if fits else -step)
        if candidate > max_value:
            outer = (max_value + 1, budget + 1)
        elif candidate < 1:
            outer = (0, 0)
        else:
            outer = (candidate, size_of(candidate))
        step *= 2
    return (
        _search_between(size_of, budget, inner, outer)
        if fits
        else _search_between(size_of, budget, outer, inner)
    )


def _search_between(
    size_of: Callable[[int], int], budget: int, fitting: tuple[int, int], larger: tuple[int, int]
) -> int:
    """Return the largest value that fits, given one that fits and one that does not, each with its size."""
    (low, low_size), (high, high_size) = fitting, larger
    while high - low > 1:
        for is_middle in (False, False, True):
            crossing = low + (budget - low_size) * (high - low) // max(high_size - low_size, 1)
            candidate = min(max((low + high) // 2 if is_middle else crossing, low + 1), high - 1)
            size = size_of(candidate)
            if size <= budget:
                low, low_size = candidate, size
            else:
                high, high_size = candidate, size
            if high - low <= 1:
                break
    return low
