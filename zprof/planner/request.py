"""Make a job from the plan options shared by ``zprof plan`` and ``zprof.plan``.

Errors use the command-line spelling of an option (``--keep-last``).

Hardware is a preset, a typical machine (:mod:`zprof.model.job`), or a TOML file with your own measurements.

Key names carry their units::

    base = "h100"              # optional: preset that supplies omitted keys
    name = "our cluster"
    memory_gb = 80             # per device, 1e9 bytes
    peak_tflops = 989          # dense 16-bit matrices
    peak_fp32_tflops = 67      # fp32 matrices without TF32; only fp32 jobs need it
    efficiency = 0.4           # fraction of the peak that compute reaches without waits
    devices_per_node = 8
    node_gb_per_s = 400        # all NICs of a node together, one direction
    intra_gb_per_s = 360       # bus bandwidth of collectives within a node
    intra_latency_us = 2       # per ring hop
    inter_latency_us = 10
    host_gb_per_s = 50         # between a device and host memory
"""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import asdict, replace

from zprof.base.errors import BadInput
from zprof.base.parsing import (
    parse_count,
    parse_count_or_zero,
    parse_duration,
    parse_parameter_count,
    parse_rate,
    parse_size,
)
from zprof.model.job import (
    PRESETS,
    Backend,
    Batch,
    Degrees,
    ElementBytes,
    Hardware,
    Job,
    Overlap,
    Residual,
    Shape,
)
from zprof.model.plan import ZERO_STAGES, Scheme

Precision = Literal["bf16", "fp16", "fp32"]
Optimizer = Literal["adam", "momentum", "sgd"]

#: Parsers by field; fields without a parser are names or flags.
PARSERS: Mapping[str, Callable[[Any], float]] = {
    "params": parse_parameter_count,
    "vocabulary": parse_count_or_zero,
    "constant_buffers": parse_parameter_count,
    "prefetch": parse_count_or_zero,
    "device_memory": parse_size,
    "bandwidth": parse_rate,
    "latency": parse_duration,
    "intra_bandwidth": parse_rate,
    "intra_latency": parse_duration,
    "stage": int,
    **dict.fromkeys(("layers", "hidden", "heads", "context", "dp", "mp", "pp"), parse_count),
    **dict.fromkeys(("micro_batch", "sequence", "micro_batches"), parse_count),
}
#: Allowed values by field.
CHOICES: Mapping[str, Sequence[int | str]] = {
    "stage": range(len(ZERO_STAGES)),
    "precision": get_args(Precision),
    "optimizer": get_args(Optimizer),
    "backend": tuple(str(backend) for backend in Backend),
}
#: Bytes per element of the optimizer's own state, without a master copy of the weights.
_STATE_BYTES: Mapping[Optimizer, int] = {"adam": 8, "momentum": 4, "sgd": 0}
_FULL, _HALF = 4, 2
#: Hardware field that an option overrides.
_OVERRIDES = {
    "device_memory": "memory_bytes",
    "bandwidth": "node_bytes_per_s",
    "latency": "inter_latency_ns",
    "intra_bandwidth": "intra_bytes_per_s",
    "intra_latency": "intra_latency_ns",
}
#: A machine description has a few lines; a larger file is something else.
MAX_FILE_BYTES = 64 * 1024
_MAX_NAME_LENGTH = 100
#: Bounds of every number in bytes, flop/s and nanoseconds; they keep plan times finite.
_MIN_VALUE, _MAX_VALUE = 1e-6, 1e18
#: TOML key: (field, factor from the key's unit to the field's unit).
_NUMBER_FIELDS: Mapping[str, tuple[str, float]] = {
    "memory_gb": ("memory_bytes", 1e9),
    "peak_tflops": ("flops_per_s", 1e12),
    "peak_fp32_tflops": ("fp32_flops_per_s", 1e12),
    "efficiency": ("efficiency_ratio", 1),
    "devices_per_node": ("devices_per_node", 1),
    "node_gb_per_s": ("node_bytes_per_s", 1e9),
    "intra_gb_per_s": ("intra_bytes_per_s", 1e9),
    "intra_latency_us": ("intra_latency_ns", 1e3),
    "inter_latency_us": ("inter_latency_ns", 1e3),
    "host_gb_per_s": ("host_bytes_per_s", 1e9),
}
_INTEGER_FIELDS = frozenset({"memory_bytes", "devices_per_node", "intra_latency_ns", "inter_latency_ns"})
#: Keys that a file without a base may omit: ``Hardware`` has a default for them.
_OPTIONAL_KEYS = frozenset({"intra_latency_us", "inter_latency_us", "host_gb_per_s", "peak_fp32_tflops"})
_KEYS = ("base", "name", *_NUMBER_FIELDS)


