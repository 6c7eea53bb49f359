"""What was saved comes back, bit by bit, whatever stage, units or dtype read it; one process."""

import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_models import everything, odd_engine, odd_losses, same
from engine_helpers import engine, loss_of, tiny_gpt, train_step

from zprof.reference_engine import checkpoints
from zprof.reference_engine.checkpoints import load_checkpoint, save_checkpoint
from zprof.reference_engine.config import Keep

STAGES = range(4)


@pytest.mark.parametrize(
    ("stage", "dtype"), [(0, torch.bfloat16), (1, torch.float32), (2, torch.bfloat16), (3, torch.float32)]
)
def test_the_next_losses_are_those_without_interruption(tmp_path, stage, dtype):
    saved = odd_engine(stage=stage, dtype=dtype)
    odd_losses(*saved, range(2))
    save_checkpoint(tmp_path / "x", *saved)
    states = everything(*saved)
    expected = odd_losses(*saved, range(2, 5))  # dropout is in the model: equal generators, too
    loaded = odd_engine(seed=1, stage=stage, dtype=dtype, learning_rate=0.5)
    load_checkpoint(tmp_path / "x", *loaded)
    assert same(everything(*loaded), states)
    assert odd_losses(*loaded, range(2, 5)) == expected


@pytest.mark.parametrize("stage", [1, 3])
def test_other_units_alignment_and_stage_read_the_same(tmp_path, stage):
    saved = odd_engine(stage=0, alignment=32)
    odd_losses(*saved, range(2))
    save_checkpoint(tmp_path / "x", *saved)
    loaded = odd_engine(seed=1, stage=stage, alignment=1, units=["first", "frozen"])
    assert len(loaded[0].units) != len(saved[0].units)
    load_checkpoint(tmp_path / "x", *loaded)
    assert same(loaded[0].state_dict(), saved[0].state_dict())
    losses = odd_losses(*loaded, range(2, 5))
    load_checkpoint(tmp_path / "x", *saved)  # the random generator goes back
    assert odd_losses(*saved, range(2, 5)) == losses


@pytest.mark.parametrize(
    ("first", "then"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=str
)
def test_another_dtype_takes_over_the_exact_master_weights(tmp_path, first, then):
    saved = engine(1, stage=2, dtype=first)[:2]
    train_step(*saved)
    save_checkpoint(tmp_path / "x", *saved)
    loaded = engine(1, stage=3, dtype=then)[:2]
    load_checkpoint(tmp_path / "x", *loaded)
    exact = saved[0].state_dict(fp32=True)
    assert same(loaded[0].state_dict(fp32=True), exact)
    assert same(loaded[0].state_dict(), {name: value.to(then) for name, value in exact.items()})


def test_numbers_of_the_run_come_back(tmp_path):
    model, optimizer, _ = engine(1, dtype=torch.float16)
    train_step(model, optimizer)
    optimizer.loss_scale.fill_(512.0)
    optimizer.param_groups[0].update(lr=0.125, betas=(0.5, 0.75), initial_lr=0.5)
    progress = {"step": 7, "fraction": 0.1, "shard": "c4-00012"}
    save_checkpoint(tmp_path / "x", model, optimizer, progress=progress)
    other, fresh, _ = engine(1, stage=2, dtype=torch.float16)
    assert load_checkpoint(tmp_path / "x", other, fresh) == progress
    assert float(fresh.loss_scale) == 512.0
    assert fresh.scalar_state() == optimizer.scalar_state()
    numbers = {key: value for key, value in fresh.param_groups[0].items() if key != "params"}
    assert numbers == {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    assert numbers["betas"] == (0.5, 0.75)


@pytest.mark.parametrize("stage", STAGES)
def test_a_forward_before_loading_leaves_nothing_of_the_old_weights(tmp_path, stage):
    saved = engine(1, stage=stage)[:2]
    train_step(*saved)
    save_checkpoint(tmp_path / "x", *saved)
    model, optimizer, _ = engine(1, stage=stage, keep_after_forward=Keep.ALL)
    loss = loss_of(model)
    load_checkpoint(tmp_path / "x", model, optimizer)
    assert stage < 3 or not any(unit.full.untyped_storage().nbytes() for unit in model.units)
    assert same(model.state_dict(), saved[0].state_dict())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert torch.equal(loss_of(model), loss_of(saved[0]))


def test_a_plain_module_reads_it_with_dcp_alone(tmp_path):
    model, optimizer, _ = engine(1, stage=3, dtype=torch.bfloat16)
    train_step(model, optimizer)
    save_checkpoint(tmp_path / "x", model, optimizer)
    plain = tiny_gpt()
    values = {"model": {name: torch.zeros_like(value) for name, value in plain.state_dict().items()}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(values, checkpoint_id=tmp_path / "x", no_dist=True)
    whole = model.state_dict()
    assert values["model"].keys() == whole.keys()
    assert all(torch.equal(value.to(torch.bfloat16), whole[name]) for name, value in values["model"].items())
    assert any(value.any() for value in values["model"].values())


def test_a_failed_write_is_one_line_and_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    model, optimizer, _ = engine(1, stage=2)
    save_checkpoint(tmp_path / "x", model, optimizer, progress={"step": 1})

    def disk_full(*arguments: object) -> None:
        raise OSError(28, "No space left on device\nand a second line")

    monkeypatch.setattr(checkpoints.save_and_load.FileSystemWriter, "write_data", disk_full)
    with pytest.raises(RuntimeError, match=r"^.*No space left[^\n]*$"):
        save_checkpoint(tmp_path / "x", model, optimizer, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert load_checkpoint(tmp_path / "x", model, optimizer) == {"step": 1}
