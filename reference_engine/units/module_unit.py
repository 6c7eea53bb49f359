"""A module of the model and the flat units that its forward needs."""

from dataclasses import dataclass

from torch import nn

from zprof.reference_engine.units.flat_unit import FlatUnit


@dataclass(frozen=True, slots=True, eq=False)
class ModuleUnit:
    """What is gathered and released together: several flat units where dtypes differ or some are frozen."""

    name: str
    module: nn.Module
    flat: tuple[FlatUnit, ...]

    def gather(self) -> None:
        """Start to fetch what is not here."""
        for unit in self.flat:
            unit.gather()

    def wait(self) -> None:
        """Block until all is here."""
        for unit in self.flat:
            unit.wait()

    def release(self) -> None:
        """Give the memory back."""
        for unit in self.flat:
            unit.release()
