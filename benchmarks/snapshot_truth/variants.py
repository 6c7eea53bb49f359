"""The variants of training and inference that a snapshot can come from."""

import random
from dataclasses import dataclass, replace

from benchmarks.snapshot_truth.model_shapes import ModelShape, draw_model


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """What a program does. Sizes in bytes are of an element.

    ``masters``: "" or who keeps fp32 copies ("user", "deepspeed"); ``main_grad``: "", "flat" or "each";
    ``data_parallel``: "", "buckets" or "views"; ``fsdp``: 0, 1 or 2; ``mode``: "train", "forward_only",
    "inference" or "kv_cache".
    """

    variant: str
    model: ModelShape
    optimizer: str
    birth: str
    steps: int
    micro_batches: int
    mode: str = "train"
    param_bytes: int = 4
    act_bytes: int = 4
    has_autocast: bool = False
    masters: str = ""
    main_grad: str = ""
    data_parallel: str = ""
    fsdp: int = 0
    world_size: int = 1
    reduces_bf16: bool = False
    has_lora: bool = False
    frozen_layers: int = 0
    has_reference: bool = False
    has_ema: bool = False
    is_offloaded: bool = False
    is_checkpointed: bool = False
    sets_to_none: bool = True
    zeroes_first: bool = False
    clips: bool = False
    keeps_logits: bool = False
    has_workspace: bool = True
    is_resumed: bool = False
    evaluates: bool = False


#: What each variant sets; a tuple is a choice.
VARIANTS: dict[str, dict[str, object]] = {
    "adamw_foreach": {"optimizer": "adamw_foreach"},
    "adamw_single": {"optimizer": "adamw_single"},
    "adamw_fused": {"optimizer": "adamw_fused"},
    "adamw_handwritten": {"optimizer": ("handwritten", "handwritten_rebind")},
    "pure_bf16": {"optimizer": ("adamw_foreach", "adamw_fused"), "param_bytes": 2, "act_bytes": 2},
    "mixed_masters": {"masters": "user", "param_bytes": 2, "act_bytes": 2},
    "mixed_deepspeed": {
        "masters": "deepspeed",
        "param_bytes": 2,
        "act_bytes": 2,
        "optimizer": "adamw_foreach",
    },
    "megatron_main_grad": {
        "masters": "user",
        "main_grad": ("flat", "each"),
        "param_bytes": 2,
        "act_bytes": 2,
    },
    "autocast": {"has_autocast": True, "act_bytes": 2},
    "sgd": {"optimizer": "sgd"},
    "sgd_momentum": {"optimizer": ("sgd_momentum", "sgd_momentum_single")},
    "adamw_8bit": {"optimizer": "adamw_8bit"},
    "adafactor": {"optimizer": ("adafactor_torch", "adafactor_hf")},
    "muon": {"optimizer": ("muon_torch", "muon_own")},
    "ddp": {"data_parallel": "buckets", "world_size": (2, 4, 8)},
    "ddp_views": {"data_parallel": "views", "world_size": (2, 4, 8)},
    "fsdp1": {"fsdp": 1, "world_size": (2, 3, 4, 8)},
    "fsdp2": {"fsdp": 2, "world_size": (2, 3, 4, 8)},
    "fsdp2_bf16": {"fsdp": 2, "world_size": (2, 4, 8), "act_bytes": 2},
    "lora": {"has_lora": True, "birth": ("pretrained", "to", "device")},
    "partly_frozen": {"frozen_layers": (1, 2)},
    "reference_model": {"has_reference": True},
    "ema": {"has_ema": True},
    "two_models": {"optimizer": ("adamw_foreach", "adamw_single", "sgd_momentum")},
    "tied": {"is_tied": True},
    "cpu_offload": {"is_offloaded": True},
    "checkpointed": {"is_checkpointed": True},
    "inference": {"mode": "inference"},
    "inference_kv_cache": {"mode": "kv_cache"},
    "forward_only": {"mode": "forward_only"},
}
_ADAMS = ("adamw_foreach", "adamw_foreach", "adamw_single", "adamw_fused", "handwritten")


def draw_options(chance: random.Random, variant: str) -> ProgramOptions:
    """Return the options of a random program of a variant."""
    settings = {
        name: chance.choice(value) if isinstance(value, tuple) else value
        for name, value in VARIANTS[variant].items()
    }
    model = draw_model(chance)
    if settings.get("fsdp") or settings.get("has_lora") or settings.get("frozen_layers"):
        model = replace(model, is_tied=False)
    if settings.pop("is_tied", False):
        model = replace(model, is_tied=True)
    if settings.get("mode") == "kv_cache":
        model = replace(model, batch=min(model.batch, 2))
    options = ProgramOptions(
        variant=variant,
        model=model,
        optimizer=chance.choice(_ADAMS),
        birth=chance.choice(("to", "to", "device", "pretrained")),
        steps=chance.randint(2, 4),
        micro_batches=chance.choice((1, 1, 2, 3)),
        sets_to_none=chance.random() < 0.8,
        zeroes_first=chance.random() < 0.4,
        clips=chance.random() < 0.5,
        keeps_logits=chance.random() < 0.5,
        has_workspace=chance.random() < 0.8,
        is_resumed=chance.random() < 0.15,
        evaluates=chance.random() < 0.1,
    )
    return replace(options, **settings)  # type: ignore[arg-type]
