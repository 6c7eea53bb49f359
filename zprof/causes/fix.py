"""Choose the form of a fix that suits the run: its framework and engine, with the run's own sizes.

A cause defines its fix once: a form per engine, and the settings of the frameworks around the engines. A run
of a known engine gets only that engine's form. The reference engine gets the FSDP2 form too, for readers of
the demonstration.
"""

from collections.abc import Mapping
from math import ceil, floor, log10
from string import Template

import numpy as np
from msgspec import Struct, field

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.facts import read_declared_engine
from zprof.analysis.time.host_time import count_processors_per_rank
from zprof.model.collectives import CollectiveKind
from zprof.model.training import ENGINE_TITLES, Engine, Framework

#: Engines tried if the run's engine is unknown, for runs that gather and for runs that do not.
_LIKELY_IF_GATHERING = (Engine.FSDP2, Engine.DEEPSPEED, Engine.DDP, Engine.PYTORCH)
_LIKELY_IF_REDUCING = (Engine.DDP, Engine.PYTORCH, Engine.DEEPSPEED, Engine.FSDP2)
#: Forms listed for an unknown engine.
_MAX_FORMS = 2
#: Settings of a framework around any engine.
ANY = None


class Fix(Struct, frozen=True, kw_only=True):
    """What to change, by engine; ``$name`` in a text stands for one of the run's numbers.

    ``settings``: the same change as a setting of a framework, around one engine or ``ANY``. ``general``: for
    engines without a specific form.
    """

    forms: Mapping[Engine, str]
    settings: Mapping[tuple[Framework, Engine | None], str] = field(default_factory=dict)
    general: str = ""


def choose_fix(analysis: RunAnalysis, fix: Fix, numbers: Mapping[str, object] | None = None) -> str:
    """Return the text of a fix for the run's framework and engine; see the module's docstring."""
    engine = _get_engine(analysis)
    framework = analysis.training.framework
    text = None
    if framework is not None:
        text = fix.settings.get((framework, engine)) or fix.settings.get((framework, ANY))
    kinds = analysis.collectives.texts("kind") if len(analysis.collectives) else None
    gathers = kinds is None or bool(kinds.equals(CollectiveKind.ALL_GATHER.value).any())
    text = text or _choose_form(fix, engine, gathers=gathers)
    return Template(text).safe_substitute({**measure_sizes(analysis), **(numbers or {})})


def is_on_cpu(analysis: RunAnalysis) -> bool:
    """Return True if the ranks compute on CPUs: a fix then mentions cores and threads, not GPUs."""
    return analysis.run.device == "cpu"


def keeps_parameters(analysis: RunAnalysis) -> bool:
    """Return True if the engine never gathers units: each rank keeps all parameters."""
    return _get_engine(analysis) in (Engine.DDP, Engine.ZERO1)


def _get_engine(analysis: RunAnalysis) -> Engine | None:
    return analysis.engine or read_declared_engine(analysis.training)


def _choose_form(fix: Fix, engine: Engine | None, *, gathers: bool) -> str:
    forms = fix.forms
    own = forms.get(engine) if engine is not None else None
    if engine is Engine.REFERENCE and Engine.FSDP2 in forms:
        title = f"{ENGINE_TITLES[Engine.FSDP2]}:"
        return "\n".join(filter(None, (own, title, forms[Engine.FSDP2])))
    if own is not None or fix.general:
        return own or fix.general
    order = _LIKELY_IF_GATHERING if gathers else _LIKELY_IF_REDUCING
    listed = [each for each in order if each in forms][:_MAX_FORMS]
    if len(listed) == 1:
        return forms[listed[0]]
    return "\n".join(f"{ENGINE_TITLES[each]}:\n{forms[each]}" for each in listed)


_MIB = 1 << 20
#: Sizes if the run has no large message: the defaults of DeepSpeed and DDP.
_DEFAULT_ELEMENTS, _DEFAULT_BUCKET_BYTES = 50_000_000, 25 * _MIB
_DEFAULT_ITEM_BYTES = 2
#: Smaller messages are metrics and norms, not parameters or gradients.
_MIN_MESSAGE_BYTES = 1 << 16
_REDUCTIONS = (CollectiveKind.REDUCE_SCATTER.value, CollectiveKind.ALL_REDUCE.value)


