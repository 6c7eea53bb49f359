"""Define the interface of a command, and list all commands, whose modules are imported when called."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast


class Handover(Exception):
    """Raised by a command to run the user's own program, whose errors are not errors of zprof."""

    def __init__(self, program: Callable[[], int]) -> None:
        super().__init__()
        self.program = program


class Command(Protocol):
    """One command of ``zprof``.

    The class docstring is its help text, which may end with a part ``examples:`` after an empty line.
    Modules of commands do slow imports inside ``run``.
    """

    name: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return the exit code; raises ZprofError for everything that a user can fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command: its name, one line of help, and the location of its class (``module:Class``)."""

    name: str
    summary: str
    home: str

    def load(self) -> Command:
        """Import the command's module and create the command."""
        module, _, kind = self.home.partition(":")
        return cast(Command, getattr(import_module(module), kind)())


COMMANDS: tuple[Entry, ...] = (
    Entry(
        name="demo",
        summary="play the support call on this machine: sharding made the step slower, why?",
        home="zprof.cli.demo:DemoCommand",
    ),
    Entry(
        name="train",
        summary="train the reference ZeRO engine on ranks of this machine, and record it",
        home="zprof.cli.train:TrainCommand",
    ),
    Entry(
        name="record",
        summary="run a training program as it is, and record it",
        home="zprof.cli.record:RecordCommand",
    ),
    Entry(
        name="import",
        summary="turn traces or memory snapshots into a run",
        home="zprof.cli.import_run:ImportCommand",
    ),
    Entry(
        name="diagnose",
        summary="say why a run is slow: the answer on a page, against a baseline or alone",
        home="zprof.cli.diagnose:DiagnoseCommand",
    ),
    Entry(
        name="tui",
        summary="look at a run in the terminal: every number opens",
        home="zprof.cli.tui:TuiCommand",
    ),
    Entry(
        name="report",
        summary="say where memory and time of a run went, and what to change",
        home="zprof.cli.report:ReportCommand",
    ),
    Entry(
        name="compare",
        summary="put two runs side by side: every figure, and what differs in how they were run",
        home="zprof.cli.compare:CompareCommand",
    ),
    Entry(
        name="check",
        summary="fail where memory, communication or overlap of a run got worse: for CI",
        home="zprof.cli.check:CheckCommand",
    ),
    Entry(
        name="baseline",
        summary="save, show and update what zprof check holds a run against",
        home="zprof.cli.baseline:BaselineCommand",
    ),
    Entry(
        name="plan",
        summary="say before a run whether it fits, and what stage, world size and network cost",
        home="zprof.cli.plan:PlanCommand",
    ),
    Entry(
        name="whatif",
        summary="say what a run would become if one thing were changed",
        home="zprof.cli.whatif:WhatIfCommand",
    ),
    Entry(
        name="explain",
        summary="print the page of a finding, or list all of them",
        home="zprof.cli.explain:ExplainCommand",
    ),
    Entry(
        name="verify",
        summary="measure a trace with zprof and with HTA, and say where they differ",
        home="zprof.cli.verify:VerifyCommand",
    ),
    Entry(
        name="export",
        summary="write all ranks of a run as one trace for Perfetto, on one clock",
        home="zprof.cli.export:ExportCommand",
    ),
    Entry(
        name="simulate",
        summary="write traces of a sharded job with a known truth, of 1 to 1024 ranks",
        home="zprof.cli.simulate:SimulateCommand",
    ),
    Entry(
        name="schema",
        summary="print the JSON schema of what zprof writes: a report, a check, a plan and others",
        home="zprof.cli.schema:SchemaCommand",
    ),
    Entry(
        name="bundle",
        summary="put what support needs of a run into one file, without names and paths",
        home="zprof.cli.bundle:BundleCommand",
    ),
    Entry(
        name="doctor",
        summary="say what this machine has of what zprof can use",
        home="zprof.cli.doctor:DoctorCommand",
    ),
)
