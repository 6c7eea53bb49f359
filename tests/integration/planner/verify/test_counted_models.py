"""``zprof plan --model``: a user's model counted in a child process."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from zprof.integrations.planning.child_process import Limits
from zprof.integrations.planning.count_task import count_units
from zprof.integrations.planning.tasks import count_model
from zprof.model.errors import BadInput
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
def where(): assert nn.Linear(1, 1).weight.device.type in ("meta", "cpu"); return nn.Linear(1 << 20, 1 << 20)
def gone(): os._exit(0)
def killed(): os.abort()
def sleeps(): time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models_of_a_user.py").write_text(CODE)
    # What a folder of one's own may hold must not take the place of what zprof and torch import.
    (tmp_path / "msgspec.py").write_text("raise RuntimeError('the wrong msgspec')")
    (tmp_path / "collectors.py").write_text("raise RuntimeError('the wrong collectors')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "models_of_a_user", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])


def in_this_process(name: str) -> Mapping[str, Any]:
    """What the child would answer."""
    answers: list[Mapping[str, Any]] = []
    job = msgspec.to_builtins(Job(parameters=1, batch=Batch(samples=SAMPLES, sequence=CONTEXT)))
    count_units({"job": job, "model": f"models_of_a_user:{name}"}, answers.append)
    (answer,) = answers
    return answer


def counted(name: str, **changes: object) -> Job:
    job = Job(parameters=1, batch=Batch(samples=SAMPLES, sequence=CONTEXT), **changes)  # type: ignore[arg-type]
    return count_model(f"models_of_a_user:{name}", job, Limits(wall_s=120))


def test_elements_bytes_and_flop_are_those_of_the_closed_forms(capfd: pytest.CaptureFixture[str]) -> None:
    job = counted("gpt")
    out, _ = capfd.readouterr()
    assert out == ""  # what the user prints is no data of ours
    root, *blocks = job.units
    assert [unit.name for unit in job.units] == ["root", "blocks.0", "blocks.1", "blocks.2"]
    assert [unit.encloses for unit in job.units] == [True, False, False, False]
    assert {unit.elements for unit in blocks} == {12 * HIDDEN**2 + 13 * HIDDEN}
    assert root.elements == (WORDS + CONTEXT + 2) * HIDDEN  # the tied head counts once
    assert job.parameters == sum(unit.elements for unit in job.units)
    assert (job.frozen_parameters, job.name) == (0, "models_of_a_user:gpt")
    # 16 widths and the norms' statistics in 2 bytes, log-sum-exp of the attention in 4.
    assert {unit.saved_bytes for unit in blocks} == {2 * TOKENS * (16 * HIDDEN + 4) + 4 * TOKENS * HEADS}
    assert {unit.checkpoint_bytes for unit in blocks} == {2 * TOKENS * HIDDEN}
    assert {unit.forward_flop for unit in blocks} == {24 * TOKENS * HIDDEN**2 + 4 * TOKENS * CONTEXT * HIDDEN}
    # The gelu's input gradient and its own output's, the stream, and the tied head's gradient that waits.
    assert {unit.backward_work_bytes for unit in blocks} == {2 * TOKENS * 9 * HIDDEN + 2 * WORDS * HIDDEN + 4}
    assert root.forward_flop == 2 * TOKENS * HIDDEN * WORDS


def test_frozen_parameters_are_counted_apart() -> None:
    answer = in_this_process("frozen")
    assert answer["frozen"] == WORDS * HIDDEN
    assert answer["parameters"] == sum(unit["elements"] for unit in answer["units"])


def test_a_model_that_takes_no_tokens_has_elements_only(capfd: pytest.CaptureFixture[str]) -> None:
    answer = in_this_process("no_tokens")
    assert answer["parameters"] == 10 * 20 + 20 + 20 * 3 + 3
    assert {unit["saved_bytes"] for unit in answer["units"]} == {None}
    assert "stays unknown" in capfd.readouterr().err


def test_a_terabyte_model_is_counted_without_memory() -> None:
    assert in_this_process("where")["parameters"] == (1 << 40) + (1 << 20)


@pytest.mark.parametrize(
    ("name", "says"),
    [("empty", "the model has no parameters"), ("lazy", "parameter weight has no shape yet")],
)
def test_what_has_nothing_to_count_is_refused(name: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        in_this_process(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("empty", "the model has no parameters", marks=pytest.mark.slow),
        pytest.param("gone", "gave no model", marks=pytest.mark.slow),
        pytest.param("killed", "it ended with status -6"),
    ],
)
def test_the_child_refuses_and_ends_in_one_line(name: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        counted(name)
    assert "\n" not in caught.value.message


def test_a_function_that_does_not_end_is_ended() -> None:
    with pytest.raises(BadInput, match="took more than 2 s"):
        count_model("models_of_a_user:sleeps", Job(parameters=1), Limits(wall_s=2))


def test_a_model_parallel_model_is_refused_before_anything_runs() -> None:
    with pytest.raises(BadInput, match="2 model-parallel ranks"):
        counted("gpt", degrees=Degrees(mp=2))
