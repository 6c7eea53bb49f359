"""Plant a known cause of slowness or memory use in a run, under the name that reports use for the cause.

``base`` defines a run in which the cause is visible: sizes, modelled link, modelled compute.  Options given
with the plant override it.  ``change`` introduces the cause.  Options must contradict neither ``change`` nor
``needs``, or the run would not have the cause.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from operator import attrgetter
from typing import Any

import torch

from zprof.reference_engine.config import Keep
from zprof.reference_engine.program.train_config import TrainConfig, Units, replace_fields

Fields = Mapping[str, Any]

#: A small model on a modelled link with modelled compute behaves on two cores as on a cluster.  With two
#: ranks, the all-gather of a block takes 8 ms on this link and can be hidden by a block's compute.
MODELLED: Fields = {
    "gpt.layers": 4,
    "gpt.hidden": 128,
    "gpt.vocabulary": 64,
    "gpt.context": 16,
    "batch": 4,
    "link.bandwidth_bytes_per_s": 0.4e9 / 8,
    "link.latency_s": 50e-6,
    "compute.forward_s": 0.012,
    "compute.backward_s": 0.024,
}
#: The last block stays gathered, so its backward starts immediately (releasing it is a separate cause).
_STAGE_3: Fields = {**MODELLED, "zero.stage": 3, "zero.keep_after_forward": Keep.LAST}
_MEMORY: Fields = {"zero.stage": 3, "gpt.layers": 4, "gpt.hidden": 128, "batch": 4}
_TWO_OR_MORE = range(2, 1 << 20)
_STRAGGLER_S = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One cause; ``does`` describes the fault.

    ``needs`` lists the fields, with their allowed values, that the cause depends on.  ``fix`` has the fields
    that remove the cause if leaving out ``change`` is not enough.
    """

    cause: str
    effect: str
    base: Fields
    change: Fields = field(default_factory=dict)
    needs: Mapping[str, Collection[Any]] = field(default_factory=dict)
    fix: Fields = field(default_factory=dict)

    @property
    def is_modelled(self) -> bool:
        """True if link and compute are modelled."""
        return any(name.startswith("link.") for name in self.base)

    def apply(self, config: TrainConfig, requested: Fields | None = None) -> TrainConfig:
        """Return the config with the cause planted; fields in ``requested`` override ``base``.

        Raises:
            ValueError: ``requested`` contradicts the cause; the message names the field.
        """
        requested = {} if requested is None else requested
        for name, value in self.change.items():
            if name in requested and requested[name] != value:
                raise ValueError(
                    f"plant {self.cause} sets {name} to {_format_value(value)}; do not set it yourself"
                )
        planted = replace_fields(config, {**self.base, **requested, **self.change, "plant": self.cause})
        for name, allowed in self.needs.items():
            value = attrgetter(name)(planted)
            if value not in allowed:
                choices = (
                    f"{allowed.start} or more"
                    if isinstance(allowed, range)
                    else " or ".join(_format_value(choice) for choice in allowed)
                )
                raise ValueError(f"plant {self.cause} needs {name} {choices}, not {_format_value(value)}")
        return planted

    def build_fixed_config(self, config: TrainConfig, requested: Fields | None = None) -> TrainConfig:
        """Return the config of the same run without the cause, for comparison.

        Raises:
            ValueError: a setting is out of range.
        """
        requested = {} if requested is None else requested
        return replace_fields(config, {**self.base, **requested, **self.fix})


def _format_value(value: object) -> str:
    return str(value).removeprefix("torch.")


