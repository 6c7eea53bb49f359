"""Read the text that faulthandler writes about all threads, for a process that holds the GIL for ever.

    Thread 0x00007f3c (most recent call first):
      File "/job/train.py", line 12 in spin
    Current thread 0x00007f3d [python] (most recent call first):
      ...

The main thread comes last. Python 3.11 to 3.13 differ in the thread's name only.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x([0-9a-fA-F]{1,16})(?: \[(.*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')
_MAX_THREADS, _MAX_FRAMES = 500, 200


class Frame(Struct, frozen=True):
    """One Python frame."""

    file: str
    line: int
    function: str


class ThreadStack(Struct, frozen=True, kw_only=True):
    """Where a thread was, innermost frame first."""

    thread: int
    name: str = ""
    is_main: bool = False
    frames: tuple[Frame, ...] = ()


def parse_thread_text(text: str) -> Sequence[ThreadStack]:
    """Return the stacks of all threads; what is not in the format is left out."""
    found: list[tuple[int, str, list[Frame]]] = []
    for line in text.splitlines():
        if match := _THREAD.fullmatch(line):
            if len(found) == _MAX_THREADS:
                break
            found.append((int(match[1], 16) & (1 << 63) - 1, match[2] or "", []))
        elif found and (match := _FRAME.fullmatch(line)) and len(found[-1][2]) < _MAX_FRAMES:
            number = int(match[2]) if match[2].isdigit() else 0
            found[-1][2].append(Frame(match[1], number, match[3]))
    return [
        ThreadStack(thread=thread, name=name, is_main=position == len(found), frames=tuple(frames))
        for position, (thread, name, frames) in enumerate(found, 1)
        if frames
    ]


def make_thread_tables(
    threads: Sequence[ThreadStack], first_stack: int = 0
) -> dict[str, dict[str, list[object]]]:
    """Return the columns of ``flight_thread`` and ``flight_stack``; ``first_stack`` is the first number."""
    stacks: dict[tuple[Frame, ...], int] = {}
    for each in threads:
        stacks.setdefault(each.frames, first_stack + len(stacks))
    rows = [
        (number, depth, frame.file, frame.line, frame.function)
        for frames, number in stacks.items()
        for depth, frame in enumerate(frames)
    ]
    names = ("stack", "depth", "file", "line", "function")
    return {
        "flight_thread": {
            "thread": [each.thread for each in threads],
            "name": [each.name for each in threads],
            "is_main": [each.is_main for each in threads],
            "stack": [stacks[each.frames] for each in threads],
        },
        "flight_stack": {name: [row[index] for row in rows] for index, name in enumerate(names)},
    }
