"""The callbacks of Hugging Face's and Lightning's trainers (stubs): their hooks, in the trainers' order."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.framework_stubs import (
    STEPS,
    FakeEngine,
    Parallel,
    WrappedOptimizer,
    backward,
    lightning_stub,
    small_model,
    stubbed,
    trainer_arguments,
    transformers_stub,
)
from zprof.run.reader import Run

BOTH = ("lightning.pytorch", "pytorch_lightning")


def only(name: str) -> dict[str, Any]:
    return {package: lightning_stub(package) if package == name else None for package in BOTH}


BRIDGES: dict[str, tuple[str, dict[str, Any]]] = {
    "transformers": ("huggingface", {"transformers": transformers_stub()}),
    **{name: ("lightning", only(name)) for name in BOTH},
}


def train(callback: Any, *, batches: int = 6, **arguments: Any) -> None:
    """Call the hooks of Hugging Face's Trainer, with two batches to a step."""
    args, model = trainer_arguments(**arguments), small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    given = {"model": model, "optimizer": WrappedOptimizer(optimizer), "lr_scheduler": None}
    callback.on_train_begin(args, None, None, **given)
    for batch in range(batches):
        backward(model)
        if batch % 2:
            optimizer.step()
            optimizer.zero_grad()
            callback.on_step_end(args, None, None, **given)
    callback.on_train_end(args, None, None, **given)


def fit(callback: Any, *, batches: int = 6, model: Any = None, fails: bool = False) -> None:
    """Call the hooks of Lightning's Trainer, with two batches to a step."""
    module = small_model()
    optimizer = torch.optim.AdamW(module.parameters())
    trainer = SimpleNamespace(
        model=model or module, optimizers=[optimizer], global_step=0, accumulate_grad_batches=2
    )
    callback.on_train_start(trainer, module)
    for batch in range(batches):
        backward(module)
        if batch % 2:
            optimizer.step()
            optimizer.zero_grad()
            trainer.global_step += 1
        callback.on_train_batch_end(trainer, module, None, None, batch)
    if fails:
        callback.on_exception(trainer, module, RuntimeError("of the program"))
    else:
        callback.on_train_end(trainer, module)


@pytest.mark.parametrize("package", BRIDGES)
def test_a_training_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    name, modules = BRIDGES[package]
    play = train if name == "huggingface" else fit
    with stubbed(name, modules, monkeypatch) as bridge:
        assert getattr(bridge.ZprofCallback, "home", package) == package
        play(callback := bridge.ZprofCallback(tmp_path / "run", steps=STEPS))
        created_ns = Run(tmp_path / "run").manifest.created_ns
        play(callback)  # a second training leaves the run as it is
        play(bridge.ZprofCallback(tmp_path / "early", steps=STEPS), batches=3)
    run = Run(tmp_path / "run")
    (rank,) = run.rank_manifests.values()
    assert (rank.status, rank.memory_steps, run.manifest.created_ns) == ("complete", (1,), created_ns)
    assert {"parameters", "gradients", "optimizer_state"} <= set(run.frame(0, "role")["tenant"])
    training = run.manifest.training
    assert (training.engine, training.micro_batches, training.optimizer_state_bytes) == ("pytorch", 2, 8)
    (gap,) = Run(tmp_path / "early").gaps()
    assert "1 of 2" in gap.reason


@pytest.mark.parametrize(
    ("arguments", "environment", "engine"),
    [
        ({}, {}, "ddp"),
        ({"fsdp": ["full_shard"]}, {}, "pytorch"),
        ({}, {"ACCELERATE_USE_FSDP": "true"}, "pytorch"),
        ({"deepspeed": {"zero": 2}}, {}, "pytorch"),
        ({"parallel_mode": Parallel.NOT_PARALLEL}, {}, "pytorch"),
    ],
)
def test_the_wrapper_that_the_trainer_hides_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    environment: dict[str, str],
    engine: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    arguments = {"parallel_mode": Parallel.DISTRIBUTED} | arguments
    with stubbed("huggingface", {"transformers": transformers_stub()}, monkeypatch) as bridge:
        train(bridge.ZprofCallback(tmp_path, steps=STEPS), **arguments)
    assert Run(tmp_path).manifest.training.engine == engine


def test_a_failed_fit_is_written_with_the_facts_of_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model()
    engine = FakeEngine(model, torch.optim.AdamW(model.parameters()), stage=2)
    with stubbed("lightning", only("lightning.pytorch"), monkeypatch) as bridge:
        fit(bridge.ZprofCallback(tmp_path, steps=STEPS), batches=2, model=engine, fails=True)
    assert Run(tmp_path).rank_manifests[0].status == "failed"
    assert Run(tmp_path).manifest.training.stage == 2


def test_the_package_that_the_program_has_imported_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "lightning"
    installed.mkdir()
    (installed / "__init__.py").write_text("")
    (installed / "pytorch.py").write_text("class Callback:\n    home = __name__\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("lightning", "lightning.pytorch"):  # there, but not imported; what is imported goes again
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.delitem(sys.modules, name)
    stubs = {"pytorch_lightning": lightning_stub("pytorch_lightning")}
    with stubbed("lightning", stubs, monkeypatch) as bridge:
        assert bridge.ZprofCallback.home == "pytorch_lightning"


@pytest.mark.parametrize("bridge", ["huggingface", "lightning"])
def test_without_its_framework_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, bridge: str
) -> None:
    absent = stubbed(bridge, dict.fromkeys(("transformers", *BOTH)), monkeypatch)
    with pytest.raises(ImportError, match="pip install"), absent:
        pass
