"""How a user wants an import to be done, and what came of it."""

from dataclasses import dataclass

from zprof.integrations.imports.names import RankedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """``workers``: processes of this machine, 0 for as many as it has.  ``executor``: dask://HOST:PORT."""

    workers: int = 0
    executor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """From which file each rank is, and what is worth saying.

    ``lasting``: another try would end the same.
    """

    files: tuple[RankedFile, ...]
    notes: tuple[str, ...]
    lasting: bool = True
