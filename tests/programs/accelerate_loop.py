"""Train transformer blocks with a loop of accelerate's own, with DDP or as its configuration file says."""

import argparse
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from parts import BATCH, HIDDEN, MASTER, MOMENTS, STEPS, TOKENS, Truth, make_blocks
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train on random tokens, each rank on its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batches", type=int, default=2)
    options = parser.parse_args()
    is_deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
    accelerator = Accelerator(
        cpu=not is_deepspeed,
        gradient_accumulation_steps=options.micro_batches,
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
    )
    blocks = make_blocks()
    elements = sum(parameter.numel() for parameter in blocks.parameters())
    tokens = torch.randn(1, TOKENS, HIDDEN).expand(BATCH * STEPS * options.micro_batches * 2, TOKENS, HIDDEN)
    loader = DataLoader(TensorDataset(tokens), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(
        blocks, torch.optim.AdamW(blocks.parameters(), lr=1e-4), loader
    )
    dtype = next(model.parameters()).dtype
    truth, steps = Truth(accelerator.process_index), 0
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = (model(batch.to(dtype)) - batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            truth.step_done(loss)
            steps += 1
        if steps == STEPS:
            break
    if is_deepspeed:
        own = elements // accelerator.num_processes
        truth.write(
            optimizer, parameters=2 * elements, gradients=2 * own, optimizer_state=(MASTER + MOMENTS) * own
        )
    else:
        truth.write(
            optimizer, parameters=4 * elements, gradients=4 * elements, optimizer_state=MOMENTS * elements
        )


if __name__ == "__main__":
    main()