class PlanRequest(Struct, frozen=True, kw_only=True):
    """The options of a plan, with the names that users see; None: not given.

    Memory is in bytes, a bandwidth in bytes per second, a latency in nanoseconds, ``constant_buffers`` in
    elements. ``model``: ``module:function``. ``hardware``: a name or the path of a file. Without ``stage``,
    all schemes are planned.
    """

    params: int | None = None
    preset: str | None = None
    model: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    vocabulary: int | None = None
    context: int | None = None
    untied: bool = False
    stage: int | None = None
    dp: int = 1
    mp: int = 1
    pp: int = 1
    precision: Precision = "bf16"
    optimizer: Optimizer = "adam"
    micro_batch: int | None = None
    sequence: int | None = None
    micro_batches: int = 1
    checkpointing: bool = False
    partition_activations: bool = False
    offload_activations: bool = False
    defragment: bool = False
    keep_last: bool = False
    constant_buffers: int | None = None
    prefetch: int = 1
    backend: Backend = Backend.NCCL
    hardware: str | None = None
    device_memory: int | None = None
    bandwidth: float | None = None
    latency: int | None = None
    intra_bandwidth: float | None = None
    intra_latency: int | None = None


def make_job(request: PlanRequest, count_model: Callable[[str, Job], Job]) -> Job:
    """Return the requested job, with typical values for omitted options.

    ``count_model``: returns the job with the counted parameters of the model that ``request.model`` builds.

    Raises:
        BadInput: not exactly one model is given, the preset or hardware is unknown, or ``count_model`` fails.
    """
    from zprof.planner.usual_values import assume_missing

    name, parameters, shape = _read_model(request)
    job = Job(
        name=name,
        parameters=parameters,
        shape=shape,
        degrees=Degrees(dp=request.dp, mp=request.mp, pp=request.pp),
        element_bytes=choose_element_bytes(request.precision, request.optimizer),
        batch=Batch(
            samples=request.micro_batch, sequence=request.sequence, micro_batches=request.micro_batches
        ),
        residual=Residual(
            checkpointing=request.checkpointing,
            partition=request.partition_activations,
            offload=request.offload_activations,
            constant_buffer_elements=request.constant_buffers,
            defragment=request.defragment,
        ),
        overlap=Overlap(prefetch=request.prefetch, keep_last=request.keep_last),
        backend=request.backend,
        hardware=_read_hardware(request),
    )
    return assume_missing(count_model(request.model, job) if request.model else job)


def choose_schemes(request: PlanRequest) -> Sequence[Scheme]:
    """Return the requested stage, or all schemes for comparison.

    Raises:
        BadInput: an option of stage 3 is combined with another stage.
    """
    if request.keep_last and request.stage not in (None, 3):
        raise BadInput(
            f"--keep-last applies to stage 3 only; --stage {request.stage} gathers no units",
            hint="remove it, or use --stage 3",
        )
    return tuple(Scheme) if request.stage is None else (tuple(ZERO_STAGES)[request.stage],)


