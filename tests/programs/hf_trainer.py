"""Train a small GPT-2 with the Hugging Face Trainer on gloo ranks, sharded or not."""

import argparse
import os
import tempfile
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from parts import MASTER, MOMENTS, STEPS, Truth, count_shards
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

BATCH, TOKENS, WORDS, WIDTH = 4, 64, 1000, 256
BUCKET, PERSISTENT = 300_000, 2000


class RandomTokens(Dataset[dict[str, torch.Tensor]]):
    """Sequences of random tokens."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(WORDS, (TOKENS,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class StepCounter(TrainerCallback):
    """Tells the truth when a step is over."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.truth.step_done(float(state.global_step))


def main() -> None:
    """Train on random tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sharding", default="ddp", choices=["ddp", "deepspeed2", "deepspeed3"])
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    is_deepspeed = options.sharding.startswith("deepspeed")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=BATCH, use_cpu=True,
            gradient_accumulation_steps=options.micro_batches, ddp_backend="gloo", report_to=[],
            save_strategy="no", disable_tqdm=True, optim="adamw_torch", bf16=is_deepspeed,
            eval_strategy="steps" if options.evaluate else "no", eval_steps=1, **configure(options.sharding),
        )  # fmt: skip
        config = GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=4, n_head=4, n_positions=TOKENS)
        model = GPT2LMHeadModel(config)
        truth = Truth(arguments.process_index)
        sizes = [parameter.numel() for parameter in model.parameters()]
        data = RandomTokens()
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=data,
            eval_dataset=torch.utils.data.Subset(data, range(8)),
            callbacks=[StepCounter(truth)],
        )
        trainer.train()
        truth.write(trainer.optimizer, **list_states(options.sharding, sizes, arguments.world_size))


def configure(sharding: str) -> dict[str, Any]:
    """Return the arguments of a kind of sharding."""
    if sharding == "ddp":
        return {}
    zero = {"stage": int(sharding[-1]), "reduce_bucket_size": BUCKET, "overlap_comm": False}
    if sharding == "deepspeed3":
        zero |= {"stage3_prefetch_bucket_size": BUCKET, "stage3_param_persistence_threshold": PERSISTENT}
    return {
        "deepspeed": {
            "zero_optimization": zero,
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "bf16": {"enabled": "auto"},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
    }


def list_states(sharding: str, sizes: list[int], ranks: int) -> dict[str, int]:
    """Return the closed forms of one rank, for DDP and DeepSpeed."""
    elements = sum(sizes)
    if sharding == "ddp":
        return {"parameters": 4 * elements, "gradients": 4 * elements, "optimizer_state": MOMENTS * elements}
    if sharding == "deepspeed2":
        own = elements // ranks
        return {"parameters": 2 * elements, "optimizer_state": (MASTER + MOMENTS) * own}
    if sharding == "deepspeed3":
        own = count_shards(sizes, ranks)
        return {"parameters": 2 * own, "gradients": 2 * own, "optimizer_state": (MASTER + MOMENTS) * own}
    raise ValueError(sharding)


if __name__ == "__main__":
    main()
