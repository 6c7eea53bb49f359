"""The task ``count``: elements of a user's model by unit, and what a micro-batch leaves in each.

Units are those of the reference engine's default split, as users of FSDP2 wrap: each child of an
``nn.ModuleList``, and the root around them with the rest.  Tied parameters belong to the root and count once.
Elements are counted on the meta device.  Bytes are measured on tensors without memory, where the model's
forward takes tokens, an int64 [samples, sequence].
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch import nn

from zprof.integrations.planning.answering import Tell
from zprof.integrations.planning.fake.measuring import measured
from zprof.integrations.planning.fake.user_model import builder, first_line
from zprof.model.errors import BadInput
from zprof.model.planning.job import Job, Unit
from zprof.reference_engine.units.split import ROOT, UnitSpec, split


def count(task: dict[str, Any], tell: Tell) -> None:
    """One answer: parameters, how many of them are frozen, and the units.

    Raises:
        BadInput: the user's code fails, or its model has nothing to count.
    """
    job = msgspec.convert(task["job"], Job)
    build = builder(task["model"])
    with torch.device("meta"):
        model = build()
    units = _with_bytes(_counted(task["model"], model), job, task["model"], build)
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    tell(
        {
            "parameters": sum(unit.elements for unit in units),
            "frozen": frozen,
            "units": msgspec.to_builtins(units),
        }
    )


def _counted(spec: str, model: nn.Module) -> tuple[Unit, ...]:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise BadInput(
                f"--model {spec}: parameter {name} has no shape yet",
                hint="give lazy modules their sizes, or run them once before the model is returned",
            )
    specs = [unit for unit in split(model) if unit.parameters or unit.module is model]
    units = tuple(_unit(unit) for unit in specs)
    if not sum(unit.elements for unit in units):
        raise BadInput(f"--model {spec}: the model has no parameters", hint="there is nothing to plan")
    return units


def _unit(spec: UnitSpec) -> Unit:
    trained = [parameter.numel() for _, parameter in spec.parameters if parameter.requires_grad]
    elements = sum(parameter.numel() for _, parameter in spec.parameters)
    return Unit(
        name=spec.name,
        elements=elements,
        frozen_elements=elements - sum(trained),
        encloses=spec.name == ROOT,
        largest_gradient_elements=max(trained, default=0),
    )


def _with_bytes(
    units: tuple[Unit, ...], job: Job, spec: str, build: Callable[[], nn.Module]
) -> tuple[Unit, ...]:
    samples, sequence = job.batch.samples, job.batch.sequence
    if samples is None or sequence is None:
        return units
    try:
        sizes = measured(build, samples=samples, sequence=sequence, bytes_each=job.element_bytes.parameter)
    except BadInput as error:
        return _unknown(units, spec, error.message)
    except Exception as error:
        return _unknown(units, spec, first_line(error))
    return tuple(replace(unit, **sizes[unit.name]) for unit in units)


def _unknown(units: tuple[Unit, ...], spec: str, why: str) -> tuple[Unit, ...]:
    print(
        f"zprof: what {spec} keeps for its backward stays unknown: a step on int64 tokens "
        f"[samples, sequence] failed ({why})",
        file=sys.stderr,
        flush=True,
    )
    return units
