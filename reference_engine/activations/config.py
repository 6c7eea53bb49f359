"""What a user may choose about activations."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationConfig:
    """ZeRO-R's switches for activations (arXiv 1910.02054, section 6); all may be combined.

    Raises:
        ValueError: a switch needs another one; the message names it.
    """

    checkpoint: bool = False
    """Keep only a block's input, and compute the block again in the backward."""
    partition: bool = False
    """Pa: of each checkpoint keep 1/N on each of N model-parallel ranks; an all_gather brings it back."""
    host: bool = False
    """Pa+cpu: keep checkpoints in host memory.  Without ``partition`` each rank keeps them whole there."""
    contiguous: bool = False
    """MD: copy checkpoints into one chunk of memory that was allocated once."""

    def __post_init__(self) -> None:
        for name in ("partition", "host", "contiguous"):
            if getattr(self, name) and not self.checkpoint:
                raise ValueError(f"{name} is about checkpoints, but checkpoint is False; set it to True")

    def check_model_parallel(self, ranks: int) -> None:
        """Refuse what needs more model-parallel ranks.

        Raises:
            ValueError: one line that says what does not fit.
        """
        if self.partition and ranks < 2:
            raise ValueError(
                f"partition divides checkpoints among model-parallel ranks, but there is {ranks}; "
                "take mp 2 or more, or leave partition out"
            )
