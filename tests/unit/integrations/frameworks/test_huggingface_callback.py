"""The callback of the Trainer: its hooks, in the order of the Trainer, make a recording (here a stub)."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.framework_stubs import (
    STEPS,
    Parallel,
    WrappedOptimizer,
    backward,
    small_model,
    stubbed,
    trainer_arguments,
    transformers_stub,
)
from zprof.model.training import TrainingFacts
from zprof.run.reader import Run


def train(callback: Any, *, steps: int = 3, **arguments: Any) -> None:
    args, model = trainer_arguments(**arguments), small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    given = {"model": model, "optimizer": WrappedOptimizer(optimizer), "lr_scheduler": None}
    callback.on_train_begin(args, None, None, **given)
    for _ in range(steps):
        for _ in range(args.gradient_accumulation_steps):
            backward(model)
        optimizer.step()
        optimizer.zero_grad()
        callback.on_step_end(args, None, None, **given)
    callback.on_train_end(args, None, None, **given)


def test_a_run_is_recorded_with_model_and_wrapped_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stubbed("huggingface", {"transformers": transformers_stub()}, monkeypatch) as bridge:
        train(bridge.ZprofCallback(tmp_path, steps=STEPS))
    run = Run(tmp_path)
    (rank,) = run.rank_manifests.values()
    assert (rank.status, rank.memory_steps) == ("complete", (1,))
    roles = set(run.frame(0, "role")["tenant"])
    assert {"parameters", "gradients", "optimizer_state"} <= roles
    training = run.manifest.training
    assert (training.engine, training.micro_batches, training.optimizer_state_bytes) == ("pytorch", 2, 8)


@pytest.mark.parametrize(
    ("arguments", "environment", "engine"),
    [
        ({"parallel_mode": Parallel.DISTRIBUTED}, {}, "ddp"),
        ({"parallel_mode": Parallel.DISTRIBUTED, "fsdp": ["full_shard"]}, {}, "pytorch"),
        ({"parallel_mode": Parallel.DISTRIBUTED}, {"ACCELERATE_USE_FSDP": "true"}, "pytorch"),
        ({"parallel_mode": Parallel.DISTRIBUTED, "deepspeed": {}}, {}, "ddp"),
        ({"parallel_mode": Parallel.DISTRIBUTED, "deepspeed": {"zero": 2}}, {}, "pytorch"),
    ],
)
def test_a_wrapper_that_the_trainer_hides_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    environment: dict[str, str],
    engine: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with stubbed("huggingface", {"transformers": transformers_stub()}, monkeypatch) as bridge:
        train(bridge.ZprofCallback(tmp_path, steps=STEPS), **arguments)
    assert Run(tmp_path).manifest.training.engine == engine


def test_what_the_user_knows_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = TrainingFacts(engine="mine", stage=2)
    with stubbed("huggingface", {"transformers": transformers_stub()}, monkeypatch) as bridge:
        train(bridge.ZprofCallback(tmp_path, steps=STEPS, training=known))
    assert Run(tmp_path).manifest.training == known


def test_a_second_training_leaves_the_run_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stubbed("huggingface", {"transformers": transformers_stub()}, monkeypatch) as bridge:
        callback = bridge.ZprofCallback(tmp_path, steps=STEPS)
        train(callback)
        created = Run(tmp_path).manifest.created_ns
        train(callback)
    assert Run(tmp_path).manifest.created_ns == created


def test_a_training_that_ends_early_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stubbed("huggingface", {"transformers": transformers_stub()}, monkeypatch) as bridge:
        train(bridge.ZprofCallback(tmp_path, steps=STEPS), steps=1)
    assert "after 1 of 2" in Run(tmp_path).gaps()[0].reason


def test_without_transformers_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ImportError, match="pip install transformers"),
        stubbed("huggingface", {"transformers": None}, monkeypatch),
    ):
        pass
