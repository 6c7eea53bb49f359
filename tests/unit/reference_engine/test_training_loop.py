"""The loop around the engine: its data, its micro-batches, its progress, how it ends."""

import io
import time

import pytest
import torch
from torch import nn
from training_helpers import SMALL, started

from zprof.reference_engine import train as training
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.program.data import Batches, iter_micro_batches, make_global_batch
from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.program.host_faults import HostFaults
from zprof.reference_engine.program.modelled_compute import ComputeModel
from zprof.reference_engine.program.train_config import TrainConfig, Units, replace_fields
from zprof.reference_engine.train import Progress, select_unit_modules

BATCHES = Batches(seed=0, batch=8, time=4, vocabulary=16, rank=0, ranks=2, micro_batches=2)


def batches(**changes: int) -> Batches:
    values = {name: getattr(BATCHES, name) for name in Batches.__dataclass_fields__}
    return Batches(**values | changes)


def test_ranks_and_micro_batches_share_the_global_batch_without_rest():
    whole = make_global_batch(seed=0, step=3, batch=8, time=4, vocabulary=16)
    parts = [part for rank in (0, 1) for part in batches(rank=rank).step(3)]
    assert [part.shape for part in parts] == [(2, 5)] * 4
    assert torch.equal(torch.cat(parts), whole)


def test_a_resumed_run_goes_on_with_the_data_of_its_step():
    late = list(iter_micro_batches(BATCHES, range(2, 4)))
    whole = list(iter_micro_batches(BATCHES, range(4)))
    assert len(late) == 4
    assert all(torch.equal(a, b) for a, b in zip(late, whole[4:], strict=True))


def test_the_loader_leaves_the_random_state_of_the_model_alone():
    before = torch.get_rng_state()
    next(iter_micro_batches(BATCHES, range(1)))
    assert torch.equal(torch.get_rng_state(), before)


def test_shorter_sequences_are_the_beginning_of_whole_ones():
    short = list(batches(length=2).step(0))
    assert torch.equal(torch.cat(short), torch.cat(list(BATCHES.step(0)))[:, :3])
    config = TrainConfig(shortened=0.75, gpt=GPTConfig(context=64))
    assert [config.length(rank, 3) for rank in range(3)] == [64, 16, 16]
    evened = replace_fields(config, {"evened": True})
    assert [evened.length(rank, 3) for rank in range(3)] == [32, 32, 32]
    assert evened.tokens_per_step(3) == config.tokens_per_step(3)


@pytest.mark.parametrize("accumulate", [2, 4])
def test_losses_do_not_depend_on_accumulation(monkeypatch, accumulate):
    config = replace_fields(TrainConfig(), SMALL | {"zero.stage": 3})
    once = started(monkeypatch, config, world_size=1)
    often = started(monkeypatch, replace_fields(config, {"zero.micro_batches": accumulate}), world_size=1)
    assert often.steps(3) == pytest.approx(once.steps(3), abs=1e-5)


def test_the_loss_of_a_step_is_the_mean_of_its_micro_batches(monkeypatch):
    run = started(monkeypatch, replace_fields(TrainConfig(), SMALL | {"zero.micro_batches": 2}), world_size=1)
    seen: list[float] = []
    run.built.model.register_forward_hook(lambda module, given, loss: seen.append(float(loss.detach())))
    (loss,) = run.steps()
    assert len(seen) == 2
    assert loss == pytest.approx(sum(seen) / 2)


def test_units_are_chosen_by_name():
    model = GPT(GPTConfig(layers=2, hidden=8, heads=2, vocabulary=16, context=8))
    assert select_unit_modules(model, Units.BLOCKS) is None
    assert select_unit_modules(model, Units.MODEL) == []
    layers = select_unit_modules(model, Units.LAYERS)
    assert {type(module) for module in layers} == {nn.Linear, nn.LayerNorm, nn.Embedding}
    assert len(layers) == 2 * 6 + 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: HostFaults(data_delay_s=-1), "data_delay_s is -1"),
        (lambda: ComputeModel(straggler_rotates=True, straggler_rank=1), "choose one of the two"),
        (lambda: TrainConfig(shortened=1.0), "shortened is 1.0"),
        (lambda: replace_fields(TrainConfig(), {"zero.stage": 4}), "stage is 4"),
    ],
)
def test_settings_of_the_program_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_fields_change_together_by_dotted_name():
    fields = {
        "zero.dtype": torch.bfloat16,
        "zero.reduce_dtype": torch.bfloat16,
        "zero.loss_scale.initial": 2.0,
    }
    config = replace_fields(TrainConfig(), fields | {"compute.forward_s": 1.0, "steps": 3})
    assert config.zero.loss_scale.initial == 2.0
    assert config.compute == ComputeModel(forward_s=1.0)
    assert (config.steps, config.link, TrainConfig().zero) == (3, None, ZeroConfig())
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
    return stream.getvalue()


def test_on_a_terminal_progress_is_one_line_that_is_drawn_again(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    text = drawn(Terminal(), 4)
    assert text.count("\n") == 1
    assert text.count("\r") == 4
    last = text.split("\r")[-1]
    assert last == f"[{'#' * 24}] step 4/4  loss 1.2500 on rank 0  1.0 steps/s\x1b[K\n"


def test_elsewhere_it_is_a_few_plain_lines():
    assert drawn(io.StringIO(), 3).count("\n") == 3
    lines = drawn(io.StringIO(), 1000, first=100).splitlines()
    assert len(lines) == 20
    assert lines[-1].startswith("step 1000/1000  loss 1.2500 on rank 0  ")
    assert not any(mark in line for line in lines for mark in "\r\x1b")


def test_a_line_that_was_cut_off_is_ended():
    stream = Terminal()
    progress = Progress(4, stream=stream)
    progress.step_done(0, 1.0)
    progress.close()
    progress.close()
    assert stream.getvalue().endswith("\x1b[K\n")


TINY = "--layers 1 --hidden 8 --heads 2 --vocabulary 16 --context 8 --batch 2 --steps 3"


def test_losses_are_printed_and_progress_is_not_among_them(capsys):
    assert training.main(TINY.split()) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("loss 2.7")
    assert printed.out.count("\n") == 1
    assert "in 3 steps" in printed.out
    assert "step 3/3" in printed.err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "train: interrupted\n"),
        (RuntimeError("a peer\nis gone"), 1, "train: rank 0: RuntimeError: a peer is gone\n"),
        (ValueError("too small"), 2, "train: rank 0: too small\n"),
    ],
)
def test_an_error_is_one_line_and_a_code(monkeypatch, capsys, error, code, said):
    def fail(config: TrainConfig) -> list[float]:
        raise error

    monkeypatch.setattr(training, "train", fail)
    monkeypatch.delenv("ZERO_DEBUG", raising=False)
    assert training.main([]) == code
    assert capsys.readouterr() == ("", said)


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
    assert "has 2 steps already" in capsys.readouterr().err
