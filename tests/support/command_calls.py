"""Commands called in process, as ``tests/unit/cli/conftest.py`` makes them."""

from collections.abc import Callable

#: Takes arguments; returns exit code, stdout and stderr.
Call = Callable[..., tuple[int, str, str]]
