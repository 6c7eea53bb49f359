"""Plans of models with frozen parameters, counted, against a rank that trains them."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from zprof.integrations.planning.count_task import count_units
from zprof.integrations.planning.tasks import verify_plan
from zprof.model.job import Batch, Degrees, Job, Unit
from zprof.model.plan import Scheme
from zprof.model.tenants import Tenant
from zprof.planner.plan import plan

STAGES = (Scheme.DATA_PARALLEL, Scheme.ZERO_1, Scheme.ZERO_2, Scheme.ZERO_3)
HIDDEN = 256
TOLERANCE = 0.03
CODE = f"""
from zprof.reference_engine.program.gpt import GPT, GPTConfig

def two_blocks():
    model = GPT(GPTConfig(layers=4, hidden={HIDDEN}, heads=4, vocabulary=512, context=64))
    for block in list(model.blocks)[1:3]:
        block.requires_grad_(False)
    return model

def all_but_norms():
    model = GPT(GPTConfig(layers=4, hidden={HIDDEN}, heads=4, vocabulary=512, context=64))
    for block in model.blocks:
        for name, parameter in block.named_parameters():
            parameter.requires_grad_("norm" in name)
    return model
"""


def counted(spec: str) -> Job:
    job = Job(parameters=1, degrees=Degrees(dp=8), batch=Batch(samples=2, sequence=64))
    answers: list[object] = []
    count_units({"job": msgspec.to_builtins(job), "model": spec}, answers.append)
    (answer,) = answers
    assert isinstance(answer, dict)
    units = msgspec.convert(answer["units"], tuple[Unit, ...])
    return replace(job, parameters=answer["parameters"], frozen_parameters=answer["frozen"], units=units)


@pytest.mark.parametrize("name", ["two_blocks", pytest.param("all_but_norms", marks=pytest.mark.slow)])
def test_every_tenant_is_within_three_percent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "models_with_frozen.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "models_with_frozen", raising=False)
    spec = f"models_with_frozen:{name}"
    found = verify_plan(plan(counted(spec), schemes=STAGES), spec)
    assert [stage.stage for stage in found.stages] == [0, 1, 2, 3]
    for stage in found.stages:
        assert stage.difference_ratio == pytest.approx(0, abs=TOLERANCE), stage
        for entry in stage.tenants:
            off_bytes = abs((entry.planned_bytes or 0) - entry.verified_bytes)
            assert off_bytes <= TOLERANCE * stage.verified_peak_bytes, (stage.stage, entry)
            if entry.tenant in (Tenant.PARAMETERS, Tenant.OPTIMIZER_STATE):
                assert off_bytes == 0, (stage.stage, entry)
            if entry.tenant in (Tenant.GRADIENTS, Tenant.ACTIVATIONS, Tenant.COMMUNICATION_BUFFERS):
                assert off_bytes <= TOLERANCE * entry.verified_bytes, (stage.stage, entry)