PLANTS: tuple[Plant, ...] = (
    Plant(
        cause="straggler_rank",
        effect="the same rank is late in every step",
        base={**_STAGE_3, "compute.straggler_rank": 1, "compute.straggler_s": _STRAGGLER_S},
        fix={"compute.straggler_rank": None, "compute.straggler_s": 0.0},
    ),
    Plant(
        cause="rotating_straggler",
        effect="in each step another rank's host stalls, round robin",
        base={**_STAGE_3, "compute.straggler_s": _STRAGGLER_S},
        change={"compute.straggler_rotates": True},
        fix={"compute.straggler_s": 0.0},
    ),
    Plant(
        cause="low_bus_bandwidth",
        effect="the link of rank 1 runs at a fifth of its speed, and so does the ring",
        base=_STAGE_3,
        change={"link.rank_factors": {1: 5.0}},
    ),
    Plant(
        cause="latency_bound_collectives",
        effect="every collective takes 10 ms before its first byte",
        base=_STAGE_3,
        change={"link.latency_s": 0.010},
    ),
    Plant(
        cause="units_too_small",
        effect="every linear layer, norm and embedding is gathered separately",
        base={**_STAGE_3, "link.latency_s": 0.002},
        change={"units": Units.LAYERS},
        needs={"zero.stage": (1, 2, 3)},
    ),
    Plant(
        cause="single_unit",
        effect="the entire model is gathered at once, before any compute",
        base={**_STAGE_3, "gpt.layers": 8},
        change={"units": Units.MODEL},
        needs={"zero.stage": (3,)},
    ),
    Plant(
        cause="no_prefetch",
        effect="every unit is gathered only when it is needed",
        base=_STAGE_3,
        change={"zero.forward_prefetch": 0, "zero.backward_prefetch": 0},
        needs={"zero.stage": (3,)},
    ),
    Plant(
        cause="cpu_bound_launch",
        effect="the host takes 15 ms before it starts each block's forward and backward",
        base={**_STAGE_3, "compute.forward_s": 0.006, "compute.backward_s": 0.012},
        change={"host.block_delay_s": 0.015},
    ),
    Plant(
        cause="blocking_sync",
        effect="before each block, the host reads a value with .item() and waits for all collectives "
        "in flight",
        base=_STAGE_3,
        change={"host.sync_each_block": True},
    ),
    Plant(
        cause="data_loader",
        effect="the data loader takes 60 ms for each micro-batch",
        base=_STAGE_3,
        change={"host.data_delay_s": 0.060},
    ),
    Plant(
        cause="uneven_shapes",
        effect="the sequences of rank 0 are four times as long as those of the other ranks",
        base=_STAGE_3,
        change={"shortened": 0.75},
        fix={"shortened": 0.75, "evened": True},
    ),
    Plant(
        cause="fp32_reduce",
        effect="parameters are gathered in bfloat16, but gradients are reduced in float32",
        base={**_STAGE_3, "zero.dtype": torch.bfloat16, "link.bandwidth_bytes_per_s": 0.1e9 / 8},
        change={"zero.reduce_dtype": torch.float32},
        needs={"zero.dtype": (torch.bfloat16, torch.float16)},
    ),
    Plant(
        cause="accumulation_syncs",
        effect="gradients are reduced after each micro-batch instead of once per step",
        base={**MODELLED, "zero.stage": 2, "zero.micro_batches": 4, "batch": 8},
        change={"zero.reduce_each_micro_batch": True},
        fix={"zero.reduce_each_micro_batch": False},
        needs={"zero.micro_batches": _TWO_OR_MORE},
    ),
    Plant(
        cause="accumulation_regathers",
        effect="parameters are gathered twice per micro-batch, while gradients are reduced once per step",
        base={**_STAGE_3, "zero.micro_batches": 4, "batch": 8},
        change={"zero.reduce_each_micro_batch": False, "zero.keep_after_forward": Keep.NONE},
        fix={"zero.reduce_each_micro_batch": False, "zero.stage": 2},
        needs={"zero.stage": (3,), "zero.micro_batches": _TWO_OR_MORE},
    ),
    Plant(
        cause="needless_reshard_after_forward",
        effect="a small model is released after the forward and gathered again, on a link too slow to "
        "hide it",
        base={**_STAGE_3, "link.bandwidth_bytes_per_s": 0.12e9 / 8},
        fix={"zero.keep_after_forward": Keep.ALL},
        needs={"zero.stage": (3,)},
    ),
    Plant(
        cause="last_unit_regathered",
        effect="the last block is released after its forward and gathered again immediately",
        base={**_STAGE_3, "gpt.layers": 2},
        change={"zero.keep_after_forward": Keep.NONE},
        fix={"zero.keep_after_forward": Keep.LAST},
        needs={"zero.stage": (3,)},
    ),
    Plant(
        cause="checkpoint_regathers",
        effect="the recomputation of each block gathers it a third time",
        base={**_STAGE_3, "activations.checkpoint": True},
        change={"host.regather_in_recompute": True},
        needs={"zero.stage": (3,), "activations.checkpoint": (True,)},
    ),
    Plant(
        cause="unhidden_optimizer_gather",
        effect="the step ends with an all-gather of all parameters, not overlapped with compute",
        base={**MODELLED, "zero.stage": 1},
        change={"zero.overlap_gather": False},
        needs={"zero.stage": (1, 2)},
    ),
    Plant(
        cause="offload_on_critical_path",
        effect="each checkpoint is copied to host memory and back, 10 ms each way, not overlapped",
        base={**_STAGE_3, "activations.checkpoint": True},
        change={"activations.host": True, "host.checkpoint_copy_s": 0.010},
        needs={"activations.checkpoint": (True,)},
    ),
    Plant(
        cause="retained_gradients",
        effect="full gradients are kept between micro-batches, although gradients are sharded",
        base={**_MEMORY, "zero.stage": 2, "zero.micro_batches": 4, "batch": 8},
        change={"zero.reduce_each_micro_batch": False},
        needs={"zero.stage": (2, 3), "zero.micro_batches": _TWO_OR_MORE},
    ),
    Plant(
        cause="buffers_dominate",
        effect="gradients are reduced in constant buffers of 4 million elements, far larger than the model",
        base=_MEMORY,
        change={"zero.constant_buffers": 1 << 22},
    ),
    Plant(
        cause="activations_dominate",
        effect="long sequences without activation checkpointing",
        base={**_MEMORY, "gpt.context": 512},
        change={"activations.checkpoint": False},
        fix={"activations.checkpoint": True},
    ),
    Plant(
        cause="logits_dominate",
        effect="a vocabulary of 16384 tokens on a small model",
        base={**_MEMORY, "gpt.layers": 1, "gpt.hidden": 32, "gpt.context": 128},
        change={"gpt.vocabulary": 1 << 14},
    ),
    Plant(
        cause="replicated_state",
        effect="every rank keeps all parameters, gradients and optimizer state",
        base={**_MEMORY, "gpt.hidden": 256, "gpt.context": 16},
        change={"zero.stage": 0},
    ),
)


def find_plant(cause: str) -> Plant:
    """Return the plant of a cause.

    Raises:
        ValueError: there is none; the message suggests similar names.
    """
    known = {plant.cause: plant for plant in PLANTS}
    if cause in known:
        return known[cause]
    similar = get_close_matches(cause, known, n=3, cutoff=0.5)
    raise ValueError(
        f"no plant {cause!r}; "
        + (f"did you mean {', '.join(similar)}?" if similar else "--plant list shows all")
    )


def format_plants() -> str:
    """Format all plants, one per line."""
    width = max(len(plant.cause) for plant in PLANTS)
    lines = [
        f"{plant.cause:{width}}  {plant.effect}{' [modelled]' if plant.is_modelled else ''}"
        for plant in PLANTS
    ]
    return "\n".join([*lines, "", "[modelled]: with a modelled link and modelled compute", ""])
