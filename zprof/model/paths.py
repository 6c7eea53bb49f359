"""Paths in a report: names and indices from its root to a number."""

from functools import cached_property
from typing import Final

from msgspec import Struct

#: Index of a path part that stands for every entry of a list or mapping; its text is ``[*]``.
EVERY: Final = -1


class Path(Struct, frozen=True, dict=True):
    """A path such as ``time.per_rank[3].wall_ns``: names, and indices of entries or ``EVERY``."""

    parts: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return "".join(
            f".{part}" if isinstance(part, str) else f"[{'*' if part == EVERY else part}]"
            for part in self.parts
        ).removeprefix(".")

    @cached_property
    def pattern(self) -> str:
        """The path without its indices, as the catalogue has it: ``time.per_rank[].wall_ns``."""
        return "".join(f".{part}" if isinstance(part, str) else "[]" for part in self.parts).removeprefix(".")

    @property
    def name(self) -> str:
        """The name of the field or key at the end, before any index."""
        return next((part for part in reversed(self.parts) if isinstance(part, str)), "")

    @property
    def parent(self) -> "Path":
        """The path of the record that has the field at the end: ``time.per_rank[3]``."""
        last_name = max((at for at, part in enumerate(self.parts) if isinstance(part, str)), default=0)
        return Path(self.parts[:last_name])

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices on the way, in order."""
        return tuple(part for part in self.parts if isinstance(part, int))

    def at(self, index: int) -> "Path":
        """Return the path with an index in place of ``EVERY``."""
        return Path(tuple(index if part == EVERY else part for part in self.parts))

    def starts_with(self, *names: str) -> bool:
        """Return True if the path begins with these names."""
        return self.parts[: len(names)] == names


def parse_path(text: str) -> Path:
    """Parse ``time.per_rank[3].wall_ns``; ``[*]`` and ``[]`` stand for every entry.

    Raises:
        ValueError: an index is not a number.
    """
    parts: list[str | int] = []
    for piece in text.split("."):
        name, *indices = piece.split("[")
        parts += [name] if name else []
        parts += [EVERY if index in ("*]", "]") else int(index.removesuffix("]")) for index in indices]
    return Path(tuple(parts))