def choose_element_bytes(precision: Precision, optimizer: Optimizer) -> ElementBytes:
    """Return the bytes per element, including fp32 master weights and a gradient copy for 16-bit models."""
    state = _STATE_BYTES[optimizer]
    if precision == "fp32":
        return ElementBytes(
            parameter=_FULL,
            gradient=_FULL,
            optimizer_state=state,
            gathered=_FULL,
            reduced=_FULL,
            gradient_copy=0,
        )
    return replace(ElementBytes(), optimizer_state=state + _FULL, parameter=_HALF, gradient=_HALF)


def _read_model(request: PlanRequest) -> tuple[str, int, Shape | None]:
    """Return name, parameters and shape from exactly one option; ``--model`` is counted later.

    Raises:
        BadInput: not exactly one model is given, or the preset is unknown.
    """
    options = {
        "--params": request.params,
        "--layers with --hidden": request.layers or request.hidden,
        "--preset": request.preset,
        "--model": request.model,
    }
    given = [option for option, value in options.items() if value is not None]
    if len(given) != 1:
        message = f"the model is specified twice: {' and '.join(given)}" if given else "no model given"
        raise BadInput(message, hint=f"use one of: {', '.join(options)}")
    _refuse_unused(request, given[0])
    if request.preset is not None:
        # A preset model; a context shorter than the sequence is extended to it.
        from zprof.planner.model_shapes import count_parameters, find_preset

        preset = find_preset(request.preset)
        shape = preset.shape
        if request.sequence is None or request.sequence <= shape.context:
            return preset.name, preset.parameters, shape
        extended = replace(shape, context=request.sequence)
        return f"{preset.name} with context {request.sequence:,}", count_parameters(extended), extended
    if request.params is not None:
        return "", request.params, None
    return ("", 1, None) if request.model else _model_from_shape(request)


def _refuse_unused(request: PlanRequest, model_option: str) -> None:
    """Raise for shape options that have no effect because the model is specified in another way."""
    if request.layers is not None:
        return
    parts = {
        "--heads": request.heads,
        "--vocabulary": request.vocabulary,
        "--context": request.context,
        "--untied": request.untied or None,
    }
    unused = [option for option, value in parts.items() if value is not None]
    if unused:
        raise BadInput(
            f"{' and '.join(unused)} has no effect: the model is specified by {model_option}",
            hint="remove it, or specify the shape instead: --layers and --hidden",
        )


def _model_from_shape(request: PlanRequest) -> tuple[str, int, Shape | None]:
    from zprof.planner.model_shapes import count_parameters

    if request.layers is None or request.hidden is None:
        raise BadInput("a shape needs --layers and --hidden", hint="see zprof plan --help")
    if request.context is not None and (request.sequence or 0) > request.context:
        raise BadInput(
            f"--sequence {request.sequence} is longer than --context {request.context}",
            hint="raise --context, or remove it: the default is --sequence",
        )
    shape = Shape(
        layers=request.layers,
        hidden=request.hidden,
        vocabulary=request.vocabulary or 0,
        context=request.context or request.sequence or 0,
        heads=request.heads,
        tied=not request.untied,
    )
    return "", count_parameters(shape), shape


def _read_hardware(request: PlanRequest) -> Hardware | None:
    """Return the named hardware with overrides; None without a name.

    Raises:
        BadInput: it cannot be found or read, or an override is given without a name.
    """
    overrides: dict[str, Any] = {
        field: value
        for option, field in _OVERRIDES.items()
        if (value := getattr(request, option)) is not None
    }
    if request.hardware is None:
        if overrides:
            raise BadInput("hardware options need --hardware", hint="add --hardware, e.g. v100 or h100")
        return None
    hardware = find_hardware(request.hardware)
    return replace(hardware, name=f"{hardware.name}, changed", **overrides) if overrides else hardware


def find_hardware(name_or_path: str) -> Hardware:
    """Return the preset with that name (case is ignored), or the machine described by a ``.toml`` file.

    Raises:
        BadInput: no preset has that name (the message lists them), or the file cannot be used.
    """
    preset = PRESETS.get(name_or_path.lower())
    if preset is not None:
        return preset
    if name_or_path.lower().endswith(".toml"):
        return read_hardware(Path(name_or_path))
    raise BadInput(
        f"no hardware named {name_or_path[:60]!r}",
        hint=f"one of {', '.join(PRESETS)}, or the path of a .toml file",
    )


