"""Refuse manifests with impossible numbers: each numeric fact has a range.

No other code has to expect a negative size or a number that does not fit into a table.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from zprof.model.errors import BadInput
from zprof.run.manifest import RankManifest, RunManifest

#: Every number of a manifest fits into an int64 column; none is negative.
_ANY = range(1 << 63)
_COUNT = range(1, 1 << 31)
#: Far beyond any model, and the product of the two is an int64.
_ELEMENTS = range(1 << 50)
_ELEMENT_BYTES = range(1 << 12)
#: By the name of the field, wherever it is in the manifest.
_RANGES: Mapping[str, range] = {
    "world_size": range(1, (1 << 20) + 1),
    "rank": range(1 << 20),
    "stage": range(4),
    "parameters": _ELEMENTS,
    "padding_elements": _ELEMENTS,
    "step_counters": _ELEMENTS,
    "samples_per_step": _ELEMENTS,
    "tokens_per_step": _ELEMENTS,
    "parameter_bytes": _ELEMENT_BYTES,
    "gradient_bytes": _ELEMENT_BYTES,
    "optimizer_state_bytes": _ELEMENT_BYTES,
    "communication_bytes": _ELEMENT_BYTES,
    "reduction_bytes": _ELEMENT_BYTES,
    "shard_ranks": _COUNT,
    "replica_ranks": _COUNT,
    "gathered_elements": _ELEMENTS,
    "reduced_elements": _ELEMENTS,
    "micro_batches": _COUNT,
    "model_parallel_ranks": _COUNT,
}
_MAX_DIGITS = 25
_MAX_SETTINGS, _MAX_SETTING_LENGTH = 1_000, 1_000


def check_run_facts(manifest: RunManifest, path: Path) -> None:
    """Check the numbers of a run's manifest.

    Raises:
        BadInput: a number is impossible; the message has its name and value. Or the settings are too many or
            too long.
    """
    _check_numbers(manifest, path)
    settings = manifest.training.settings
    if len(settings) > _MAX_SETTINGS:
        raise _make_error(path, "number of settings", len(settings), f"up to {_MAX_SETTINGS}")
    longest = max((len(text) for each in settings for text in (each.name, each.value)), default=0)
    if longest > _MAX_SETTING_LENGTH:
        raise _make_error(path, "length of a setting", longest, f"up to {_MAX_SETTING_LENGTH}")


def check_rank_facts(manifest: RankManifest, rank: int, path: Path) -> None:
    """Check the numbers of the manifest in the folder of ``rank``.

    Raises:
        BadInput: a number is impossible or the rank is another one; the message has its name and value.
    """
    _check_numbers(manifest, path)
    if manifest.rank != rank:
        raise _make_error(path, "rank", manifest.rank, f"{rank}, as in the name of its folder")


def _check_numbers(manifest: RunManifest | RankManifest, path: Path) -> None:
    for name, value in _list_numbers(manifest, ""):
        limits = _RANGES.get(name.rpartition(".")[2], _ANY)
        if value not in limits:
            raise _make_error(path, name, value, f"{limits.start} to {limits.stop - 1}")


def _list_numbers(value: object, name: str) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers in a tree of structs with their dotted names."""
    if isinstance(value, int):
        yield name, value
    elif isinstance(value, Struct):
        for field in value.__struct_fields__:
            dotted = f"{name}.{field}" if name else field
            yield from _list_numbers(getattr(value, field), dotted)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _list_numbers(entry, f"{name}.{key}")
    elif isinstance(value, tuple):
        # Of many step numbers the extremes are enough.
        is_plain = bool(value) and all(type(entry) is int for entry in value)
        for entry in (min(value), max(value)) if is_plain else value:
            yield from _list_numbers(entry, name)


def _make_error(path: Path, name: str, value: int, allowed: str) -> BadInput:
    # Python refuses to print numbers of more than a few thousand digits.
    text = str(value) if value.bit_length() < _MAX_DIGITS * 3 else f"a number of {value.bit_length()} bits"
    return BadInput(f"{path}: impossible {name}: {text} (possible: {allowed})", hint="record the run again")
