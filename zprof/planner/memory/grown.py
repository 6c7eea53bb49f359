"""The same kind of model in another size: of more or fewer layers, or of another hidden."""

from dataclasses import replace

from zprof.model.planning.job import Job, Shape, Unit
from zprof.planner.models.presets import parameters_of
from zprof.planner.models.units import with_units
from zprof.planner.rounding import ceil_div


def with_layers(job: Job, layers: int) -> Job:
    """The job with so many layers; a model without a shape repeats its own units in their order."""
    if job.shape is not None:
        return _of_shape(job, replace(job.shape, layers=layers))
    inner = [unit for unit in job.units if not unit.encloses]
    rounds = ceil_div(layers, len(inner))
    repeated = [_again(unit, number) for number in range(rounds) for unit in inner][:layers]
    around = (unit for unit in job.units if unit.encloses)
    return replace(of_size(job, parameters_with(job, layers)), units=(*around, *repeated))


def of_size(job: Job, parameters: int) -> Job:
    """The job with so many parameters, of which as large a part is frozen."""
    frozen = job.frozen_parameters * parameters // job.parameters
    return replace(job, parameters=parameters, frozen_parameters=frozen)


def parameters_with(job: Job, layers: int) -> int:
    """Parameters of the job with so many layers, which are counted and not built."""
    if job.shape is not None:
        return parameters_of(replace(job.shape, layers=layers))
    inner = [unit.elements for unit in job.units if not unit.encloses]
    around = sum(unit.elements for unit in job.units if unit.encloses)
    rounds, rest = divmod(layers, len(inner))
    return (around + rounds * sum(inner) + sum(inner[:rest])) * job.degrees.mp


def with_hidden(job: Job, shape: Shape, hidden: int) -> Job:
    """The job with another hidden; as many layers, and as many heads."""
    return _of_shape(job, replace(shape, hidden=hidden))


def _of_shape(job: Job, shape: Shape) -> Job:
    return with_units(replace(of_size(job, parameters_of(shape)), shape=shape, units=()))


def _again(unit: Unit, number: int) -> Unit:
    """A unit is known by its name."""
    return unit if number == 0 else replace(unit, name=f"{unit.name} ({number + 1})")
