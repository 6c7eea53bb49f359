"""What the engine's program says of itself to the recorder."""

import argparse

from zprof.integrations.reference_rank import describe_modelled_parts
from zprof.reference_engine.program.options import add_arguments, make_config


def said(line: str) -> str:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return "; ".join(describe_modelled_parts(make_config(parser.parse_args(line.split()))))


def test_a_real_run_has_nothing_modelled() -> None:
    assert said("--stage 3 --accumulate 2") == ""


def test_a_planted_run_says_so_first() -> None:
    text = said("--plant low_bus_bandwidth")
    assert text.startswith("planted low_bus_bandwidth: the link of rank 1 has a fifth of its speed")
    assert "link of 50.0 MB/s, latency 50.0 µs, one rank 5 times slower" in text
    assert "compute of 12.0 ms forward and 24.0 ms backward a block" in text


def test_a_memory_plant_says_so_without_a_modelled_link() -> None:
    assert said("--plant buffers_dominate").startswith("planted buffers_dominate: ")
    assert "link" not in said("--plant buffers_dominate")


def test_stragglers_are_named() -> None:
    assert "straggler: rank 0 late by 40.0 ms a step" in said("--straggler-rank 0 --straggler-ms 40")
    assert "in each step another rank, late by 7.0 ms" in said("--plant rotating_straggler --straggler-ms 7")


def tokens(line: str, dp: int) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return make_config(parser.parse_args(line.split())).tokens_per_step(dp)


def test_tokens_of_a_step_are_those_of_all_ranks() -> None:
    assert tokens("--batch 8 --context 64", 1) == 512
    assert tokens("--batch 8 --context 64", 4) == 512
    assert tokens("--batch 8 --context 64 --accumulate 2", 4) == 512


def test_shorter_sequences_count_as_they_are() -> None:
    """Planted: the sequences of all ranks but the first are shorter."""
    planted = "--plant uneven_shapes --batch 8"
    assert 0 < tokens(planted, 2) < tokens(planted, 1)
    assert tokens(planted, 4) < tokens(planted, 2)
