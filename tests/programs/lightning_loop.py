"""Train transformer blocks with Lightning's Trainer on gloo ranks, with DDP or with FSDP2."""

import argparse
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from parts import MOMENTS, SHAPE, STEPS, Truth, count_shards, make_blocks
from plants import ACCUMULATION, Batches, add_plant_option, count_micro_batches, plant_in_blocks
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from walk import walk_torch

RANKS = 2


class Blocks(lightning.LightningModule):
    """The blocks as a module of Lightning; ``micro_batches`` > 0: it accumulates in a loop of its own."""

    def __init__(self, plant: str, is_sharded: bool, micro_batches: int) -> None:
        super().__init__()
        self.blocks, self._plant, self._is_sharded = make_blocks(), plant, is_sharded
        self._own_micro_batches = micro_batches
        self.automatic_optimization = not micro_batches

    def configure_model(self) -> None:
        plant_in_blocks(self._plant, self.trainer.global_rank, self.blocks)
        if self._is_sharded:
            for unit in (*self.blocks, self.blocks):
                fully_shard(unit, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = (self.blocks(batch) - batch).square().mean()
        if self._own_micro_batches:
            self.manual_backward(loss)
            if (index + 1) % self._own_micro_batches == 0:
                optimizer = self.optimizers()
                optimizer.step()
                optimizer.zero_grad()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.blocks.parameters(), lr=1e-4)


class StepCounter(lightning.Callback):
    """Tells the truth when a step is over."""

    def __init__(self, truth: Truth) -> None:
        self._truth, self._done = truth, 0

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self._truth.before_update(lambda: walk_torch(module, optimizer))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: object) -> None:
        if trainer.global_step > self._done:
            self._done = trainer.global_step
            self._truth.step_done(outputs["loss"])


def main() -> None:
    """Train on random tokens, each rank on its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="ddp", choices=["ddp", "fsdp2"])
    parser.add_argument("--micro-batches", type=int, default=1)
    add_plant_option(parser)
    options = parser.parse_args()
    micro_batches = count_micro_batches(options)
    is_sharded, is_planted = options.strategy == "fsdp2", options.plant == ACCUMULATION
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        max_steps=STEPS,
        strategy=ModelParallelStrategy(
            data_parallel_size=RANKS, tensor_parallel_size=1, process_group_backend="gloo"
        )
        if is_sharded
        else DDPStrategy(process_group_backend="gloo"),
        accumulate_grad_batches=1 if is_planted else micro_batches,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    truth = Truth(trainer.global_rank)
    trainer.callbacks.append(StepCounter(truth))
    module = Blocks(options.plant, is_sharded, micro_batches if is_planted else 0)
    rows = [(each.shape[0], each.numel() // each.shape[0]) for each in module.blocks.parameters()]
    torch.manual_seed(trainer.global_rank)
    trainer.fit(module, DataLoader(Batches(options.plant, SHAPE, torch.float32), batch_size=None))
    own = sum(count_shards([length], RANKS if is_sharded else 1) * width for length, width in rows)
    truth.write(trainer.optimizers[0], parameters=4 * own, gradients=4 * own, optimizer_state=MOMENTS * own)


if __name__ == "__main__":
    main()
