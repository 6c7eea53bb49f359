"""Read ``allocator_settings`` of a snapshot: the options of torch's allocator that change the size of blocks.

Values are from ``AllocatorConfig.h`` (torch 2.8 to 2.13). Snapshots of older versions have no settings, and
options of newer ones appear only in the text of the environment variable.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

#: ``roundup_power2_divisions`` has one value per power of two from 1 MiB on; the last one is for all above.
_ROUNDUP_KEYS = tuple(str(1 << exponent) for exponent in range(16))
_MAX_DIVISIONS = 1 << 40
_CONF_TEXT = "PYTORCH_CUDA_ALLOC_CONF"
_MAX_CONF_CHARS = 4096
_LARGE_SEGMENT = re.compile(r"large_segment_size_mb\s*:\s*(\d{1,7})")
_MEBIBYTE = 1 << 20


class AllocatorSettings(Struct, frozen=True, kw_only=True):
    """Settings of the allocator; None where the default is in force, or the snapshot does not say.

    ``max_split_bytes``: requests from this size on take whole segments. ``roundup_divisions``: the number of
    block sizes within each power of two, from 1 MiB on. ``large_segment_bytes``: size of the segments for
    requests of 1 to 10 MiB.
    """

    expandable_segments: bool | None = None
    max_split_bytes: int | None = None
    roundup_divisions: tuple[int, ...] = ()
    large_segment_bytes: int | None = None


def read_settings(value: object) -> AllocatorSettings:
    """Return the settings; what is missing, unknown or not of the expected type counts as not stated."""
    if not isinstance(value, Mapping):
        return AllocatorSettings()
    expandable, max_split = value.get("expandable_segments"), value.get("max_split_size")
    conf = value.get(_CONF_TEXT)
    large = _LARGE_SEGMENT.search(conf[:_MAX_CONF_CHARS]) if type(conf) is str else None
    return AllocatorSettings(
        expandable_segments=expandable if type(expandable) is bool else None,
        # torch writes the largest integer, which is -1 here, if nothing is set
        max_split_bytes=max_split if type(max_split) is int and 0 < max_split < 1 << 62 else None,
        roundup_divisions=_read_divisions(value.get("roundup_power2_divisions")),
        large_segment_bytes=int(large[1]) * _MEBIBYTE if large and int(large[1]) else None,
    )


def _read_divisions(value: object) -> tuple[int, ...]:
    if not isinstance(value, Mapping):
        return ()
    found: Sequence[object] = [value.get(key, 0) for key in _ROUNDUP_KEYS]
    divisions = tuple(each for each in found if type(each) is int and 0 <= each < _MAX_DIVISIONS)
    return divisions if len(divisions) == len(_ROUNDUP_KEYS) and max(divisions) > 1 else ()
