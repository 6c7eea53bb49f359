"""How a task of the child process answers."""

from collections.abc import Callable, Mapping
from typing import Any

#: Writes one line of the answer.
Tell = Callable[[Mapping[str, Any]], None]