def measure_sizes(analysis: RunAnalysis, times: float = 1.0) -> dict[str, int | str]:
    """Return sizes for fixes: the run's typical large messages, multiplied by ``times``.

    ``gather_elements`` and ``reduce_elements`` are in elements, ``bucket_mib`` in MiB, rounded up.
    ``live_elements`` are four gathers, ``deeper_elements`` two. ``device`` is a torch device type.
    """
    gathered = _find_message_bytes(analysis, (CollectiveKind.ALL_GATHER.value,))
    reduced = _find_message_bytes(analysis, _REDUCTIONS)
    facts = analysis.training
    item = facts.communication_bytes or facts.parameter_bytes or _DEFAULT_ITEM_BYTES
    one = round_up(times * gathered / item) if gathered else _DEFAULT_ELEMENTS
    return {
        "gather_elements": one,
        "deeper_elements": 2 * one,
        "live_elements": 4 * one,
        "reduce_elements": round_up(times * reduced / (facts.reduction_bytes or item))
        if reduced
        else _DEFAULT_ELEMENTS,
        "bucket_mib": max(1, round_up(times * (reduced or _DEFAULT_BUCKET_BYTES) / _MIB)),
        "micro_batches": max(2, facts.micro_batches),
        "device": "cpu" if is_on_cpu(analysis) else "cuda",
        **_choose_workers(analysis),
    }


#: Recommended data loader workers if the number of processors is unknown, and the maximum.
_DEFAULT_WORKERS, _MAX_WORKERS = 4, 8
#: Batches to keep ready over all workers; each worker keeps two by default.
_READY_BATCHES, _DEFAULT_PREFETCH = 4, 2


