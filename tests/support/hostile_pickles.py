"""Pickles that attack their reader, by name, with a word that the one-line error must have.

Made of opcodes by hand where ``pickle.dumps`` would not write them.
"""

import pickle
import struct
from collections.abc import Callable
from typing import Any

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from tests.support.snapshots import frames

TWO = b"\x80\x02"
FOUR = b"\x80\x04"


class _Calls:
    """Pickles as a call of os.system."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, (self._command,)


def code(command: str) -> dict[str, bytes]:
    """Pickles that would run ``command``."""
    line = command.encode()
    return {
        "global": TWO + b"cos\nsystem\n(S'" + line + b"'\ntR.",
        "stack_global": pickle.dumps(_Calls(command), protocol=4),
        "inst": TWO + b"(S'" + line + b"'\nios\nsystem\n.",
        "obj": TWO + b"(cos\nsystem\nS'" + line + b"'\no.",
        "inside_a_snapshot": pickle.dumps({"segments": [], "device_traces": [[_Calls(command)]]}, protocol=5),
        "as_a_name": TWO + b"}S'segments'\ncposix\nsystem\n(S'" + line + b"'\ntRs.",
    }


def opcodes() -> dict[str, tuple[bytes, str]]:
    """Opcodes that make more than data, or that lie about sizes."""
    return {
        "reduce": (TWO + b"])R.", "damaged pickle"),
        "newobj": (TWO + b"])\x81.", "damaged pickle"),
        "build": (TWO + b"]}S'a'\nK\x01sb.", "damaged pickle"),
        "ext": (TWO + b"\x82\x01.", "damaged pickle"),
        "persid": (TWO + b"Pabc\n.", "objects outside the file"),
        "binpersid": (TWO + b"]Q.", "objects outside the file"),
        "next_buffer": (b"\x80\x05\x97.", "damaged pickle"),
        "frame": (FOUR + b"\x95" + struct.pack("<Q", 1 << 62) + b"}.", ""),
        "bytes": (FOUR + b"\x8e" + struct.pack("<Q", 10 << 30) + b"x.", ""),
        "text": (FOUR + b"\x8d" + struct.pack("<Q", 10 << 30) + b"x.", ""),
        "long": (TWO + b"\x8b" + struct.pack("<i", -5) + b".", "damaged pickle"),
        "memo_index": (TWO + b"}r\xff\xff\xff\x0f.", "MiB"),
        "ten_gigabytes": (TWO + b"}r\x00\x00\x00\x28.", "MiB"),
        "empty_stack": (TWO + b".", "damaged pickle"),
        "only_magic": (TWO, "damaged pickle"),
        "nested_lists": (TWO + b"]" * 500_000 + b"a" * 499_999 + b".", "not dict"),
        "nested_in_the_trace": (
            TWO + b"}X\r\x00\x00\x00device_traces" + b"]" * 500_000 + b"a" * 499_999 + b"s.",
            "an entry is list",
        ),
        "nested_key": (TWO + b"})" + b"\x85" * 1_000_000 + b"K\x01s.", ""),
    }


def shapes() -> dict[str, tuple[object, str]]:
    """Objects of the wrong shape, some of which would explode in a naive walker."""
    bomb: list[Any] = []
    for _ in range(30):
        bomb = [bomb, bomb]
    circle: list[Any] = []
    circle.append(circle)
    entry = {"action": "alloc", "addr": 1 << 40, "size": 512, "stream": 0, "time_us": 1, "frames": []}
    trace = [dict(entry) for _ in range(1000)]
    segment = {"device": 0, "address": 0, "total_size": 0, "blocks": [dict(entry) for _ in range(1000)]}
    return {
        "not_a_dict": ([1, 2], "not dict"),
        "no_keys": ({"weights": 1}, "neither segments nor device_traces"),
        "shared_list": ({"device_traces": [bomb]}, "an entry is list"),
        "circle": ({"device_traces": circle}, "an entry is list"),
        "circle_of_frames": ({"device_traces": [[entry | {"frames": circle}]]}, "a frame is list"),
        "shared_trace": ({"device_traces": [trace] * 1000}, "repeats more rows"),
        "shared_segment": ({"segments": [segment] * 500}, "repeats more rows"),
        "many_devices": ({"device_traces": [[]] * 5000}, "more devices"),
        "device_of_no_machine": ({"segments": [segment | {"device": 1 << 40}]}, "a device that no machine"),
    }


def wrong_values() -> dict[str, tuple[Callable[[dict[str, Any]], None], str]]:
    """What to change in a good snapshot, and the word of the error."""

    def of_entry(**values: Any) -> Callable[[dict[str, Any]], None]:
        return lambda snapshot: snapshot["device_traces"][0][-1].update(values)

    def of_segment(**values: Any) -> Callable[[dict[str, Any]], None]:
        return lambda snapshot: snapshot["segments"][0].update(values)

    def of_block(**values: Any) -> Callable[[dict[str, Any]], None]:
        return lambda snapshot: snapshot["segments"][0]["blocks"][0].update(values)

    return {
        "size_text": (of_entry(size="512"), "size is str"),
        "size_bool": (of_entry(size=True), "size is bool"),
        "size_float": (of_entry(size=1.0), "size is float"),
        "size_negative": (of_entry(size=-1), "size is missing or negative"),
        "size_endless": (of_entry(size=1 << 70), "64 bits"),
        "sizes_overflow": (of_entry(size=(1 << 63) - 1), "exceed any possible memory"),
        "addr_negative": (of_entry(addr=-7), "addr is missing or negative"),
        "addr_none": (of_entry(addr=None), "addr is missing"),
        "time_negative": (of_entry(time_us=-1), "time_us is negative"),
        "time_endless": (of_entry(time_us=1 << 62), "out of range"),
        "action_list": (of_entry(action=[]), "action is list"),
        "tag_bytes": (of_entry(user_metadata=b"x"), "user_metadata is bytes"),
        "frames_text": (of_entry(frames="abc"), "frames is str"),
        "frame_line": (of_entry(frames=[{"filename": "a", "line": "1", "name": "b"}]), "a frame without"),
        "frame_line_endless": (of_entry(frames=[_line(1 << 62)]), "line number"),
        "pool_text": (of_entry(pool_id="0,0"), "pool id"),
        "pool_nested": (of_entry(pool_id=((0,), 0)), "pool id"),
        "state_unknown": (of_block(state="gone"), "a state that torch"),
        "block_negative": (of_block(size=-512), "size is negative"),
        "segment_text": (of_segment(total_size="1"), "total_size is str"),
        "blocks_dict": (of_segment(blocks={}), "not a list"),
        "stream_text": (of_segment(stream="0"), "stream is str"),
        "annotations_int": (lambda snapshot: snapshot.update(external_annotations=3), "not a list"),
    }


def _line(number: int) -> dict[str, Any]:
    return {"filename": "a", "line": number, "name": "b"}


def good() -> dict[str, Any]:
    """A small sound snapshot whose last entry is an allocation in its first segment."""
    allocator = Allocator()
    allocator.begin_history()
    freed = allocator.alloc(2048, frames=frames("linear", "forward"))
    allocator.free(freed)
    allocator.alloc(1000, frames=frames("relu", "forward"), tag="activations")
    return snapshot_of(allocator)
