"""How a plan answers to what is uncertain: bandwidth, latency, tokens and world size."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One step of ZeRO-3 at other conditions; all else is the job's.

    ``bandwidth_ratio``: of what the data-parallel group gets of the network, the lesser of the bus in a
    node and the node's cards: not of the cards alone.  ``latency_ns``: of a hop between nodes.
    ``tokens``: of a device in a micro-batch.  ``devices``: data-parallel ranks times the model's.
    """

    bandwidth_ratio: float
    latency_ns: int
    tokens: int
    devices: int
    wall_ns: int
    compute_ns: int
    exposed_ns: int
    efficiency_ratio: float
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Tokens of a device in a micro-batch from which on compute hides what ZeRO-3 moves.

    ``bandwidth_ratio``: as in ``Point``.  ``forward_tokens``, ``backward_tokens``: of the passes, without
    latency; ``holds_from_tokens``: from there on the whole step keeps ``kept_ratio`` of its speed, latency
    included.
    """

    hardware: str
    bandwidth_ratio: float
    forward_tokens: float
    backward_tokens: float
    holds_from_tokens: int | None
    kept_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """Throughput of a device at ``devices`` against that at the fewest of a series, taken apart.

    whole = equal_batch x larger_batch: sharding the same batch of a device over more ranks, and what the
    memory won lets a device take more of.  ``samples``: a device's largest micro-batch that fits;
    ``at_most``: an upper bound of it, as not all of the memory is known.
    """

    devices: int
    samples: int
    at_most: bool = False
    state_bytes: int
    activation_bytes: int
    whole_ratio: float
    equal_batch_ratio: float
    larger_batch_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Series over one condition each, and the answer in sentences."""

    answers: tuple[str, ...] = ()
    bandwidth: tuple[Point, ...] = ()
    latency: tuple[Point, ...] = ()
    tokens: tuple[Point, ...] = ()
    world: tuple[Point, ...] = ()
    break_even: tuple[BreakEven, ...] = ()
    speed_up: tuple[SpeedUp, ...] = ()
