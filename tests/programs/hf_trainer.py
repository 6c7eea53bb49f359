"""Train a small GPT-2 with the Hugging Face Trainer on gloo ranks."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS, BATCH, TOKENS, WORDS = 14, 4, 64, 1000


class RandomTokens(Dataset[dict[str, torch.Tensor]]):
    """Sequences of random tokens."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(WORDS, (TOKENS,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train on random tokens."""
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_embd=256, n_layer=4, n_head=4))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=BATCH, use_cpu=True,
            ddp_backend="gloo", report_to=[], save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=RandomTokens()).train()


if __name__ == "__main__":
    main()
