"""The command line of the training program: what becomes what, and what is refused in one line."""

import argparse
import json
from pathlib import Path

import pytest
import torch

from zprof.reference_engine import train as training
from zprof.reference_engine.activation_checkpointing import ActivationConfig
from zprof.reference_engine.comm.modelled import LinkModel
from zprof.reference_engine.config import AdamKernel, Keep, LossScale, ZeroConfig
from zprof.reference_engine.program.modelled_compute import ComputeModel
from zprof.reference_engine.program.options import add_arguments, make_config
from zprof.reference_engine.program.train_config import TrainConfig, Units


def parse(line: str = "") -> TrainConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = vars(parser.parse_args(line.split()))
    return make_config(argparse.Namespace(**json.loads(json.dumps(given))))  # a job carries them as JSON


def test_every_option_becomes_the_config():
    config = parse(
        """
        --stage 3 --dtype float16 --reduce-dtype float32 --loss-scale 1024 --clip 1.5 --accumulate 4
        --no-sync --prefetch 3 --keep-after-forward last --no-overlap-reduce --no-overlap-gather
        --reduce-buckets 5 --constant-buffers 4096 --defragment --adam torch --learning-rate 0.5
        --weight-decay 0.25 --steps 7 --batch 12 --seed 3 --save a/b --resume c --dp 3 --mp 2 --units layers
        --layers 5 --tied --link-gbps 8 --link-latency-us 50 --compute-forward-ms 12
        --compute-backward-ms 24 --straggler-rank 1 --straggler-ms 40
        """
    )
    assert config.zero == ZeroConfig(
        stage=3,
        dtype=torch.float16,
        reduce_dtype=torch.float32,
        loss_scale=LossScale(initial=1024),
        clip_norm=1.5,
        micro_batches=4,
        reduce_each_micro_batch=False,
        forward_prefetch=3,
        backward_prefetch=3,
        keep_after_forward=Keep.LAST,
        overlap_reduce=False,
        overlap_gather=False,
        reduce_buckets=5,
        constant_buffers=4096,
        defragment=True,
        adam=AdamKernel.TORCH,
        learning_rate=0.5,
        weight_decay=0.25,
    )
    assert (config.steps, config.batch, config.seed) == (7, 12, 3)
    assert (config.save, config.resume) == (Path("a/b"), Path("c"))
    assert (config.dp, config.mp, config.units) == (3, 2, Units.LAYERS)
    assert (config.gpt.layers, config.gpt.tied) == (5, True)
    assert config.link == LinkModel(bandwidth_bytes_per_s=1e9, latency_s=50e-6)
    assert config.compute == ComputeModel(
        forward_s=0.012, backward_s=0.024, straggler_rank=1, straggler_s=0.04
    )
    assert config.modelled == ("link", "compute")
    assert parse() == TrainConfig()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--checkpoint", {"checkpoint": True}),
        ("--pa", {"checkpoint": True, "partition": True}),
        ("--pa-cpu", {"checkpoint": True, "partition": True, "host": True}),
        ("--pa --defragment", {"checkpoint": True, "partition": True, "contiguous": True}),
        ("--defragment", {}),
    ],
)
def test_switches_of_activations_bring_what_they_need(line, expected):
    assert parse(line).activations == ActivationConfig(**expected)


@pytest.mark.parametrize(
    ("line", "ranks", "words"),
    [
        ("--dp 3", 2, "dp 3"),
        ("--dp 2 --mp 2", 2, "mp 2"),
        ("--mp 3", 4, "mp is 3"),
        ("--batch 6", 4, "batch is 6"),
        ("--batch 6 --accumulate 2 --mp 2", 4, "batch is 6"),
        ("--mp 4 --heads 2 --hidden 8", 4, "heads is 2"),
        ("--pa", 2, "mp is 1"),
        ("--straggler-rank 2 --straggler-ms 1", 2, "straggler_rank is 2"),
    ],
)
def test_what_does_not_fit_the_ranks_is_one_line(line, ranks, words):
    config = parse(line)
    with pytest.raises(ValueError, match=f"^[^\n]*{words}[^\n]*$"):
        config.check_ranks(ranks)
    parse("--dp 2 --mp 2 --batch 8 --accumulate 4 --pa").check_ranks(4)
    parse("--mp 2").check_ranks(2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--accumulate 0", "micro_batches is 0"),
        ("--clip 0", "clip_norm is 0"),
        ("--dp 0", "dp is 0"),
        ("--mp 0", "mp is 0"),
        ("--reduce-dtype bfloat16", "reduce_dtype"),
        ("--link-latency-us 5", "--link-gbps"),
        ("--straggler-ms 5", "--straggler-ms"),
        ("--straggler-rank 1", "--straggler-rank"),
        ("--plant nothing", "nothing"),
        ("--plant no_prefetch --prefetch 1", "forward_prefetch"),
        ("--plant no_prefetch --stage 1", "stage"),
        ("--colour blue", "--colour"),
        ("--stage 7", "--stage"),
        ("--no-sync --sync-each-micro-batch", "--sync-each-micro-batch"),
        ("--steps x", "--steps"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_code_2(line, words, capsys):
    assert training.main(line.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_a_plant_keeps_the_options_beside_it():
    config = parse("--plant straggler_rank --straggler-rank 0 --straggler-ms 7 --hidden 32 --link-gbps 8")
    assert config.compute is not None
    assert config.link is not None
    assert (config.compute.straggler_rank, config.compute.straggler_s) == (0, 0.007)
    assert (config.gpt.hidden, config.link.bandwidth_bytes_per_s, config.plant) == (32, 1e9, "straggler_rank")
    assert parse("--plant rotating_straggler --straggler-ms 7").compute.straggler_s == 0.007
    assert parse("--plant latency_bound_collectives --link-gbps 8").link.latency_s == 0.010


def test_plants_and_options_are_listed(capsys):
    for line, words in (("--plant list", ["no_prefetch "]), ("--help", ["--stage", "torchrun", "(float32)"])):
        with pytest.raises(SystemExit) as end:
            training.main(line.split())
        assert end.value.code == 0
        out = capsys.readouterr().out
        assert all(word in out for word in words)


def test_the_old_spelling_of_fixed_is_accepted():
    fixed = parse("--plant no_prefetch --fixed")
    assert fixed != parse("--plant no_prefetch")
    assert parse("--plant no_prefetch --cured") == fixed
    with pytest.raises(ValueError, match="--plant"):
        parse("--fixed")
