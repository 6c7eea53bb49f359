"""What a planted cause is: two tables of config fields.

``base`` is the run in which the cause shows: its sizes, a modelled link, modelled compute; whatever is asked
for beside the plant goes before it.  ``change`` is the cause itself; what is asked for may not contradict it,
nor ``needs``, or the run would not be what it is called.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from zprof.reference_engine.program.train_config import TrainConfig, with_fields

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One cause: ``does`` says in a sentence what is wrong with the run.

    ``needs`` names fields that must have one of some values for the cause to be there at all.  ``cure``
    are those that take it away again, where leaving ``change`` out does not.
    """

    cause: str
    does: str
    base: Fields
    change: Fields = field(default_factory=dict)
    needs: Mapping[str, Collection[Any]] = field(default_factory=dict)
    cure: Fields = field(default_factory=dict)

    @property
    def is_modelled(self) -> bool:
        """Whether it brings a link and compute of a chosen speed."""
        return any(name.startswith("link.") for name in self.base)

    def apply(self, config: TrainConfig, asked: Fields | None = None) -> TrainConfig:
        """The config with the cause planted in it; ``asked`` is what its base must not replace.

        Raises:
            ValueError: what was asked for contradicts the cause; the message names the field.
        """
        asked = {} if asked is None else asked
        for name, value in self.change.items():
            if name in asked and asked[name] != value:
                raise ValueError(f"plant {self.cause} sets {name} to {_plain(value)}; do not set it beside")
        planted = with_fields(config, {**self.base, **asked, **self.change, "plant": self.cause})
        for name, allowed in self.needs.items():
            value = _value(planted, name)
            if value not in allowed:
                raise ValueError(f"plant {self.cause} needs {name} {_values(allowed)}; it is {_plain(value)}")
        return planted

    def cured(self, config: TrainConfig, asked: Fields | None = None) -> TrainConfig:
        """The same run without the cause: what a planted run is to be compared with.

        Raises:
            ValueError: a setting is out of range.
        """
        asked = {} if asked is None else asked
        return with_fields(config, {**self.base, **asked, **self.cure})


def _value(config: TrainConfig, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _values(allowed: Collection[Any]) -> str:
    if isinstance(allowed, range):
        return f"of {allowed.start} or more"
    return " or ".join(_plain(value) for value in allowed)


def _plain(value: object) -> str:
    return str(value).removeprefix("torch.")
