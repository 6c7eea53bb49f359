"""The loop around the engine: its data, its micro-batches, its progress, how it ends."""

import io
import time

import pytest
import torch
from torch import nn
from training_helpers import SMALL, started

from zprof.reference_engine import train as training
from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.program.train_config import TrainConfig, Units, replace_fields
from zprof.reference_engine.train import (
    Batches,
    Progress,
    iter_micro_batches,
    make_global_batch,
    select_unit_modules,
)

SIZES = {"seed": 0, "batch": 8, "time": 16, "vocabulary": 32, "ranks": 2, "micro_batches": 2}


def test_ranks_and_micro_batches_share_the_global_batch_without_rest():
    whole = make_global_batch(seed=0, step=3, batch=8, time=16, vocabulary=32)
    parts = [part for rank in (0, 1) for part in Batches(**SIZES, rank=rank).step(3)]
    assert [part.shape for part in parts] == [(2, 17)] * 4
    assert torch.equal(torch.cat(parts), whole)
    follows = whole[:, 1:] == (5 * whole[:, :-1] + 7) % 32
    assert 0.8 < follows.float().mean() < 1  # most tokens follow from the one before
    for other in ({"seed": 1, "step": 3}, {"seed": 0, "step": 2}):
        assert not torch.equal(make_global_batch(**other, batch=8, time=16, vocabulary=32), whole)


def test_a_resumed_run_goes_on_with_the_data_of_its_step_and_other_random_numbers():
    state = torch.get_rng_state()
    late, whole = (list(iter_micro_batches(Batches(**SIZES, rank=0), range(first, 4))) for first in (2, 0))
    assert len(late) == 4
    assert all(torch.equal(a, b) for a, b in zip(late, whole[4:], strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_shorter_sequences_are_the_beginning_of_whole_ones():
    short, whole = (torch.cat(list(Batches(**SIZES, rank=0, **more).step(0))) for more in ({"length": 2}, {}))
    assert torch.equal(short, whole[:, :3])
    config = TrainConfig(shortened=0.75, gpt=GPTConfig(context=64))
    assert [config.length(rank, 3) for rank in range(3)] == [64, 16, 16]
    evened = replace_fields(config, {"evened": True})
    assert [evened.length(rank, 3) for rank in range(3)] == [32, 32, 32]
    assert evened.tokens_per_step(3) == config.tokens_per_step(3)


def test_losses_do_not_depend_on_accumulation_and_are_means_over_micro_batches(monkeypatch):
    config = replace_fields(TrainConfig(), SMALL | {"zero.stage": 3})
    once = started(monkeypatch, config, world_size=1)
    often = started(monkeypatch, replace_fields(config, {"zero.micro_batches": 4}), world_size=1)
    seen: list[float] = []
    often.built.model.register_forward_hook(lambda module, given, loss: seen.append(float(loss.detach())))
    losses = often.steps(3)
    assert losses == pytest.approx(once.steps(3), abs=1e-5)
    assert losses == pytest.approx([sum(seen[at : at + 4]) / 4 for at in (0, 4, 8)])


def test_units_are_chosen_by_name():
    model = GPT(GPTConfig(layers=2, hidden=8, heads=2, vocabulary=16, context=8))
    assert select_unit_modules(model, Units.BLOCKS) is None
    assert select_unit_modules(model, Units.MODEL) == []
    layers = select_unit_modules(model, Units.LAYERS)
    assert {type(module) for module in layers} == {nn.Linear, nn.LayerNorm, nn.Embedding}
    assert len(layers) == 2 * 6 + 4


def test_fields_change_together_by_dotted_name():
    fields = {"zero.dtype": torch.bfloat16, "zero.reduce_dtype": torch.bfloat16}  # neither is allowed alone
    config = replace_fields(
        TrainConfig(), fields | {"zero.loss_scale.initial": 2.0, "compute.forward_s": 1.0}
    )
    assert (config.zero.loss_scale.initial, config.compute.forward_s, config.link) == (2.0, 1.0, None)
    assert TrainConfig().compute is None
    with pytest.raises(TypeError):
        replace_fields(TrainConfig(), {"zero.colour": 1})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(stream: io.StringIO, steps: int, first: int = 0) -> str:
    progress = Progress(steps, first=first, stream=stream)
    for step in range(first, steps):
        progress.step_done(step, 1.25)
    progress.close()
    progress.close()
    return stream.getvalue()


def test_progress_is_one_line_on_a_terminal_and_a_few_elsewhere(monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    text = drawn(Terminal(), 4)
    assert (text.count("\n"), text.count("\r")) == (1, 4)
    assert text.endswith("\x1b[K\n")
    assert "4/4" in text.split("\r")[-1]
    assert drawn(io.StringIO(), 3).count("\n") == 3
    lines = drawn(io.StringIO(), 1000, first=100).splitlines()
    assert len(lines) == 20
    assert "1000/1000" in lines[-1]
    assert not any(mark in line for line in lines for mark in "\r\x1b")


TINY = "--layers 1 --hidden 8 --heads 2 --vocabulary 16 --context 8 --batch 2 --steps 3"


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("a peer\nis gone"), 1, "a peer is gone"),
        (ValueError("too small"), 2, "too small"),
    ],
)
def test_an_error_is_one_line_and_a_code(monkeypatch, capsys, error, code, word):
    def fail(config: TrainConfig) -> list[float]:
        raise error

    monkeypatch.setattr(training, "train", fail)
    monkeypatch.delenv("ZERO_DEBUG", raising=False)
    assert training.main([]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert word in printed.err
    assert printed.err.count("\n") == 1


def test_a_run_is_saved_and_resumed_with_the_same_losses(tmp_path, capsys):
    assert training.main([*TINY.split(), "--steps", "4"]) == 0
    expected = capsys.readouterr().out.split()[3]
    saved = str(tmp_path / "saved")
    assert training.main([*TINY.split(), "--steps", "2", "--save", saved]) == 0
    capsys.readouterr()
    assert training.main([*TINY.split(), "--steps", "4", "--resume", saved, "--stage", "3"]) == 0
    printed = capsys.readouterr()
    assert printed.out.split()[3] == expected
    assert "step 3/4" in printed.err
    assert "step 2/4" not in printed.err
    assert training.main([*TINY.split(), "--steps", "2", "--resume", saved]) == 2
    assert capsys.readouterr().err.count("\n") == 1
