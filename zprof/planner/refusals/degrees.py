"""The degrees of a job: whether they divide what they must."""

from zprof.model.errors import BadInput
from zprof.model.planning.job import Degrees, Job, Shape
from zprof.planner.degrees import layers_of, split_sizes
from zprof.planner.refusals.numbers import whole
from zprof.planner.rounding import ceil_div

MOST_DEVICES = 10**6
#: Of a list of degrees in a hint.
_MOST_NAMED = 8


def refuse_degrees(job: Job) -> None:
    """Data, model and pipeline parallelism.

    Raises:
        BadInput: one is below 1, all together are too many devices, mp does not divide hidden, heads or
            vocabulary, pp does not divide the layers.
    """
    degrees = job.degrees
    for name in ("dp", "mp", "pp"):
        whole(name, getattr(degrees, name), most=MOST_DEVICES)
    if degrees.devices > MOST_DEVICES:
        raise BadInput(
            f"dp {degrees.dp} x mp {degrees.mp} x pp {degrees.pp} is {degrees.devices} devices",
            hint=f"at most {MOST_DEVICES}",
        )
    if job.shape is not None:
        _refuse_model_parallel(degrees, job.shape)
    layers = layers_of(job)
    if layers is not None:
        _refuse_pipeline(degrees.pp, layers)
    elif degrees.mp * degrees.pp > job.parameters:
        raise BadInput(
            f"mp {degrees.mp} x pp {degrees.pp} is more than {job.parameters} parameters",
            hint="lower mp or pp",
        )


def _refuse_model_parallel(degrees: Degrees, shape: Shape) -> None:
    for name, size in (("hidden", shape.hidden), ("heads", shape.heads)):
        if size is not None and size % degrees.mp:
            raise BadInput(f"mp {degrees.mp} does not divide {name} {size}", hint=_that_divide(shape))
    if shape.vocabulary % degrees.mp:
        padded = ceil_div(shape.vocabulary, degrees.mp) * degrees.mp
        raise BadInput(
            f"mp {degrees.mp} does not divide vocabulary {shape.vocabulary}", hint=f"pad it to {padded}"
        )


def _that_divide(shape: Shape) -> str:
    sizes = split_sizes(shape)
    powers = [1 << bit for bit in range(_MOST_NAMED) if all(size % (1 << bit) == 0 for size in sizes)]
    return f"powers of two that divide: {', '.join(map(str, powers))}"


def _refuse_pipeline(pp: int, layers: int) -> None:
    if pp > layers:
        raise BadInput(f"pp {pp} is more than the {layers} layers", hint=f"at most {layers}")
    if layers % pp:
        dividing = [str(part) for part in range(1, min(layers, 64) + 1) if layers % part == 0]
        raise BadInput(
            f"pp {pp} does not divide {layers} layers",
            hint=f"one of {', '.join(dividing[:_MOST_NAMED])}",
        )
