"""The command line of the training program: what becomes what, and what is refused in one line."""

import argparse
import json
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import torch

from zprof.reference_engine import train as training
from zprof.reference_engine.activation_checkpointing import ActivationConfig
from zprof.reference_engine.config import AdamKernel, Keep, LossScale, ZeroConfig
from zprof.reference_engine.program.options import OPTION_GROUPS, add_arguments, make_config
from zprof.reference_engine.program.train_config import TrainConfig, Units

#: Nobody needs them on a command line; ``overlap_*`` have a --no- option.
NOT_OPTIONS = {
    "zero.alignment",
    "zero.betas",
    "zero.eps",
    "timeout_s",
    "shortened",
    "evened",
    "compute.straggler_rotates",
}


def parse(line: str = "") -> TrainConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = vars(parser.parse_args(line.split()))
    return make_config(argparse.Namespace(**json.loads(json.dumps(given))))  # a job carries them as JSON


def test_every_engine_setting_becomes_the_config():
    config = parse(
        """
        --stage 3 --dtype float16 --reduce-dtype float32 --loss-scale 1024 --clip 1.5 --accumulate 4
        --no-sync --prefetch 3 --keep-after-forward last --no-overlap-reduce --no-overlap-gather
        --reduce-buckets 5 --constant-buffers 4096 --defragment --adam torch --learning-rate 0.5
        --weight-decay 0.25
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


def test_the_rest_of_the_run_becomes_the_config():
    line = "--steps 7 --batch 12 --seed 3 --save a/b --resume c --dp 3 --mp 2 --units layers --layers 5"
    config = parse(line)
    assert (config.steps, config.batch, config.seed) == (7, 12, 3)
    assert (config.save, config.resume) == (Path("a/b"), Path("c"))
    assert (config.dp, config.mp, config.units, config.gpt.layers) == (3, 2, Units.LAYERS, 5)


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


def test_one_direction_of_prefetch_goes_before_both():
    for line in ("--prefetch 4 --backward-prefetch 0", "--backward-prefetch 0 --prefetch 4"):
        zero = parse(line).zero
        assert (zero.forward_prefetch, zero.backward_prefetch) == (4, 0)


@pytest.mark.parametrize(
    ("line", "each"), [("", None), ("--sync-each-micro-batch", True), ("--no-sync", False)]
)
def test_synchronisation_of_micro_batches_has_three_ways(line, each):
    assert parse(line).zero.reduce_each_micro_batch is each


def test_every_field_of_the_configs_has_an_option():
    covered = {field for group in OPTION_GROUPS.values() for option in group for field in option.fields}
    covered |= {"zero.loss_scale.growth_factor", "zero.loss_scale.backoff_factor"}
    covered |= {"zero.loss_scale.growth_interval", "activations.contiguous", "plant"}
    missing = set(leaves(TrainConfig())) - covered - NOT_OPTIONS
    assert {name for name in missing if not name.startswith("host.")} == {"link", "compute"}


def leaves(part: object, prefix: str = "") -> list[str]:
    names = []
    for field in fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        if is_dataclass(value):
            names += leaves(value, f"{prefix}{field.name}.")
        else:
            names.append(prefix + field.name)
    return names


@pytest.mark.parametrize(
    ("line", "ranks", "words"),
    [
        ("--dp 3", 2, "dp 3 x mp 1 makes 3 ranks; there are 2"),
        ("--dp 2 --mp 2", 2, "dp 2 x mp 2 makes 4 ranks; there are 2"),
        ("--mp 3", 4, "mp is 3; it must divide the 4 ranks"),
        ("--batch 6", 4, "batch is 6; it must be a multiple of the 4 ranks"),
        ("--batch 6 --accumulate 2", 2, "multiple of the 2 ranks x 2 micro-batches"),
        ("--batch 6 --accumulate 2 --mp 2", 4, "the 2 data-parallel ranks x 2 micro-batches"),
        ("--mp 4 --heads 2 --hidden 8", 4, "heads is 2; it must be a multiple of the 4 model-parallel"),
        ("--pa", 2, "take mp 2 or more"),
        ("--straggler-rank 2 --straggler-ms 1", 2, "straggler_rank is 2"),
    ],
)
def test_what_does_not_fit_the_ranks_is_one_line(line, ranks, words):
    config = parse(line)
    with pytest.raises(ValueError, match=words) as caught:
        config.check_ranks(ranks)
    assert "\n" not in str(caught.value)


def test_what_fits_the_ranks_passes():
    parse("--dp 2 --mp 2 --batch 8 --accumulate 4 --pa").check_ranks(4)
    parse("--mp 2").check_ranks(2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--accumulate 0", "micro_batches is 0"),
        ("--clip 0", "clip_norm is 0"),
        ("--dp 0", "dp is 0"),
        ("--mp 0", "mp is 0"),
        ("--reduce-dtype bfloat16", "reduce_dtype is torch.bfloat16"),
        ("--link-latency-us 5", "--link-latency-us needs --link-gbps"),
        ("--straggler-ms 5", "belong together"),
        ("--plant nothing", "no plant 'nothing'"),
        ("--plant no_prefetch --prefetch 1", "plant no_prefetch sets zero.forward_prefetch to 0"),
        ("--plant no_prefetch --stage 1", "needs zero.stage 3"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_code_2(line, words, capsys):
    assert training.main(line.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "line", ["--colour blue", "--stage 7", "--no-sync --sync-each-micro-batch", "--steps x"]
)
def test_so_is_what_the_parser_refuses(line, capsys):
    assert training.main(line.split()) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_plant_keeps_the_options_beside_it():
    config = parse("--plant straggler_rank --straggler-rank 0 --straggler-ms 7 --hidden 32 --link-gbps 8")
    assert config.compute is not None
    assert config.link is not None
    assert (config.compute.straggler_rank, config.compute.straggler_s) == (0, 0.007)
    assert (config.gpt.hidden, config.link.bandwidth_bytes_per_s, config.plant) == (32, 1e9, "straggler_rank")
    assert parse("--plant rotating_straggler --straggler-ms 7").compute.straggler_s == 0.007
    assert parse("--plant latency_bound_collectives --link-gbps 8").link.latency_s == 0.010


def test_plants_are_listed_like_help(capsys):
    with pytest.raises(SystemExit) as end:
        training.main(["--plant", "list"])
    assert end.value.code == 0
    assert "no_prefetch " in capsys.readouterr().out


def test_help_has_groups_defaults_and_an_example(capsys):
    with pytest.raises(SystemExit):
        training.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "torchrun --nproc-per-node 2 -m zprof.reference_engine.train --stage 3 --accumulate 2 --clip 1.0",
        "sharding:",
        "memory:",
        "micro-batches a step (1)",
        "what runs AdamW (auto)",
        "of parameters, gradients and the wire (float32)",
    ):
        assert words in text
