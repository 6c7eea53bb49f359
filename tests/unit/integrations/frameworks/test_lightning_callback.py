"""Lightning's callback, under both names of the package (a stub): hooks in the Trainer's order."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.framework_stubs import (
    STEPS,
    FakeEngine,
    backward,
    lightning_stub,
    small_model,
    stubbed,
)
from zprof.run.reader import Run

BOTH = ("lightning.pytorch", "pytorch_lightning")


def only(name: str) -> dict[str, Any]:
    return {package: lightning_stub(package) if package == name else None for package in BOTH}


def fit(callback: Any, *, batches: int = 6, accumulate: int = 2, fails: bool = False) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    trainer = SimpleNamespace(
        model=model, optimizers=[optimizer], global_step=0, accumulate_grad_batches=accumulate
    )
    callback.on_train_start(trainer, model)
    for batch in range(batches):
        backward(model)
        if (batch + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            trainer.global_step += 1
        callback.on_train_batch_end(trainer, model, None, None, batch)
    if fails:
        callback.on_exception(trainer, model, RuntimeError("of the program"))
    else:
        callback.on_train_end(trainer, model)


@pytest.mark.parametrize("package", BOTH)
def test_a_fit_is_recorded_under_both_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    with stubbed("lightning", only(package), monkeypatch) as bridge:
        assert bridge.ZprofCallback.home == package
        fit(bridge.ZprofCallback(tmp_path, steps=STEPS))
    run = Run(tmp_path)
    (rank,) = run.rank_manifests.values()
    assert (rank.status, rank.memory_steps) == ("complete", (1,))
    assert run.manifest.training.micro_batches == 2
    assert {"parameters", "gradients", "optimizer_state"} <= set(run.frame(0, "role")["tenant"])


def test_a_batch_without_an_optimizer_step_is_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stubbed("lightning", only("lightning.pytorch"), monkeypatch) as bridge:
        fit(bridge.ZprofCallback(tmp_path, steps=STEPS), batches=3)
    assert "after 1 of 2" in Run(tmp_path).gaps()[0].reason


def test_a_failed_fit_is_written_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stubbed("lightning", only("lightning.pytorch"), monkeypatch) as bridge:
        fit(bridge.ZprofCallback(tmp_path, steps=STEPS), batches=2, fails=True)
    assert Run(tmp_path).rank_manifests[0].status == "failed"


def test_the_package_that_the_program_uses_goes_first(
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


def test_an_engine_of_deepspeed_speaks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    engine = FakeEngine(model, torch.optim.AdamW(model.parameters()), stage=2)
    with stubbed("lightning", only("lightning.pytorch"), monkeypatch) as bridge:
        assert bridge._facts(SimpleNamespace(accumulate_grad_batches=1), engine, []).stage == 2


def test_without_lightning_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ImportError, match="pip install lightning"),
        stubbed("lightning", dict.fromkeys(BOTH), monkeypatch),
    ):
        pass
