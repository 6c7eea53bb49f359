"""Train transformer blocks with DeepSpeed's ZeRO, stages 0 to 3, on gloo ranks."""

import argparse
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.distributed as dist
from parts import (
    BATCH,
    MASTER,
    MOMENTS,
    SHAPE,
    Truth,
    count_shards,
    make_blocks,
    split_groups,
)
from plants import add_plant_option, count_micro_batches, iter_batches, plant_in_blocks
from walk import walk_deepspeed

PERSISTENT, BUCKET = 2000, 300_000


def main() -> None:
    """Train on random tokens, each rank on its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--offload", default="none", choices=["none", "optimizer", "parameters", "both"])
    parser.add_argument("--adam", default="torch", choices=["torch", "deepspeed"])
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32", "fp16"])
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--local_rank", type=int, help="given by DeepSpeed's launcher")
    add_plant_option(parser)
    options = parser.parse_args()
    options.micro_batches = count_micro_batches(options)
    deepspeed.init_distributed("gloo")
    model = make_blocks()
    plant_in_blocks(options.plant, dist.get_rank(), model)
    sizes = [parameter.numel() for parameter in model.parameters()]
    groups = split_groups(model, options.groups)
    is_own = options.adam == "torch"  # else DeepSpeed makes the optimizer that its configuration names
    optimizer = choose_adam(options)(groups, lr=1e-4) if is_own else None
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, model_parameters=groups, config=configure(options)
    )
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}[options.dtype]
    truth = Truth(dist.get_rank())
    torch.manual_seed(dist.get_rank())
    batches = iter_batches(options.plant, SHAPE, dtype)

    def run_step() -> torch.Tensor:
        for _ in range(options.micro_batches):
            batch = next(batches)
            loss = (engine(batch) - batch).float().square().mean()
            engine.backward(loss)
            truth.before_update(lambda: walk_deepspeed(engine))
            engine.step()
        if options.evaluate:
            with torch.no_grad():
                engine(next(batches))
        return loss

    truth.train(run_step)
    truth.write(engine, skipped=engine.skipped_steps, **list_states(options, sizes, dtype.itemsize))


def choose_adam(options: argparse.Namespace) -> type[torch.optim.Optimizer]:
    is_on_host = options.offload in ("optimizer", "both")
    return deepspeed.ops.adam.DeepSpeedCPUAdam if is_on_host else torch.optim.AdamW


def configure(options: argparse.Namespace) -> dict[str, object]:
    """Return the configuration as its JSON file would have it."""
    zero: dict[str, object] = {"stage": options.stage, "reduce_bucket_size": BUCKET}
    if options.stage == 3:
        zero |= {"stage3_param_persistence_threshold": PERSISTENT, "stage3_prefetch_bucket_size": BUCKET}
    if options.offload in ("optimizer", "both"):
        zero["offload_optimizer"] = {"device": "cpu"}
    if options.offload in ("parameters", "both"):
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": options.micro_batches,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **({"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}} if options.adam == "deepspeed" else {}),
        **({} if options.dtype == "fp32" else {options.dtype: {"enabled": True}}),
    }


def list_states(options: argparse.Namespace, sizes: list[int], item: int) -> dict[str, int]:
    """Return the closed forms of one rank, by the layout that DeepSpeed documents.

    Parameters are whole in stages 0 to 2. Stages 1 and 2 cut one flat tensor per group, stage 3 each
    parameter. Gradients are those that the update starts from: this rank's part. With an optimizer on the
    host they are copied to fp32, and stages 1 and 2 keep the others only to accumulate. fp32 parameters are
    their own masters in stages 0 and 3.
    """
    ranks, elements = dist.get_world_size(), sum(sizes)
    shard = count_shards(sizes, ranks) if options.stage == 3 else elements // ranks
    own = {0: elements}.get(options.stage, shard)
    is_on_host = options.offload in ("optimizer", "both")
    keeps_own = not is_on_host or options.stage == 3 or options.micro_batches > 1
    has_masters = item < MASTER or options.stage in (1, 2)
    return {
        "parameters": item * (shard if options.stage == 3 else elements),
        "gradients": (item * keeps_own + MASTER * is_on_host) * own,
        "optimizer_state": (MOMENTS + MASTER * has_masters) * own,
    }


if __name__ == "__main__":
    main()
