"""The model of a job: its sizes, and whether its shape has as many parameters as it says."""

from collections import Counter
from collections.abc import Sequence

from zprof.model.errors import BadInput
from zprof.model.planning.job import Job, Shape, Unit
from zprof.planner.models.presets import parameters_of
from zprof.planner.refusals.numbers import whole

MOST_PARAMETERS = 10**15
#: Ten times the deepest that anybody trained; each layer is a unit that is walked through.
MOST_LAYERS = 10**4
MOST_WIDTH = 10**7
_MOST_TOKENS = 10**9
_MOST_BYTES = 10**18
#: By how much parameters and shape may be apart: published sizes are rounded, norms and biases neglected.
TOLERANCE_RATIO = 0.05
_UNIT_BYTES = ("saved_bytes", "checkpoint_bytes", "forward_work_bytes", "backward_work_bytes")


def refuse_model(job: Job) -> None:
    """Sizes of the model, its shape and its units.

    Raises:
        BadInput: one is below 1, or beyond all reason.
    """
    whole("parameters", job.parameters, most=MOST_PARAMETERS)
    whole("frozen parameters", job.frozen_parameters, least=0, most=job.parameters)
    if job.shape is not None:
        _refuse_shape(job.shape)
    if len(job.units) > MOST_LAYERS:
        raise BadInput(f"the model has {len(job.units)} units", hint=f"at most {MOST_LAYERS}")
    for unit in job.units:
        _refuse_unit(unit)
    _refuse_twins(job.units)


def refuse_contradiction(job: Job) -> None:
    """Parameters against the shape's, or against the units' where one rank has the whole model.

    Raises:
        BadInput: they are more than 5 % apart.
    """
    if job.shape is not None:
        hint = f"leave one of them out{_tables_hint(job.shape)}"
        _refuse_apart(job.parameters, parameters_of(job.shape), _words(job.shape), hint)
    elif job.units and job.degrees.mp == 1:
        _refuse_apart(job.parameters, _sum(job.units), "the units", "leave parameters out")


def _refuse_shape(shape: Shape) -> None:
    whole("layers", shape.layers, most=MOST_LAYERS)
    whole("hidden", shape.hidden, most=MOST_WIDTH)
    whole("vocabulary", shape.vocabulary, least=0, most=_MOST_TOKENS)
    whole("context", shape.context, least=0, most=_MOST_TOKENS)
    if shape.heads is None:
        return
    whole("heads", shape.heads, most=MOST_WIDTH)
    if shape.hidden % shape.heads:
        raise BadInput(
            f"hidden {shape.hidden} does not divide into {shape.heads} heads",
            hint="state heads that divide hidden",
        )


def _refuse_unit(unit: Unit) -> None:
    name = f"unit {unit.name[:60]!r}:"
    whole(f"{name} elements", unit.elements, most=MOST_PARAMETERS)
    whole(f"{name} frozen elements", unit.frozen_elements, least=0, most=unit.elements)
    for field in _UNIT_BYTES:
        size = getattr(unit, field)
        if size is not None:
            whole(f"{name} {field}", size, least=0, most=_MOST_BYTES)


def _refuse_twins(units: Sequence[Unit]) -> None:
    twice = [name for name, count in Counter(unit.name for unit in units).items() if count > 1]
    if twice:
        raise BadInput(f"two units are named {twice[0][:60]!r}", hint="give each a name of its own")


def _refuse_apart(stated: int, counted: int, of_what: str, hint: str) -> None:
    if abs(stated - counted) > TOLERANCE_RATIO * counted:
        raise BadInput(
            f"parameters {stated:.4g} contradict {of_what} with {counted:.4g} parameters", hint=hint
        )


def _words(shape: Shape) -> str:
    return f"the shape of {shape.layers} layers x {shape.hidden}"


def _tables_hint(shape: Shape) -> str:
    return "" if shape.vocabulary else ", or state the vocabulary too"


def _sum(units: Sequence[Unit]) -> int:
    return sum(unit.elements for unit in units)
