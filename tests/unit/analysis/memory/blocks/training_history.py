"""The history of a small training program whose owners are known: as on CUDA, the backward has no frames."""

from dataclasses import dataclass, field
from typing import Any

from tests.support.snapshots import MIB, Allocator

TORCH = "/venv/lib/python3.11/site-packages/torch/"
Frames = list[dict[str, Any]]


def at(file: str, function: str) -> dict[str, Any]:
    return {"filename": file, "line": 7, "name": function}


MAIN = at("/home/user/train.py", "main")
CALL = at(TORCH + "nn/modules/module.py", "_call_impl")
FORWARD: Frames = [at(TORCH + "nn/functional.py", "linear"), at("/home/user/model.py", "forward"), CALL, MAIN]
WRAPPER = at(TORCH + "optim/optimizer.py", "wrapper")
STEP: Frames = [at(TORCH + "optim/adamw.py", "_multi_tensor_adamw"), WRAPPER, MAIN]
STATE: Frames = [
    at(TORCH + "optim/adam.py", "_init_group"),
    at(TORCH + "optim/adam.py", "step"),
    WRAPPER,
    MAIN,
]
TO_DEVICE: Frames = [
    at(TORCH + "nn/modules/module.py", "convert"),
    at(TORCH + "nn/modules/module.py", "_apply"),
    MAIN,
]
RECOMPUTE: Frames = [
    at(TORCH + "nn/functional.py", "linear"),
    CALL,
    at(TORCH + "utils/checkpoint.py", "recompute_fn"),
    at(TORCH + "utils/checkpoint.py", "unpack_hook"),
]
ALL_GATHER: Frames = [
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", "allocate"),
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_all_gather"),
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_param_group.py", "unshard"),
    CALL,
    MAIN,
]
REDUCE: Frames = [
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce"),
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_param_group.py", "post_backward"),
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_param_group.py", "backward"),
]
BUCKETS: Frames = [
    at(TORCH + "nn/parallel/distributed.py", "_ddp_init_helper"),
    at(TORCH + "nn/parallel/distributed.py", "__init__"),
    MAIN,
]
BARE: Frames = []


@dataclass
class Training:
    """Runs steps; ``last`` has the addresses of the newest blocks by what they truly are."""

    allocator: Allocator = field(default_factory=Allocator)
    fused: bool = False
    last: dict[str, list[int]] = field(default_factory=dict)
    parameters: list[int] = field(default_factory=list)
    state: list[int] = field(default_factory=list)
    layers: int = 3

    def alloc(self, size: int, frames: Frames, **more: Any) -> int:
        self.allocator.tick(10)
        return self.allocator.alloc(size, frames=frames, **more)

    def free(self, addresses: list[int]) -> None:
        for address in addresses:
            self.allocator.tick(10)
            self.allocator.free(address)

    def build(self) -> None:
        self.allocator.begin_history()
        self.parameters = [self.alloc(4 * MIB, TO_DEVICE) for _ in range(self.layers)]

    def forward(self) -> list[int]:
        saved = []
        for _ in range(self.layers):
            workspace = self.alloc(2 * MIB, FORWARD)
            saved.append(self.alloc(3 * MIB, FORWARD))
            self.free([workspace])
        self.last["workspace"] = [workspace]
        return saved

    def backward(self, saved: list[int]) -> list[int]:
        gradients = []
        for activation in reversed(saved):
            flowing = self.alloc(3 * MIB, BARE)
            gradients.append(self.alloc(4 * MIB, BARE))
            self.free([flowing, activation])
        self.last["act_grad"] = [flowing]
        return gradients

    def optimize(self) -> None:
        if not self.state:
            self.state = [self.alloc(4 * MIB, STATE) for _ in range(2 * self.layers)]
        if not self.fused:
            temporary = [self.alloc(4 * MIB, STEP) for _ in range(self.layers)]
            self.last["temporary"] = temporary
            self.free(temporary)

    def step(self) -> None:
        saved = self.forward()
        gradients = self.backward(saved)
        self.optimize()
        self.free(gradients)
        self.last |= {"saved": saved, "gradients": gradients}
