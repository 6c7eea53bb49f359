"""The synthetic trace that loaders are measured on is a trace, with the mix of events of a real one."""

import gzip
import json
from collections import Counter

from benchmarks.synthetic_trace import write
from zprof.collectors.kineto.reading.reader import read_trace

SHARES = {"python_function": 37, "ac2g": 22, "cpu_op": 16, "cuda_runtime": 13, "kernel": 8}


def test_the_mix_of_events(tmp_path):
    path = tmp_path / "trace.json.gz"
    number = write(path, 1_000_000)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    shares = {
        category: count / number * 100 for category, count in Counter(e.get("cat") for e in events).items()
    }
    assert len(events) == number
    assert all(abs(shares[category] - share) < 2.5 for category, share in SHARES.items())


def test_both_readers_agree_on_it(tmp_path):
    path = tmp_path / "trace.json.gz"
    number = write(path, 300_000)
    trace = read_trace(path)
    assert (trace.report.events, trace.report.dropped, trace.header.rank) == (number, 0, 0)
    collectives = [row for row, each in trace.arguments.items() if trace.category[row] == "kernel"]
    assert collectives
    assert all(trace.arguments[row].sequence is not None for row in collectives)
