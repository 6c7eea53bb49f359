import re

import pytest

from zprof.reference_engine.comm import native
from zprof.reference_engine.comm.collective import Collective, Kind

GATHER = Collective(
    kind=Kind.ALL_GATHER, group="0", sequence=12, unit="blocks.3", bytes=4096, dtype="bfloat16"
)
IDENTITY = r"(?P<kind>[a-z_]+) pg=(?P<pg>\S+) seq=(?P<seq>\d+) unit=(?P<unit>\S+)"
SIZE = r" bytes=(?P<bytes>\d+) dtype=(?P<dtype>\S+)"


@pytest.mark.parametrize(
    ("made", "grammar"),
    [
        (native.launch_range(GATHER), rf"zero::launch {IDENTITY}{SIZE}"),
        (native.wait_range(GATHER), rf"zero::wait {IDENTITY}"),
        (native.comm_range(GATHER), rf"zero::comm {IDENTITY}{SIZE}"),
    ],
)
def test_collective_ranges_follow_the_grammar(made, grammar):
    match = re.fullmatch(grammar, made.name)
    assert match is not None
    fields = match.groupdict()
    expected = {"kind": "all_gather", "pg": "0", "seq": "12", "unit": "blocks.3"}
    if "bytes" in fields:
        expected |= {"bytes": "4096", "dtype": "bfloat16"}
    assert fields == expected


def test_compute_and_prefetch_miss():
    assert native.compute_range("backward", "blocks.3").name == "zero::compute backward unit=blocks.3"
    assert native.prefetch_miss_range("a", "b").name == "zero::prefetch_miss unit=a expected=b"
