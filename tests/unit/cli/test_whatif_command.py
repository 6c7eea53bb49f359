"""``zprof whatif``: every option reaches the change, and the answer goes to stdout."""

import argparse
from pathlib import Path

import pytest

from tests.support.command_calls import Call
from zprof.cli.whatif import add_change_options, read_change
from zprof.model.plan import Change

RECORDED = Path(__file__).parents[2] / "data/tui/zero3"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("--stage 0", Change(stage=0)),
        ("--prefetch 0", Change(prefetch=0)),
        ("--keep none", Change(keep_after_forward="none")),
        ("--overlap-reduce off", Change(overlap_reduce=False)),
        ("--overlap-gather on", Change(overlap_gather=True)),
        ("--latency x0.5", Change(latency_ratio=0.5)),
        ("--merge-units 2", Change(units_merged=2)),
        ("--micro-batches 4", Change(micro_batches=4)),
        ("--reduce-bytes 4", Change(element_bytes_reduced=4)),
        ("--even", Change(even=True)),
        ("--shard-ranks 8", Change(shard_ranks=8)),
        ("--stage 2 --bandwidth x2", Change(stage=2, bandwidth_ratio=2.0)),
        ("", None),
    ],
)
def test_an_option_is_a_field_of_the_change(options: str, wanted: Change | None) -> None:
    parser = argparse.ArgumentParser()
    add_change_options(parser)
    assert read_change(parser.parse_args(options.split())) == wanted


def test_more_units_merged_than_there_are_are_refused_in_one_line(call: Call) -> None:
    code, out, err = call("whatif", RECORDED, "--merge-units", "100")
    assert code != 0
    assert (out, err.count("\n"), "100" in err) == ("", 1, True)
