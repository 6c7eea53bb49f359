"""What is measured, and which contender is held against which."""

from dataclasses import asdict, dataclass
from typing import Any

FLOAT32, BFLOAT16 = "float32", "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of one benchmark; ``batch`` is global.

    A round is every contender once in a random order, and once more in the reverse of it: what drifts in a
    round, drifts alike for all.  A visit is ``warm_up`` steps that do not count and ``steps`` that do.
    """

    ranks: int = 2
    layers: int = 4
    hidden: int = 256
    heads: int = 4
    vocabulary: int = 1024
    context: int = 64
    batch: int = 8
    dtype: str = FLOAT32
    rounds: int = 12
    warm_up: int = 1
    steps: int = 2
    memory_steps: int = 8
    """Each has a peak, and their median counts: gloo's threads free a little earlier or later each time."""
    traffic_steps: int = 2
    learning_rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in (FLOAT32, BFLOAT16):
            raise ValueError(f"dtype is {self.dtype}; it must be {FLOAT32} or {BFLOAT16}")
        for name in ("ranks", "rounds", "steps", "memory_steps", "traffic_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


QUICK = {
    "layers": 2, "hidden": 32, "vocabulary": 64, "context": 16, "batch": 4, "rounds": 1, "warm_up": 0,
    "steps": 1, "memory_steps": 2, "traffic_steps": 1,
}  # fmt: skip
"""Sizes of a smoke test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The engine, called ``subject``, is held against ``peer``."""

    subject: str
    peer: str
    equal_overlap: bool
    """Whether both overlap their collectives with compute in the same way."""


_FSDP2 = (
    Pair(subject="zero2 plain", peer="fsdp2 keep", equal_overlap=True),
    Pair(subject="zero2", peer="fsdp2 keep", equal_overlap=False),
    Pair(subject="zero3 plain", peer="fsdp2", equal_overlap=True),
    Pair(subject="zero3", peer="fsdp2", equal_overlap=False),
    Pair(subject="zero3 keep plain", peer="fsdp2 keep", equal_overlap=True),
    Pair(subject="zero3 keep", peer="fsdp2 keep", equal_overlap=False),
)
_DDP = (
    Pair(subject="zero0", peer="ddp", equal_overlap=True),
    Pair(subject="zero1 plain", peer="ddp + zro", equal_overlap=False),
    Pair(subject="zero1", peer="ddp + zro", equal_overlap=False),
)


def pairs_of(dtype: str) -> tuple[Pair, ...]:
    """The pairs of a dtype: DDP has no fp32 master weights for 16-bit parameters, so it is left out there."""
    return (*_DDP, *_FSDP2) if dtype == FLOAT32 else _FSDP2


def contenders_of(pairs: tuple[Pair, ...]) -> list[str]:
    """All names, each once, in the order of the pairs."""
    return list(dict.fromkeys(name for pair in pairs for name in (pair.peer, pair.subject)))
