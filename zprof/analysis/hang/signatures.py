"""Number what must be equal on all ranks of an operation, and derive once per job what its ranks repeat."""

import re

from zprof.analysis.hang.flight import Group
from zprof.analysis.user_code import make_user_location

#: Operations whose sizes may differ between ranks, or belong to one of them: only kind and dtype must agree.
_UNEVEN = re.compile(r"all_?to_?all|gather$|scatter$|barrier|coalesced|_v$|send|recv")
_EVEN_GATHERS = re.compile(r"all_?gather|reduce_?scatter")


class Signatures:
    """Numbers for what must be equal on all ranks of an operation; equal signatures have equal numbers.

    Ranks repeat each other: what was derived from a text once is kept for the next rank.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}
        self._texts: list[tuple[str, ...]] = []
        self._by_operation: dict[tuple[str, ...], int] = {}
        self._by_frame: dict[tuple[str, int, str], int] = {}
        self._groups: dict[tuple[str, str, str], Group] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}

    def number(self, signature: tuple[str, ...]) -> int:
        """Return the number of a signature."""
        found = self._numbers.get(signature)
        if found is None:
            found = self._numbers[signature] = len(self._texts)
            self._texts.append(signature)
        return found

    def number_operation(self, operation: str, sizes: str, dtypes: str, outputs: str) -> int:
        """Return the number of what must be equal on all ranks of an operation."""
        key = (operation, sizes, dtypes, outputs)
        found = self._by_operation.get(key)
        if found is None:
            found = self._by_operation[key] = self.number(_make_signature(*key))
        return found

    def number_frame(self, file: str, line: int, function: str) -> int:
        """Return the number of the line of a frame; -1 if it is not the user's code."""
        key = (file, line, function)
        found = self._by_frame.get(key)
        if found is None:
            place = make_user_location(file, line, function)
            found = self.number((place.file, str(place.line))) if place is not None else -1
            self._by_frame[key] = found
        return found

    def make_group(self, name: str, description: str, ranks: str) -> Group:
        """Return a group; ``ranks`` is "0,4,8"."""
        key = (name, description, ranks)
        found = self._groups.get(key)
        if found is None:
            if ranks not in self._ranks:
                self._ranks[ranks] = tuple(int(part) for part in ranks.split(",")) if ranks else ()
            found = self._groups[key] = Group(name, description, self._ranks[ranks])
        return found

    def get(self, number: int) -> tuple[str, ...]:
        """Return the signature: operation, then sizes and dtypes, or the line of the program."""
        return self._texts[number]


def _make_signature(operation: str, sizes: str, dtypes: str, outputs: str) -> tuple[str, ...]:
    """Return what must be equal on all ranks of an operation."""
    if _UNEVEN.search(operation) and not _EVEN_GATHERS.search(operation):
        return operation, "", dtypes
    return operation, f"{sizes} -> {outputs}" if _EVEN_GATHERS.search(operation) else sizes, dtypes
