"""DeepSpeed's helper on engines that have DeepSpeed's names (stubs: DeepSpeed itself is not run)."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.framework_stubs import (
    STEPS,
    FakeEngine,
    FakePipelineEngine,
    WrappedOptimizer,
    backward,
    small_model,
)
from zprof.base.errors import BadInput
from zprof.collectors.record.engines.deepspeed import detect_facts, list_optimizers
from zprof.integrations.deepspeed import record_deepspeed
from zprof.run.reader import Run


def engine(kind: type[FakeEngine] = FakeEngine, *, stage: int = 2, accumulation: int = 2) -> FakeEngine:
    model = small_model()
    return kind(model, torch.optim.AdamW(model.parameters()), stage=stage, accumulation=accumulation)


def test_steps_are_found_at_the_boundary_of_accumulation(tmp_path: Path) -> None:
    for batches in (5, 6):
        trained = engine(accumulation=3)
        with record_deepspeed(trained, tmp_path / str(batches), steps=STEPS):
            for _ in range(batches):
                backward(trained.module)
                assert trained.step() == "stepped"
        assert "step" not in vars(trained), "the engine's own method is back"
    (rank,) = Run(tmp_path / "6").rank_manifests.values()
    assert (rank.status, rank.memory_steps) == ("complete", (1,))
    assert "1 of 2" in Run(tmp_path / "5").gaps()[0].reason


def test_a_pipelines_batch_is_a_step(tmp_path: Path) -> None:
    trained = engine(FakePipelineEngine)
    assert isinstance(trained, FakePipelineEngine)
    with record_deepspeed(trained, tmp_path, steps=STEPS):
        assert [trained.train_batch() for _ in range(2)] == [0.5, 0.5]
    assert Run(tmp_path).rank_manifests[0].memory_steps == (1,)


def test_an_error_of_the_program_passes_and_the_engine_is_as_it_was(tmp_path: Path) -> None:
    trained = engine()
    with pytest.raises(ValueError, match="of the program"), record_deepspeed(trained, tmp_path, steps=STEPS):
        raise ValueError("of the program")
    assert Run(tmp_path).rank_manifests[0].status == "failed"
    assert "step" not in vars(trained)


def test_facts_are_those_of_the_engine() -> None:
    facts = detect_facts(engine(stage=3))
    assert (facts.engine, facts.stage, facts.shard_ranks, facts.micro_batches) == ("deepspeed", 3, 4, 2)
    assert (facts.parameter_bytes, facts.gradient_bytes, facts.communication_bytes) == (2, 4, 2)
    assert (facts.parameters, facts.reduction_bytes) == (8 * 16 + 16 + 16 + 1, 2)


def test_partitioned_parameters_count_with_their_true_size_and_frozen_ones_make_it_unknown() -> None:
    trained = engine(stage=3)
    for parameter in trained.module.parameters():
        parameter.ds_numel = 1000
        parameter.data = torch.empty(0)
    assert detect_facts(trained).parameters == 4000
    next(trained.module.parameters()).requires_grad_(False)
    assert detect_facts(trained).parameters is None


def test_the_optimizer_that_steps_is_found_with_the_partitions_of_stage_3() -> None:
    inner = torch.optim.AdamW(small_model().parameters())
    outer = WrappedOptimizer(inner)
    assert list_optimizers(SimpleNamespace(optimizer=outer)) == [inner]
    outer.fp32_partitioned_groups_flat = masters = [torch.ones(3)]
    found = list_optimizers(SimpleNamespace(optimizer=outer))
    assert found[0] is inner
    assert found[1].param_groups[0]["params"][0] is masters[0]


def test_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Linear"), record_deepspeed(torch.nn.Linear(1, 1), tmp_path):
        pass
    assert not list(tmp_path.iterdir())
