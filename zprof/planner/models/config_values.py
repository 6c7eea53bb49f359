"""Read typed values of a config.json from a stranger: each wrong value is one BadInput line that names it."""

from collections.abc import Mapping
from typing import Any

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, shorten

#: Far beyond any real model, yet small enough that no product of sizes takes long to compute.
MAX_WIDTH = 10**7
MAX_LAYERS = 10**4
MAX_ROWS = 10**9
_MAX_SHOWN = 40


class ConfigValues:
    """Values of one object of a config.json; ``where`` names the file in errors.

    A key that is null counts as missing. Of several keys, the first that is given counts: families name
    the same size differently.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def has(self, *keys: str) -> bool:
        """Return True if one of the keys is given."""
        return any(self.config.get(key) is not None for key in keys)

    def require_integer(self, *keys: str, max_value: int = MAX_WIDTH) -> int:
        """Return an integer from 1.

        Raises:
            BadInput: none of the keys is given, or the value is no such integer.
        """
        value = self.find_integer(*keys, min_value=1, max_value=max_value)
        if value is None:
            raise BadInput(
                f"{self.where}: {keys[0]} is missing",
                hint="give the config.json of a transformer language model, as Hugging Face writes it",
            )
        return value

    def find_integer(self, *keys: str, min_value: int = 0, max_value: int = MAX_WIDTH) -> int | None:
        """Return the integer of the first given key, or None.

        Raises:
            BadInput: the value is not an integer from ``min_value`` to ``max_value``.
        """
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if type(value) is not int or not min_value <= value <= max_value:
                raise self.make_error(key, f"is not an integer from {min_value} to {max_value:,}")
            return value
        return None

    def get_flag(self, key: str, default: bool) -> bool:
        """Return a boolean.

        Raises:
            BadInput: the value is not true or false.
        """
        value = self.config.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.make_error(key, "is not true or false")
        return value

    def get_text(self, key: str) -> str:
        """Return a string, empty if the key is missing.

        Raises:
            BadInput: the value is not a string.
        """
        value = self.config.get(key)
        if value is None:
            return ""
        if type(value) is not str:
            raise self.make_error(key, "is not a string")
        return value

    def find_list(self, key: str, kind: type) -> list[Any] | None:
        """Return a list of values of one type with at most one entry per layer, or None.

        Raises:
            BadInput: the value is not such a list.
        """
        value = self.config.get(key)
        if value is None:
            return None
        if (
            type(value) is not list
            or len(value) > MAX_LAYERS
            or any(type(entry) is not kind for entry in value)
        ):
            raise self.make_error(
                key, f"is not a list of at most {MAX_LAYERS:,} values of type {kind.__name__}"
            )
        return value

    def refuse_true(self, *keys: str) -> None:
        """Raise BadInput if a flag is set whose effect the counts do not know."""
        for key in keys:
            if self.get_flag(key, default=False):
                raise self.make_error(key, "is not supported")

    def make_error(self, key: str, problem: str) -> BadInput:
        """Return the error that a value has a problem."""
        value = self.config.get(key)
        if isinstance(value, int | float | str | None):
            # Python refuses to print integers of more than 4,300 digits.
            shown = "an integer" if type(value) is int and abs(value) > MAX_ROWS**2 else repr(value)
        else:
            shown = f"a {type(value).__name__}"
        return BadInput(f"{self.where}: {key}: {shorten(printable(shown), _MAX_SHOWN)} {problem}")
