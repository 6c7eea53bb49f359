"""What ``zprof whatif`` says.  Schema ``zprof.whatif/1``."""

from dataclasses import dataclass

from zprof.model.planning.whatif import Outlook
from zprof.model.report import RunFacts

WHATIF_SCHEMA = "zprof.whatif/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The run that was measured, and what the changes asked for would make of it."""

    schema: str = WHATIF_SCHEMA
    zprof_version: str
    run: RunFacts
    outlook: Outlook
