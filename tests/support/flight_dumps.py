"""Small flight-recorder dumps as PyTorch writes them, and dumps that attack their reader."""

import gzip
import json
import pickle
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tests.support.hostile_pickles import TWO, code, opcodes

Dump = dict[str, Any]


def make_entry(number: int, group: tuple[int, str, str] = (0, "0", "default_pg"), **changes: Any) -> Dump:
    """One all_reduce, the ``number``-th of its group."""
    group_id, name, description = group
    return {
        "frames": [{"name": "train_step", "filename": "train.py", "line": 10 + number % 3}],
        "record_id": number,
        "pg_id": group_id,
        "process_group": (name, description),
        "thread_name": "python",
        "thread_id": "139728670067584",
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_795_886_292_891_137_966 + number,
        "input_sizes": [[4096, 5120]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4096, 5120]],
        "output_dtypes": ["BFloat16"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
    } | changes


def make_dump(ranks: Sequence[int] = (0, 1), count: int = 3, **changes: Any) -> Dump:
    """A dump of a rank in one group."""
    return {
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}},
        "nccl_version": "2.27.3",
        "pg_status": {
            "0": {
                "last_enqueued_collective": count,
                "last_started_collective": -1,
                "last_completed_collective": 0,
            }
        },
        "entries": [make_entry(number) for number in range(count)],
    } | changes


def to_json(dump: Dump) -> bytes:
    """The dump as PyTorch's JSON: no frames, 0 for an unknown time, texts for numbers of groups."""
    entries = [
        {key: 0 if value is None else value for key, value in entry.items() if key != "frames"}
        for entry in dump["entries"]
    ]
    status = {
        key: {name: str(value) for name, value in facts.items()} for key, facts in dump["pg_status"].items()
    }
    return json.dumps(
        dump | {"pg_status": status} | {"entries": entries}, sort_keys=True, default=list
    ).encode()


def _change(**changes: Any) -> bytes:
    return pickle.dumps(make_dump(**changes), protocol=2)


def _change_entry(**changes: Any) -> bytes:
    dump = make_dump()
    dump["entries"][1] |= changes
    return pickle.dumps(dump, protocol=2)


def _change_json(change: Callable[[bytes], bytes]) -> bytes:
    return change(to_json(make_dump()))


