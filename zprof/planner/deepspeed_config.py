"""Read a ``ds_config.json`` of DeepSpeed: ZeRO stage, batch, precision, optimizer, offload, buffers.

Keys that change neither memory nor time are ignored, and so are unknown keys. Sources: DeepSpeed's
configuration page (deepspeed.ai/docs/config-json) and ``deepspeed/runtime/zero/config.py``. The values that
transformers puts in place of ``"auto"`` are from its DeepSpeed page.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, shorten
from zprof.model.layout import ComputePrecision, EngineBuffers, OptimizerKind
from zprof.planner.stated_files import name_parse_error, read_stated_file

#: Configurations have a few hundred lines.
MAX_FILE_BYTES = 256 * 1024
_MAX_COUNT, _MAX_ELEMENTS = 10**6, 10**15
_AUTO = "auto"
#: Key of ``zero_optimization``: field of :class:`EngineBuffers`.
_BUFFERS: Mapping[str, str] = {
    "reduce_bucket_size": "reduce_bucket_elements",
    "allgather_bucket_size": "allgather_bucket_elements",
    "stage3_prefetch_bucket_size": "prefetch_bucket_elements",
    "stage3_max_live_parameters": "max_live_elements",
    "stage3_max_reuse_distance": "max_reuse_distance_elements",
    "stage3_param_persistence_threshold": "persistence_threshold_elements",
}
#: ``"auto"``: elements from the hidden size, as transformers sets them.
_AUTO_ELEMENTS: Mapping[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: hidden * hidden * 9 // 10,
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
_OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "adam": OptimizerKind.ADAM,
    "adamw": OptimizerKind.ADAM,
    "lamb": OptimizerKind.ADAM,
    "onebitadam": OptimizerKind.ADAM,
    "zerooneadam": OptimizerKind.ADAM,
    "adagrad": OptimizerKind.MOMENTUM,
    "lion": OptimizerKind.MOMENTUM,
    "muon": OptimizerKind.MUON,
    "sgd": OptimizerKind.SGD,
}
_OFFLOAD_DEVICES = ("none", "cpu", "nvme")


class DeepspeedConfig(Struct, frozen=True, kw_only=True):
    """The settings of a file; None: not in the file, or ``"auto"``.

    ``global_batch``: samples of a step over all devices. ``shard``: ranks that share the states (MiCS).
    ``fp32_reduce``: gradients are reduced in fp32. ``auto_keys``: keys with the value ``"auto"``.
    """

    stage: int
    precision: ComputePrecision
    micro_batch: int | None = None
    micro_batches: int | None = None
    global_batch: int | None = None
    optimizer: OptimizerKind | None = None
    offload_optimizer: bool = False
    offload_parameters: bool = False
    shard: int | None = None
    fp32_reduce: bool = False
    buffers: EngineBuffers = EngineBuffers()
    auto_keys: tuple[str, ...] = ()

    def fill_auto_buffers(self, hidden: int) -> EngineBuffers:
        """Return the buffers, with those that are ``"auto"`` as transformers derives them from the width."""
        found = {_BUFFERS[key]: size(hidden) for key, size in _AUTO_ELEMENTS.items() if key in self.auto_keys}
        return replace(self.buffers, **found)


def read_deepspeed_config(path: Path) -> DeepspeedConfig:
    """Return the settings of a file.

    Raises:
        BadInput: the file is unreadable, too large or not a JSON object, or a value has the wrong type or is
            out of range. The message is one line with the file and the key.
    """
    table = _Table(path, "", _parse_json(path))
    zero = table.get_table("zero_optimization")
    stage = zero.get_integer("stage", max_value=3, min_value=0) or 0
    buffers: dict[str, Any] = {
        field: value
        for key, field in _BUFFERS.items()
        if (value := zero.get_integer(key, max_value=_MAX_ELEMENTS, min_value=0)) is not None
    }
    overlap = zero.get_flag("overlap_comm")
    optimizer = table.get_table("optimizer").get_word("type")
    return DeepspeedConfig(
        stage=stage,
        precision=_read_precision(table),
        micro_batch=table.get_integer("train_micro_batch_size_per_gpu", max_value=_MAX_COUNT),
        micro_batches=table.get_integer("gradient_accumulation_steps", max_value=_MAX_COUNT),
        global_batch=table.get_integer("train_batch_size", max_value=_MAX_COUNT),
        optimizer=_find_optimizer(path, optimizer),
        offload_optimizer=_is_offloaded(zero, "offload_optimizer") or bool(zero.get_flag("cpu_offload")),
        offload_parameters=_is_offloaded(zero, "offload_param"),
        shard=zero.get_integer("mics_shard_size", max_value=_MAX_COUNT, min_value=-1, unset=-1),
        fp32_reduce=table.get_word("communication_data_type") in ("fp32", "float32"),
        buffers=EngineBuffers(**buffers, overlap_comm=stage == 3 if overlap is None else overlap),
        auto_keys=tuple(table.auto_keys),
    )


def _read_precision(table: "_Table") -> ComputePrecision:
    """Return the type of the matrices; without a 16-bit block it is fp32."""
    for key, precision in (("bf16", ComputePrecision.BF16), ("fp16", ComputePrecision.FP16)):
        block = table.get_table(key)
        if block.get_flag("enabled"):
            return precision
    is_auto = any(key.endswith("16.enabled") for key in table.auto_keys)
    return ComputePrecision.BF16 if is_auto else ComputePrecision.FP32


def _find_optimizer(path: Path, name: str | None) -> OptimizerKind | None:
    if name is None:
        return None
    found = _OPTIMIZERS.get(name.lower())
    if found is None:
        raise BadInput(
            f"{path}: optimizer.type: {_show(name)} is not known",
            hint=f"one of {', '.join(_OPTIMIZERS)}; or remove it and use --optimizer",
        )
    return found


def _is_offloaded(zero: "_Table", key: str) -> bool:
    device = zero.get_table(key).get_word("device", choices=_OFFLOAD_DEVICES)
    return device not in (None, "none")


def _parse_json(path: Path) -> Mapping[str, Any]:
    content = read_stated_file(path, max_bytes=MAX_FILE_BYTES, what="a DeepSpeed configuration")
    try:
        found = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not valid JSON: {name_parse_error(error)}") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path}: not a JSON object", hint="give a ds_config.json of DeepSpeed")
    return found


class _Table:
    """A JSON object of the file; ``"auto"`` counts as missing, and its key is collected."""

    def __init__(
        self, path: Path, prefix: str, values: Mapping[str, Any], auto_keys: list[str] | None = None
    ) -> None:
        self.auto_keys: list[str] = [] if auto_keys is None else auto_keys
        self._path, self._prefix, self._values = path, prefix, values

    def get_table(self, key: str) -> "_Table":
        """Return an object below this one, empty if the key is missing."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._refuse(key, value, "must be an object")
        return _Table(self._path, f"{self._prefix}{key}.", value or {}, self.auto_keys)

    def get_integer(
        self, key: str, *, max_value: int, min_value: int = 1, unset: int | None = None
    ) -> int | None:
        """Return a number; JSON writes ``5e8`` as a float. ``unset``: the value that stands for none."""
        value = self._get(key)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not min_value <= value <= max_value or value != int(value):
            raise self._refuse(key, value, f"must be an integer from {min_value:g} to {max_value:g}")
        return None if value == unset else int(value)

    def get_flag(self, key: str) -> bool | None:
        """Return True or False."""
        value = self._get(key)
        if value is not None and not isinstance(value, bool):
            raise self._refuse(key, value, "must be true or false")
        return value

    def get_word(self, key: str, *, choices: Sequence[str] = ()) -> str | None:
        """Return a text, one of the choices if there are any."""
        value = self._get(key)
        if value is not None and (not isinstance(value, str) or (choices and value not in choices)):
            raise self._refuse(key, value, f"must be {', '.join(choices) or 'text'}")
        return value

    def _get(self, key: str) -> Any:
        value = self._values.get(key)
        if value != _AUTO:
            return value
        name = self._prefix.removeprefix("zero_optimization.") + key
        if name not in self.auto_keys:
            self.auto_keys.append(name)
        return None

    def _refuse(self, key: str, value: object, rule: str) -> BadInput:
        return BadInput(f"{self._path}: {self._prefix}{key}: {rule}, not {_show(value)}")


def _show(value: object) -> str:
    """Return an untrusted value as one line of at most 60 characters."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    try:
        return shorten(printable(json.dumps(value)), 60)
    except ValueError:  # an integer with more digits than Python converts
        return "a number with too many digits"
