"""The parts of a training step."""

from enum import StrEnum


class Phase(StrEnum):
    """What the step was doing."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"
