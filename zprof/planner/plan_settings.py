"""Settle the options of a plan: old names, files, values that follow from others, and the framework.

Errors use the command-line spelling of an option.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.model.layout import ComputePrecision, Framework, OptimizerKind, Recompute
from zprof.model.plan import PlanOptions
from zprof.planner.deepspeed_config import DeepspeedConfig, read_deepspeed_config
from zprof.planner.request import PlanRequest

_DEFAULTS = PlanRequest()
#: Options that only the reference engine has: ZeRO-R, prefetch, backend, and models built in Python.
_REFERENCE = (
    *("partition_activations", "offload_activations", "defragment", "keep_last", "constant_buffers"),
    *("prefetch", "backend", "model"),
)
#: Options that the reference engine does not have.
_NOT_REFERENCE = (
    *("config", "deepspeed", "cp", "ep", "virtual", "schedule", "shard", "no_reshard"),
    *("no_sequence_parallel", "pure", "fp32_reduce", "offload", "unfused", "compile"),
)
#: Values of an option that the reference engine has.
_REFERENCE_VALUES: dict[str, tuple[object, ...]] = {
    "precision": (ComputePrecision.BF16, ComputePrecision.FP16, ComputePrecision.FP32),
    "optimizer": (OptimizerKind.ADAM, OptimizerKind.MOMENTUM, OptimizerKind.SGD),
    "recompute": (Recompute.NONE, Recompute.FULL),
}
#: Field of a request: its value in a ``ds_config.json``.
_OF_DEEPSPEED = ("stage", "precision", "micro_batch", "micro_batches", "global_batch", "optimizer", "shard")


#: Options that hold for every layout of a job, and the units of their values.
_KEPT = (
    *("params", "preset", "config", "layers", "hidden", "heads", "vocabulary", "context", "untied"),
    *("precision", "pure", "fp32_reduce", "optimizer", "unfused", "compile"),
    *("hardware", "device_memory", "bandwidth", "latency", "intra_bandwidth", "intra_latency"),
)
_UNITS = {
    "device_memory": "B",
    "bandwidth": "B/s",
    "latency": "ns",
    "intra_bandwidth": "B/s",
    "intra_latency": "ns",
}


class PlanSettings(Struct, frozen=True, kw_only=True):
    """The options of a plan without old names, and with the values that follow from others.

    ``request.framework``: None for the usual one of each scheme. ``deepspeed``: the file, if one was given.
    """

    request: PlanRequest
    options: PlanOptions
    deepspeed: DeepspeedConfig | None = None


def settle_options(given: PlanRequest, *, analyses: Sequence[str] = ()) -> PlanSettings:
    """Return the settings that the given options lead to.

    ``analyses``: names of further analyses (``sensitivity``, ``verify``, ``search``).

    Raises:
        BadInput: options contradict each other, or belong to different frameworks.
    """
    request, old_options = _replace_old_names(given)
    deepspeed = None
    if request.deepspeed is not None:
        deepspeed = read_deepspeed_config(Path(request.deepspeed))
        request = _merge_deepspeed(request, deepspeed)
    request = _settle_degrees(request)
    framework, reference_options = _choose_framework(request, analyses)
    # Without a framework, schemes with other degrees may have the global batch; a search varies the degrees.
    is_free = "search" in analyses or framework is None
    if request.global_batch is not None and (not is_free or _divides_batch(request, request.global_batch)):
        request = replace(request, micro_batches=_count_micro_batches(request, request.global_batch))
    return PlanSettings(
        request=replace(request, framework=framework),
        options=PlanOptions(
            framework=framework,
            reference_options=reference_options,
            old_options=old_options,
            auto_keys=() if deepspeed is None else deepspeed.auto_keys,
            kept_arguments=tuple(_list_kept_arguments(request)),
        ),
        deepspeed=deepspeed,
    )


def _replace_old_names(given: PlanRequest) -> tuple[PlanRequest, tuple[tuple[str, str], ...]]:
    """Return the request with today's names, and the old names with their replacements."""
    request, old_options = given, []
    if given.mp > 1:
        if given.tp not in (1, given.mp):
            raise BadInput(
                f"--tp {given.tp} contradicts --mp {given.mp}", hint="--mp is the old name of --tp: remove it"
            )
        request = replace(request, tp=given.mp)
        old_options.append(("--mp", "--tp"))
    if given.checkpointing:
        if given.recompute is Recompute.SELECTIVE:
            raise BadInput(
                "--recompute selective contradicts --checkpointing",
                hint="--checkpointing is the old name of --recompute full: remove it",
            )
        request = replace(request, recompute=Recompute.FULL)
        old_options.append(("--checkpointing", "--recompute full"))
    return replace(request, mp=1, checkpointing=False), tuple(old_options)


