"""``zprof plan --model``: a user's model counted in a child process."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.integrations.planning.child_process import LIMITS
from zprof.integrations.planning.count_task import count_units
from zprof.integrations.planning.tasks import count_model
from zprof.model.job import Batch, Degrees, Job

LAYERS, HIDDEN, HEADS, WORDS, CONTEXT = 3, 256, 4, 512, 64
SAMPLES = 2
TOKENS = SAMPLES * CONTEXT
CODE = f"""
import os, sys, time
import torch
from torch import nn
from zprof.reference_engine.program.gpt import GPT, GPTConfig

def gpt():
    print("words of the user " * 1000)
    return GPT(GPTConfig(layers={LAYERS}, hidden={HIDDEN}, heads={HEADS}, vocabulary={WORDS},
                         context={CONTEXT}, tied=True))

def frozen():
    model = gpt()
    model.token_embedding.weight.requires_grad_(False)
    return model

def no_tokens(): return nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 3))
def empty(): return nn.ReLU()
def lazy(): return nn.LazyLinear(3)
def terabyte(): return nn.Linear(1 << 20, 1 << 20)
def gone(): os._exit(0)
def killed(): os.abort()
def sleeps(): time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's folder, in which modules have the names of some that zprof and torch import."""
    (tmp_path / "models_of_a_user.py").write_text(CODE)
    for name in ("msgspec", "collectors"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "models_of_a_user", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])


def count_in_this_process(name: str) -> Mapping[str, Any]:
    """What the child would answer."""
    answers: list[Mapping[str, Any]] = []
    job = msgspec.to_builtins(Job(parameters=1, batch=Batch(samples=SAMPLES, sequence=CONTEXT)))
    count_units({"job": job, "model": f"models_of_a_user:{name}"}, answers.append)
    [answer] = answers
    return answer


def count_in_a_child(name: str, wall_s: int = 120, **changes: Any) -> Job:
    job = Job(parameters=1, batch=Batch(samples=SAMPLES, sequence=CONTEXT), **changes)
    return count_model(f"models_of_a_user:{name}", job, replace(LIMITS, wall_s=wall_s))


def test_elements_bytes_and_flop_are_those_of_the_closed_forms(capfd: pytest.CaptureFixture[str]) -> None:
    job = count_in_a_child("gpt")
    assert capfd.readouterr().out == ""  # what the user prints is no data of ours
    root, *blocks = job.units
    assert [unit.name for unit in job.units] == ["root", "blocks.0", "blocks.1", "blocks.2"]
    assert [unit.encloses for unit in job.units] == [True, False, False, False]
    assert {unit.elements for unit in blocks} == {12 * HIDDEN**2 + 13 * HIDDEN}
    assert root.elements == (WORDS + CONTEXT + 2) * HIDDEN  # the tied head counts once
    assert job.parameters == sum(unit.elements for unit in job.units)
    # 16 widths and the norms' statistics in 2 bytes, log-sum-exp of the attention in 4.
    assert {unit.saved_bytes for unit in blocks} == {2 * TOKENS * (16 * HIDDEN + 4) + 4 * TOKENS * HEADS}
    assert {unit.checkpoint_bytes for unit in blocks} == {2 * TOKENS * HIDDEN}
    assert {unit.forward_flop for unit in blocks} == {24 * TOKENS * HIDDEN**2 + 4 * TOKENS * CONTEXT * HIDDEN}
    # The gelu's input gradient and its own output's, the stream, and the tied head's gradient that waits.
    assert {unit.backward_work_bytes for unit in blocks} == {2 * TOKENS * 9 * HIDDEN + 2 * WORDS * HIDDEN + 4}
    assert root.forward_flop == 2 * TOKENS * HIDDEN * WORDS


def test_frozen_parameters_large_models_and_models_without_tokens_are_counted() -> None:
    frozen, plain = count_in_this_process("frozen"), count_in_this_process("no_tokens")
    assert frozen["frozen"] == WORDS * HIDDEN
    assert frozen["parameters"] == sum(unit["elements"] for unit in frozen["units"])
    assert plain["parameters"] == 10 * 20 + 20 + 20 * 3 + 3
    assert {unit["saved_bytes"] for unit in plain["units"]} == {None}
    assert count_in_this_process("terabyte")["parameters"] == (1 << 40) + (1 << 20)


@pytest.mark.parametrize(("name", "says"), [("empty", "no parameters"), ("lazy", "weight")])
def test_a_model_with_nothing_to_count_is_refused(name: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        count_in_this_process(name)


@pytest.mark.parametrize(
    ("name", "wall_s"),
    [
        ("sleeps", 2),
        pytest.param("killed", 120, marks=pytest.mark.slow),
        pytest.param("empty", 120, marks=pytest.mark.slow),
        pytest.param("gone", 120, marks=pytest.mark.slow),
    ],
)
def test_a_child_that_ends_or_does_not_end_is_refused_in_one_line(name: str, wall_s: int) -> None:
    with pytest.raises(BadInput) as refused:
        count_in_a_child(name, wall_s)
    assert "\n" not in refused.value.message


def test_a_model_parallel_model_is_refused() -> None:
    with pytest.raises(BadInput, match="model-parallel"):
        count_in_a_child("gpt", degrees=Degrees(mp=2))
