"""The callbacks under the frameworks themselves, on a CPU: skipped where a framework is not installed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zprof
from zprof.run.reader import Run

STEPS = zprof.steps(skip=1, memory=1, time=1)
WEIGHTS = 8 * 16 + 16 + 16 + 1


class Regression(nn.Module):
    """Takes what either framework gives, and returns a loss as either wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layers(x) - labels).square().mean()}


def train_with_transformers(path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from zprof.integrations.huggingface import ZprofCallback

    arguments = transformers.TrainingArguments(
        output_dir=str(path.with_name("out")),
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    data = [{"x": torch.ones(8), "labels": torch.ones(1)} for _ in range(16)]
    callbacks = [ZprofCallback(path, steps=STEPS)]
    transformers.Trainer(Regression(), arguments, train_dataset=data, callbacks=callbacks).train()


def train_with_lightning(path: Path) -> None:
    lightning: Any = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from zprof.integrations.lightning import ZprofCallback

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Regression()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.model(*batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.TensorDataset(torch.ones(16, 8), torch.ones(16, 1))
    trainer = lightning.Trainer(
        max_steps=4,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=path.parent,
        callbacks=[ZprofCallback(path, steps=STEPS)],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=2))


@pytest.mark.parametrize("train", [train_with_transformers, train_with_lightning])
def test_a_real_trainer_is_recorded(train: Any, tmp_path: Path) -> None:
    train(path := tmp_path / "run.zprof")
    (rank,) = Run(path).rank_manifests.values()
    assert (rank.status, rank.memory_steps, rank.time_steps, rank.gaps) == ("complete", (1,), (2,), ())
    facts = Run(path).manifest.training
    assert (facts.engine, facts.micro_batches, facts.optimizer_state_bytes) == ("pytorch", 2, 8)
    (memory,) = zprof.diagnose(Run(path)).memory.per_rank
    assert (facts.parameters, memory.tenants["parameters"]) == (WEIGHTS, 4 * WEIGHTS)