def _merge_deepspeed(request: PlanRequest, config: DeepspeedConfig) -> PlanRequest:
    """Return the request with the settings of the file; an option may repeat them.

    Raises:
        BadInput: an option differs from the file.
    """
    changes: dict[str, Any] = {}
    samples = (config.micro_batch or 0) * (config.micro_batches or 0)
    if samples and config.global_batch is not None and request.world is None and request.dp == 1:
        changes["dp"] = max(1, config.global_batch // samples)
    for field in _OF_DEEPSPEED:
        value, stated = getattr(config, field), getattr(request, field)
        if value is None:
            continue
        if stated not in (getattr(_DEFAULTS, field), value):
            raise BadInput(
                f"{format_option(field)} {stated} contradicts {value} in {request.deepspeed}",
                hint="remove the option, or change the file",
            )
        changes[field] = value
    if config.offload_optimizer or config.offload_parameters:
        changes["offload"] = "parameters" if config.offload_parameters else "optimizer"
    if config.fp32_reduce:
        changes["fp32_reduce"] = True
    if request.framework not in (None, Framework.DEEPSPEED):
        raise BadInput(
            f"--deepspeed contradicts --framework {request.framework}", hint="remove one of the two"
        )
    return replace(request, framework=Framework.DEEPSPEED, **changes)


def _settle_degrees(request: PlanRequest) -> PlanRequest:
    """Return the request with the data-parallel degree that follows from ``--world``."""
    if request.world is None:
        return request
    parts = request.tp * request.pp * request.cp
    if request.world % parts:
        raise BadInput(
            f"--world {request.world} is not divisible by tp {request.tp} x pp {request.pp} x "
            f"cp {request.cp}",
            hint=f"use a multiple of {parts}",
        )
    dp = request.world // parts
    if request.dp not in (1, dp):
        raise BadInput(
            f"--world {request.world} with these degrees means dp {dp}, not --dp {request.dp}",
            hint="remove one of the two",
        )
    return replace(request, dp=dp)


def _divides_batch(request: PlanRequest, global_batch: int) -> bool:
    return global_batch % (request.dp * (request.micro_batch or 1)) == 0


def _count_micro_batches(request: PlanRequest, global_batch: int) -> int:
    """Return the micro-batches per step that a global batch means.

    Raises:
        BadInput: the ranks do not divide it, or ``--micro-batches`` says otherwise.
    """
    samples = request.dp * (request.micro_batch or 1)
    if not _divides_batch(request, global_batch):
        raise BadInput(
            f"--global-batch {global_batch} is not divisible by {request.dp} data-parallel ranks x "
            f"{request.micro_batch or 1} samples",
            hint=f"use a multiple of {samples}",
        )
    micro_batches = global_batch // samples
    if request.micro_batches not in (1, micro_batches):
        raise BadInput(
            f"--global-batch {global_batch} means {micro_batches} micro-batches, not {request.micro_batches}",
            hint="remove one of the two",
        )
    return micro_batches


def _choose_framework(
    request: PlanRequest, analyses: Sequence[str]
) -> tuple[Framework | None, tuple[str, ...]]:
    """Return the framework, and the options that selected the reference engine.

    Raises:
        BadInput: an option does not belong to the framework.
    """
    given = [field for field in _REFERENCE if getattr(request, field) != getattr(_DEFAULTS, field)]
    given += [name for name in ("sensitivity", "verify") if name in analyses]
    options = tuple(map(format_option, given))
    framework = request.framework
    if options and framework not in (None, Framework.REFERENCE):
        raise BadInput(
            f"{options[0]} belongs to the reference engine, not to --framework {framework}",
            hint="remove it, or use --framework reference",
        )
    if options or framework is Framework.REFERENCE:
        other = next(_list_others(request, analyses), None)
        if other is not None:
            because = f"which {options[0]} selects" if options else "which --framework reference selects"
            raise BadInput(
                f"{other} does not apply to the reference engine, {because}", hint="remove one of the two"
            )
        return Framework.REFERENCE, options if framework is None else ()
    return framework, ()


def _list_others(request: PlanRequest, analyses: Sequence[str]) -> Iterator[str]:
    """Yield the given options that the reference engine does not have."""
    for field in _NOT_REFERENCE:
        if getattr(request, field) != getattr(_DEFAULTS, field):
            yield format_option(field)
    for field, values in _REFERENCE_VALUES.items():
        if getattr(request, field) not in values:
            yield f"{format_option(field)} {getattr(request, field)}"
    if "search" in analyses:
        yield "--search"


def _list_kept_arguments(request: PlanRequest) -> Iterator[str]:
    """Yield the arguments of a command that do not change with the layout."""
    for field in _KEPT:
        value = getattr(request, field)
        if value == getattr(_DEFAULTS, field):
            continue
        yield format_option(field)
        if not isinstance(value, bool):
            number = f"{value:.15g}" if isinstance(value, int | float) else str(value)
            yield number + _UNITS.get(field, "")


def format_option(field: str) -> str:
    """Return the option of a field: ``--micro-batch`` for ``micro_batch``."""
    return f"--{field.replace('_', '-')}"