def _choose_workers(analysis: RunAnalysis) -> dict[str, int | str]:
    """Return as many workers as the processors allow; pinned memory only with a device.

    One processor of each rank is left to its training thread.
    """
    processors = count_processors_per_rank(analysis)
    workers = min(_MAX_WORKERS, max(1, processors - 1)) if processors else _DEFAULT_WORKERS
    factor = -(-_READY_BATCHES // workers)
    prefetch = f"prefetch_factor={factor}" if factor > _DEFAULT_PREFETCH else ""
    on_cpu = is_on_cpu(analysis)
    return {
        "workers": workers,
        "prefetch": f", {prefetch}" if prefetch else "",
        "trainer_prefetch": f", dataloader_{prefetch}" if prefetch else "",
        "pinned": "" if on_cpu else ", pin_memory=True",
        "trainer_pinned": "" if on_cpu else ", dataloader_pin_memory=True",
        # a framework moves the batches itself
        "to_device": ""
        if on_cpu or analysis.training.framework is not None
        else "batch.to(device, non_blocking=True); ",
    }


def _find_message_bytes(analysis: RunAnalysis, kinds: tuple[str, ...]) -> float:
    """Return the median size of messages of at least half the largest size; 0 if no message is large."""
    rows = analysis.collectives
    if not len(rows):
        return 0.0
    sizes = rows.ints("bytes")[rows.texts("kind").equals(*kinds)]
    large = sizes[sizes >= max(_MIN_MESSAGE_BYTES, sizes.max(initial=0) / 2)]
    return float(np.median(large)) if len(large) else 0.0


def round_up(value: float) -> int:
    """Return the value rounded up to two significant digits; at least 1."""
    if value <= 1:
        return 1
    unit = 10 ** max(0, floor(log10(value)) - 1)
    return int(ceil(value / unit) * unit)


_TRANSFORMERS_BLOCKS = 'TrainingArguments(fsdp_config={"transformer_layer_cls_to_wrap": ["Block"]})'
#: A change that several causes share, as settings of the frameworks.
WRAP_BLOCKS: Mapping[tuple[Framework, Engine | None], str] = {
    (Framework.TRANSFORMERS, Engine.FSDP2): _TRANSFORMERS_BLOCKS,
    (Framework.TRANSFORMERS, Engine.FSDP1): _TRANSFORMERS_BLOCKS,
    (Framework.ACCELERATE, Engine.FSDP2): "FullyShardedDataParallelPlugin(fsdp_version=2,\n"
    '    auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"])',
    (Framework.ACCELERATE, Engine.FSDP1): "FullyShardedDataParallelPlugin(\n"
    '    auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"])',
    (Framework.LIGHTNING, Engine.FSDP1): "FSDPStrategy(auto_wrap_policy={Block})",
}
_MIN_PARAMETERS = 'TrainingArguments(fsdp_config={"min_num_params": $gather_elements})'
_PLUGIN_MIN_PARAMETERS = 'auto_wrap_policy="size_based_wrap", min_num_params=$gather_elements)'
FEWER_UNITS: Mapping[tuple[Framework, Engine | None], str] = {
    (Framework.TRANSFORMERS, Engine.FSDP2): _MIN_PARAMETERS,
    (Framework.TRANSFORMERS, Engine.FSDP1): _MIN_PARAMETERS,
    (Framework.ACCELERATE, Engine.FSDP2): "FullyShardedDataParallelPlugin(fsdp_version=2,\n"
    f"    {_PLUGIN_MIN_PARAMETERS}",
    (Framework.ACCELERATE, Engine.FSDP1): f"FullyShardedDataParallelPlugin(\n    {_PLUGIN_MIN_PARAMETERS}",
}
BUCKET_SIZE: Mapping[tuple[Framework, Engine | None], str] = {
    (Framework.TRANSFORMERS, Engine.DDP): "TrainingArguments(ddp_bucket_cap_mb=$bucket_mib)",
    (Framework.ACCELERATE, Engine.DDP): "DistributedDataParallelKwargs(bucket_cap_mb=$bucket_mib)",
    (Framework.LIGHTNING, Engine.DDP): "DDPStrategy(bucket_cap_mb=$bucket_mib)",
}
KEEP_AFTER_FORWARD: Mapping[tuple[Framework, Engine | None], str] = {
    (Framework.TRANSFORMERS, Engine.FSDP2): 'TrainingArguments(fsdp_config={"reshard_after_forward": False})',
    (Framework.TRANSFORMERS, Engine.FSDP1): 'TrainingArguments(fsdp="shard_grad_op auto_wrap")',
    (
        Framework.ACCELERATE,
        Engine.FSDP2,
    ): "FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=False)",
    (Framework.ACCELERATE, Engine.FSDP1): 'FullyShardedDataParallelPlugin(sharding_strategy="SHARD_GRAD_OP")',
    (Framework.LIGHTNING, Engine.FSDP1): 'FSDPStrategy(sharding_strategy="SHARD_GRAD_OP")',
}
_TRAINER_CHECKPOINT = 'TrainingArguments(fsdp_config={"activation_checkpointing": True})'
CHECKPOINT_BLOCKS: Mapping[tuple[Framework, Engine | None], str] = {
    (Framework.TRANSFORMERS, Engine.FSDP2): _TRAINER_CHECKPOINT,
    (Framework.TRANSFORMERS, Engine.FSDP1): _TRAINER_CHECKPOINT,
    (
        Framework.ACCELERATE,
        Engine.FSDP2,
    ): "FullyShardedDataParallelPlugin(fsdp_version=2, activation_checkpointing=True)",
    (Framework.ACCELERATE, Engine.FSDP1): "FullyShardedDataParallelPlugin(activation_checkpointing=True)",
    (Framework.LIGHTNING, Engine.FSDP1): "FSDPStrategy(activation_checkpointing_policy={Block})",
}
LOAD_AHEAD = Fix(
    forms={},
    settings={
        (Framework.TRANSFORMERS, ANY): "TrainingArguments(dataloader_num_workers=$workers$trainer_prefetch,\n"
        "                  dataloader_persistent_workers=True$trainer_pinned)\n"
        "move decoding and tokenizing out of the loop",
    },
    general="DataLoader(..., num_workers=$workers$prefetch,\n"
    "           persistent_workers=True$pinned)\n"
    "${to_device}move decoding and tokenizing out of the loop",
)
