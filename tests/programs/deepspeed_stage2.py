"""Train a small transformer with DeepSpeed's ZeRO stage 2 on gloo ranks."""

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

STEPS, BATCH, TOKENS, HIDDEN = 14, 8, 64, 256
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1_000_000},
    "zero_allow_untested_optimizer": True,
}


def main() -> None:
    """Train on random tokens, each rank on its own."""
    deepspeed.init_distributed("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        batch = torch.randn(BATCH, TOKENS, HIDDEN)
        loss = (engine(batch) - batch).square().mean()
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    main()