def _config(**changes: Any) -> bytes:
    facts = {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"} | changes
    return _change(pg_config={"0": facts})


def _status(**changes: Any) -> bytes:
    facts = {"last_enqueued_collective": 3, "last_completed_collective": 0} | changes
    return _change(pg_status={"0": facts})


_OPCODES = (
    *("reduce", "newobj", "build", "ext", "persid", "binpersid", "next_buffer", "frame", "bytes", "text"),
    *("long", "memo_index", "ten_gigabytes", "only_magic", "nested_lists", "nested_key"),
)


def make_refused(command: str) -> dict[str, bytes]:
    """Files that are no usable dump, by name; some would run ``command``."""
    return {**code(command), **_make_unusable()}


def list_refused() -> list[str]:
    """The names of these files, of which one takes seconds to make."""
    return [*code(""), *_make_unusable(groups=1)]


@cache
def _make_unusable(groups: int = 1_000_000) -> dict[str, bytes]:
    config = {str(number): {"ranks": "[0]", "desc": ""} for number in range(groups)}
    inside = pickle.dumps(make_dump(), protocol=2)
    return {
        **{name: opcodes()[name][0] for name in _OPCODES},
        "global_after_the_dump": inside[:-1] + b"0cposix\nsystem\n(X\x04\x00\x00\x00true\x85R.",
        "truncated": inside[:-40],
        "empty": b"",
        "text": b"hello\n",
        "list": pickle.dumps([make_dump()], protocol=2),
        "number": pickle.dumps(17, protocol=4),
        "no_keys": pickle.dumps({"version": "2.9"}, protocol=2),
        "status_is_a_list": _change(pg_status=[1]),
        "entries_is_a_text": _change(entries="abc"),
        "config_is_a_list": _change(pg_config=[]),
        "million_groups": _change(pg_config=config),
        "gzip_bomb": gzip.compress(_change(later=bytes(30 << 20)), compresslevel=9),
        "cut_gzip": gzip.compress(inside)[:-30],
        "shared_list_many_times": TWO
        + b"}(X\x07\x00\x00\x00entries](}q\x01"
        + b"h\x01" * 600_000
        + b"eX\x09\x00\x00\x00pg_config}u.",
        "json_deep": b'{"pg_config":' + b"[" * 200_000,
        "json_deep_objects": b'{"pg_config":' * 100_000,
        "json_huge_number": _change_json(lambda text: text.replace(b'"record_id": 1', b'"record_id": 1e400')),
        "json_nan": _change_json(lambda text: text.replace(b'"record_id": 1', b'"record_id": NaN')),
        "json_cut": _change_json(lambda text: text[:-30]),
        "json_list": b'[{"pg_config": {}}]',
        "json_bad_utf8": _change_json(lambda text: text.replace(b"default_pg", b"\xff\xfe\xfa")),
    }


EVIL = "\x1b[31mred\x1b]0;title\x07 [bold]markup[/bold] \u202eevil\u2066 \ud800 line\nbreak"


@cache
def make_partial() -> dict[str, tuple[bytes, int]]:
    """Dumps of which something is left out with a gap, and how many of their three entries are read."""
    bomb: list[Any] = []
    for _ in range(30):
        bomb = [bomb, bomb]
    circle: list[Any] = []
    circle.append(circle)
    return {
        "entry_is_a_list": (_change(entries=[make_entry(0), [], make_entry(1)]), 2),
        "no_entry_is_valid": (_change(entries=[1, None, "x"]), 0),
        "state_unknown": (_change_entry(state="late"), 2),
        "sequence_negative": (_change_entry(collective_seq_id=-5), 2),
        "sequence_is_a_flag": (_change_entry(collective_seq_id=True), 2),
        "sequence_of_65_bits": (_change_entry(collective_seq_id=1 << 65), 2),
        "sequence_of_400_digits": (_change_entry(collective_seq_id=10**400), 2),
        "time_nan": (_change_entry(time_created_ns=float("nan")), 2),
        "id_negative": (_change_entry(pg_id=-1), 2),
        "sizes_negative": (_change_entry(input_sizes=[[-4]]), 2),
        "sizes_bomb": (_change_entry(input_sizes=bomb), 2),
        "sizes_circle": (_change_entry(output_sizes=circle), 2),
        "sizes_of_many_tensors": (_change_entry(input_sizes=[[]] * 100_000), 2),
        "dtypes_number": (_change_entry(input_dtypes=[7]), 2),
        "group_is_a_text": (_change_entry(process_group="0"), 2),
        "long_name": (_change_entry(profiling_name="x" * 100_000), 2),
        "name_with_escapes": (_change_entry(state=EVIL), 2),
        "frames_bomb": (_change_entry(frames=bomb), 3),
        "frame_without_line": (_change_entry(frames=[{"name": "f"}, {"line": "x"}]), 3),
        "frame_line_huge": (_change_entry(frames=[{"name": "f", "filename": "a", "line": 1 << 70}]), 3),
        "ranks_with_dots": (_config(ranks="[0, 1, ..., 1000000000]"), 3),
        "ranks_huge": (_config(ranks="[0, 1000000000]"), 3),
        "ranks_twice": (_config(ranks="[0, 0]"), 3),
        "ranks_code": (_config(ranks="__import__('os').system('true')"), 3),
        "ranks_list": (_config(ranks=[0, 1]), 3),
        "description_number": (_config(desc=7), 3),
        "group_name_number": (_change(pg_config={7: {"ranks": "[0]", "desc": ""}}), 3),
        "status_nan": (_status(last_enqueued_collective=float("nan")), 3),
        "status_400_digits": (_status(last_enqueued_collective="9" * 400), 3),
        "status_negative": (_status(last_completed_collective=-9), 3),
        "status_key": (_change(pg_status={EVIL: {}}), 3),
        "version_unknown": (_change(version=EVIL), 3),
        "version_is_a_list": (_change(version=[]), 3),
    }
