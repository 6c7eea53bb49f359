"""The programs that the memory tests train, by the number of ranks; see ``memory_worker.py``."""

from importlib.util import find_spec

#: torch's C++ compiler is given the path of torch's libraries without quotes.
INDUCTOR = [] if " " in str(getattr(find_spec("torch"), "origin", "")) else ["compiled_inductor"]
OPTIMIZERS = ["adam_foreach", "adam_single", "adam_fused", "sgd_momentum"]
ALONE = ["zero0_alone", "zero3_alone"]
ONE_RANK = [
    "single_mlp", "single", "single_checkpointing", "compiled", *INDUCTOR, "other_checkpointing",
    "reentrant_checkpointing", "retaining", *OPTIMIZERS, "autocast", "save_on_cpu", "step_in_backward",
    "accumulation", "convolution", "low_rank", *ALONE,
]  # fmt: skip
#: Programs that keep a tensor of which neither model, optimizer nor autograd knows.
HIDING = ["hidden_tensor", "averaged_weights"]

ZERO = [f"zero{stage}_{kind}" for stage in range(4) for kind in ("fp32", "bf16_modelled")]
ENGINE_OF_TWO = [*ZERO, "zero2_fp32_modelled", "zero3_fp32_modelled", "zero3_bf16"]
PARTITIONED = [*(f"zero{stage}_pa" for stage in range(4)), "zero3_pa_bf16"]
DDP = ["ddp", "ddp_bucket_view", "ddp_static", "ddp_unused", "ddp_accumulation", "ddp_compiled"]
FSDP2 = [
    "fsdp2", "fsdp2_bf16", "fsdp2_checkpointing", "fsdp2_kept", "fsdp2_accumulation", "fsdp2_offload",
    "fsdp2_compiled",
]  # fmt: skip
TWO_RANKS = [
    *DDP, *FSDP2, "sketch_zero3", "tensor_parallel", "redundancy_free", *ENGINE_OF_TWO, *PARTITIONED,
]  # fmt: skip
FOUR_RANKS = ["zero2_of_four", "zero3_of_four", "zero3_pa_of_four"]

ENGINE = [*ALONE, *ENGINE_OF_TWO, *PARTITIONED, *FOUR_RANKS]
PROGRAMS = [*ONE_RANK, *TWO_RANKS, *FOUR_RANKS]
