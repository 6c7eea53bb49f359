"""The programs that the memory tests train: their ranks, and the bytes of their states."""

from dataclasses import dataclass
from importlib.util import find_spec

#: Bytes and tensors of the fp32 parameters of the transformer and of the small model.
P, TENSORS = 13_686_784, 52
SMALL, SMALL_TENSORS = 1_052_672, 8
#: Elements of the transformer; the engine needs no padding for it, and a step counter for each of 5 units.
PSI, COUNTERS = 3_421_696, 5 * 4
#: Elements that the low-rank additions train: two linear layers in each of 4 blocks.
ADDED = 4 * (4 * 256 * 8 + 8 + 8 * 4 * 256 + 4 * 256)
#: Elements of three feed-forward layers, of which each of two ranks holds half (but for one bias).
TENSOR_PARALLEL = 3 * (256 * 1024 // 2 + 1024 // 2 + 1024 * 256 // 2 + 256)


@dataclass(frozen=True)
class Case:
    """``states``: bytes of parameters, gradients and optimizer state of a rank, if they are known here.

    ``job``: options of ``zprof train``, if that is the program.
    """

    ranks: int
    states: tuple[int, int, int] | None = None
    slow: bool = False
    job: str = ""
    untagged_bytes: int = 0


def adam(size: int, tensors: int) -> tuple[int, int, int]:
    """Return the states of AdamW: two moments, and a step counter for each tensor."""
    return size, size, 2 * size + 4 * tensors


def zero_states(stage: int, ranks: int, kind: str) -> tuple[int, int, int]:
    """Return the states of arXiv 1910.02054, figure 1: 2 psi + 2 psi + 12 psi with 16-bit parameters."""
    sizes = (2, 2, 12) if kind.startswith("bf16") else (4, 4, 8)
    parameters, gradients, optimizer = (
        size * PSI // (ranks if stage >= first else 1) for size, first in zip(sizes, (3, 2, 1), strict=True)
    )
    return parameters, gradients, optimizer + COUNTERS


WHOLE, MLP = adam(P, TENSORS), adam(SMALL, SMALL_TENSORS)
SHARDED = (P // 2, P // 2, P + 4 * TENSORS)

ONE_RANK = {
    "single": Case(1, WHOLE),
    "single_mlp": Case(1, MLP),
    "hidden_tensor": Case(1, MLP, untagged_bytes=2_000_000),
    "averaged_weights": Case(1, MLP, untagged_bytes=SMALL),
    "compiled": Case(1, WHOLE, slow=True),
    "compiled_inductor": Case(1, MLP, slow=True),
    "checkpointing": Case(1, MLP),
    "checkpointing_reentrant": Case(1, MLP, slow=True),
    "retaining": Case(1, MLP),
    "adam_foreach": Case(1, MLP),
    "adam_fused": Case(1, MLP),
    "sgd_momentum": Case(1, (SMALL, SMALL, SMALL)),
    "step_in_backward": Case(1),
    "accumulation": Case(1, MLP),
    "convolution": Case(1),
    "low_rank": Case(1, (P + 4 * ADDED, 4 * ADDED, 8 * ADDED + 4 * 16), slow=True),
}
DDP = {
    f"ddp{kind}": Case(2, WHOLE, slow=kind != "")
    for kind in ("", "_bucket_view", "_static", "_unused", "_accumulation", "_compiled")
}
FSDP2 = {
    f"fsdp2{kind}": Case(2, SHARDED, slow=kind != "")
    for kind in ("", "_bf16", "_accumulation", "_checkpointing", "_kept", "_offload", "_compiled")
}
#: In the default run; the others are slow.
DEFAULT_ENGINE = ("zero1_fp32", "zero2_bf16_modelled", "zero3_bf16")
ENGINE = {
    f"zero{stage}_{kind}": Case(
        2, zero_states(stage, 2, kind), slow=f"zero{stage}_{kind}" not in DEFAULT_ENGINE
    )
    for stage in range(4)
    for kind in ("fp32", "fp32_modelled", "bf16", "bf16_modelled")
}
#: ZeRO-R: partitioned checkpoints (Pa), in host memory, in one chunk (MD), and constant buffers (CB).
SPLIT = "--mp 2 --stage 2 --checkpoint"
BUFFER_ELEMENTS = 65_536
JOBS = {
    "whole": Case(2, job=SPLIT),
    "pa": Case(2, job=f"{SPLIT} --pa"),
    "md": Case(2, job=f"{SPLIT} --defragment", slow=True),
    "pa_md": Case(2, job=f"{SPLIT} --pa --defragment", slow=True),
    "pa_cpu": Case(2, job=f"{SPLIT} --pa --pa-cpu", slow=True),
    "zero3_pa": Case(2, job="--mp 2 --stage 3 --pa", slow=True),
    "zero3_pa_bf16": Case(2, job="--mp 2 --stage 3 --pa --dtype bfloat16", slow=True),
    "cb": Case(2, job=f"--stage 2 --constant-buffers {BUFFER_ELEMENTS}"),
    "cb_larger": Case(2, job=f"--stage 2 --constant-buffers {BUFFER_ELEMENTS} --layers 6", slow=True),
    "no_cb": Case(2, job="--stage 2", slow=True),
}
TWO_RANKS = {
    **DDP,
    **FSDP2,
    **ENGINE,
    **JOBS,
    "tensor_parallel": Case(2, adam(4 * TENSOR_PARALLEL, 3 * 4), slow=True),
}
FOUR_RANKS = {
    "zero2_of_four": Case(4, zero_states(2, 4, "bf16"), slow=True),
    "zero3_of_four": Case(4, zero_states(3, 4, "bf16"), slow=True),
    "zero3_pa_of_four": Case(4, job="--mp 2 --stage 3 --pa", slow=True),
}
MEMORY_CASES = {**ONE_RANK, **TWO_RANKS, **FOUR_RANKS}
# torch's C++ compiler is given the path of torch's libraries without quotes.
if " " in str(getattr(find_spec("torch"), "origin", "")):
    del MEMORY_CASES["compiled_inductor"]
