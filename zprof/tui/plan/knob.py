"""One knob: a field of the change, and what it can be turned to."""

from dataclasses import dataclass
from typing import Any

from zprof.model.planning.whatif import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a knob can be turned to; its value is None where that is what was measured."""

    text: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A field of the change, and its choices.  ``idle``: why it means nothing as the others stand."""

    field: str
    title: str
    says: str
    choices: tuple[Choice, ...]
    idle: str = ""

    def place(self, change: Change) -> int:
        """Where it stands."""
        value = getattr(change, self.field)
        return next((at for at, choice in enumerate(self.choices) if choice.value == value), self.measured)

    @property
    def measured(self) -> int:
        """Where it stood in the run."""
        return next(at for at, choice in enumerate(self.choices) if choice.value is None)

    def is_turned(self, change: Change) -> bool:
        """Whether it stands elsewhere than in the run."""
        return not self.idle and self.place(change) != self.measured
