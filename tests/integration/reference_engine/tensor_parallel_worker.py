"""One rank of a mesh: trains, and writes losses, bytes and digests."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zprof.reference_engine import ZeroConfig, ZeroModel, zero
from zprof.reference_engine.activation_checkpointing import ActivationConfig, make_block_runner
from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.comm.mesh import Mesh, make_mesh
from zprof.reference_engine.comm.modelled import LinkModel, ModelledComm
from zprof.reference_engine.comm.native import NativeComm
from zprof.reference_engine.program.data import make_global_batch, take_rank_slice
from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.tensor_parallel import SPLIT_MARK


def transport(case: dict[str, Any]) -> Callable[[dist.ProcessGroup | None], Comm]:
    if case.get("link") is None:
        return NativeComm
    return lambda group: ModelledComm(LinkModel(**case["link"]), group)


def run(case: dict[str, Any]) -> dict[str, Any]:
    groups = len(dist.distributed_c10d._world.pg_map)
    mesh = make_mesh(transport(case), dp=case["dp"], mp=case["mp"])
    try:
        results = trained(case, mesh)
    finally:
        mesh.close()
    return results | {"groups_left": len(dist.distributed_c10d._world.pg_map) - groups}


def trained(case: dict[str, Any], mesh: Mesh) -> dict[str, Any]:
    gpt = GPTConfig(**case["gpt"])
    config = ZeroConfig(**case["zero"])
    torch.manual_seed(0)
    runner = make_block_runner(ActivationConfig(**case["activations"]), blocks=gpt.layers, mp=mesh.mp)
    model, optimizer = zero(GPT(gpt, mesh.mp, runner), config, mesh.dp, mp=mesh.mp)
    losses, moved, forward_bytes = [], [], []
    for step in range(case["steps"]):
        before = dict(mesh.mp.moved)
        optimizer.zero_grad()
        loss = 0.0
        for tokens in micro_batches(case, gpt, mesh, step, config.micro_batches):
            if case["measured"]:
                one, left_bytes = measured(lambda tokens=tokens: model(tokens[:, :-1], tokens[:, 1:]))
                forward_bytes.append(left_bytes)
            else:
                one = model(tokens[:, :-1], tokens[:, 1:])
            one.backward()
            loss += float(one.detach()) / config.micro_batches
        optimizer.step()
        losses.append(loss)
        moved.append({kind: count - before.get(kind, 0) for kind, count in mesh.mp.moved.items()})
    return {
        "losses": losses,
        "moved": moved,
        "forward_bytes": forward_bytes,
        "place": [mesh.dp_index, mesh.mp_index, mesh.dp.rank, mesh.mp.rank],
        "digests": digests(model),
    }


def micro_batches(case: dict[str, Any], gpt: GPTConfig, mesh: Mesh, step: int, count: int) -> Any:
    tokens = make_global_batch(
        seed=0, step=step, batch=case["batch"], time=gpt.context, vocabulary=gpt.vocabulary
    )
    return take_rank_slice(tokens, rank=mesh.dp_index, ranks=mesh.dp_size).chunk(count)


class Born(TorchDispatchMode):
    """The storages that operators make: memory of torch's allocator, not memory that was there before."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {address(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and address(leaf) not in given:
                storage = leaf.untyped_storage()
                self._storages[address(leaf)] = StorageWeakRef(storage), storage.nbytes()
        return result

    def alive_bytes(self) -> int:
        return sum(size for storage, size in self._storages.values() if not storage.expired())


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def measured(forward: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int]:
    """The loss, and the bytes that a forward has made and that live on after it."""
    born = Born()
    with born:
        loss = forward()
    # gloo's threads may be the last to hold a tensor that was reduced; what they still hold can only go.
    for _ in range(20):
        dist.barrier()
    return loss, born.alive_bytes()


def digests(model: ZeroModel) -> dict[str, dict[str, str]]:
    """Of every parameter, to compare to the bit: the split ones, and those that all ranks have whole."""
    table: dict[str, dict[str, str]] = {"split": {}, "whole": {}}
    with model.gathered() as module:
        for name, parameter in module.named_parameters():
            digest = hashlib.sha256(parameter.detach().clone().view(torch.uint8).numpy().tobytes())
            table["split" if hasattr(parameter, SPLIT_MARK) else "whole"][name] = digest.hexdigest()
    return table