def read_hardware(path: Path) -> Hardware:
    """Return the machine described by a TOML file.

    Raises:
        BadInput: the file is unreadable, too large or not TOML, or a key is unknown, missing, of the wrong
            type or out of range. The message is one line with the file and the key.
    """
    table = _parse_toml(path)
    if unknown := sorted(set(table) - set(_KEYS)):
        raise BadInput(f"{path}: unknown key {_shorten_value(unknown[0])}", hint="known: " + ", ".join(_KEYS))
    fields: dict[str, Any] = {}
    if "base" in table:
        base = table["base"]
        if not isinstance(base, str) or base not in PRESETS:
            raise BadInput(
                f"{path}: base: unknown preset {_shorten_value(base)}", hint="one of " + ", ".join(PRESETS)
            )
        fields = asdict(PRESETS[base])
    for key, (name, scale) in _NUMBER_FIELDS.items():
        if key in table:
            fields[name] = _read_number(path, key, table[key], scale, is_integer=name in _INTEGER_FIELDS)
        elif name not in fields and key not in _OPTIONAL_KEYS:
            raise BadInput(f"{path}: {key} is missing", hint='add it, or start from a preset: base = "h100"')
    return Hardware(**{**fields, "name": _read_name(path, table)})


def _parse_toml(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block; a device might never end
            raise BadInput(f"{path}: not a file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"{path}: cannot be read: {reason}") from error
    if len(content) > MAX_FILE_BYTES:
        raise BadInput(f"{path}: larger than {MAX_FILE_BYTES} bytes: not a machine description")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        first = _shorten_value(
            str(error).splitlines()[0] if str(error) else type(error).__name__, quoted=False
        )
        raise BadInput(
            f"{path}: not valid TOML: {first}", hint="see docs/planner.md for an example"
        ) from error


def _read_name(path: Path, table: Mapping[str, Any]) -> str:
    name = table.get("name", path.stem)
    if not isinstance(name, str):
        raise BadInput(f"{path}: name: must be text, not {_shorten_value(name)}")
    if not name.strip() or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise BadInput(
            f"{path}: name: must be 1 to {_MAX_NAME_LENGTH} printable characters, not {_shorten_value(name)}"
        )
    return name


def _read_number(path: Path, key: str, value: object, scale: float, *, is_integer: bool) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{path}: {key}: must be a number, not {_shorten_value(value)}")
    try:
        scaled = float(value) * scale
    except OverflowError:
        scaled = math.inf
    if not math.isfinite(scaled) or scaled <= 0:
        raise BadInput(f"{path}: {key}: must be above 0 and finite, not {_shorten_value(value)}")
    if not _MIN_VALUE <= scaled <= _MAX_VALUE:
        raise BadInput(
            f"{path}: {key}: {_shorten_value(value)} is out of range", hint="check the unit in the key's name"
        )
    if key == "efficiency" and scaled > 1:
        raise BadInput(
            f"{path}: {key}: must be a fraction of the peak, at most 1, not {_shorten_value(value)}"
        )
    if not is_integer:
        return scaled
    if key == "devices_per_node" and scaled != int(scaled):
        raise BadInput(f"{path}: {key}: must be an integer, not {_shorten_value(value)}")
    if round(scaled) < 1:
        raise BadInput(f"{path}: {key}: too small: {_shorten_value(value)}")
    return round(scaled)


def _shorten_value(value: object, *, quoted: bool = True) -> str:
    """Return an untrusted value as one line of at most 60 characters."""
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'}"
    try:
        text = repr(value) if quoted or not isinstance(value, str) else value
    except ValueError:  # an integer with more digits than Python converts
        return "a number with too many digits"
    return text if len(text) <= 60 else text[:57] + "..."
