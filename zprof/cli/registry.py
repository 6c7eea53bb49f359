"""Define the interface of a command, and list all commands; their modules are imported lazily."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast


class Handover(Exception):
    """Raised by a command to run the user's program outside zprof's error handling."""

    def __init__(self, program: Callable[[], int]) -> None:
        super().__init__()
        self.program = program


class Command(Protocol):
    """One command of ``zprof``.

    The class docstring is its help text, which may end with an ``examples:`` section.  Command modules must
    defer slow imports to ``run``.
    """

    name: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return the exit code; raises ZprofError for errors that the user can fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command: its name, one line of help, and the import path of its class (``module:Class``)."""

    name: str
    summary: str
    import_path: str

    def load(self) -> Command:
        """Import the command's module and create the command."""
        module, _, kind = self.import_path.partition(":")
        return cast(Command, getattr(import_module(module), kind)())


COMMANDS: tuple[Entry, ...] = (
    Entry(
        name="demo",
        summary="demo: find out why sharding made a training step slower",
        import_path="zprof.cli.demo:DemoCommand",
    ),
    Entry(
        name="train",
        summary="train with the reference ZeRO engine on this machine and record it",
        import_path="zprof.cli.train:TrainCommand",
    ),
    Entry(
        name="record",
        summary="run an unmodified training program and record it",
        import_path="zprof.cli.record:RecordCommand",
    ),
    Entry(
        name="import",
        summary="turn traces or memory snapshots into a run",
        import_path="zprof.cli.import_run:ImportCommand",
    ),
    Entry(
        name="diagnose",
        summary="explain on one page why a run is slow, with or without a baseline",
        import_path="zprof.cli.diagnose:DiagnoseCommand",
    ),
    Entry(
        name="tui",
        summary="explore a run in the terminal and drill down into any number",
        import_path="zprof.cli.tui:TuiCommand",
    ),
    Entry(
        name="report",
        summary="report where a run's memory and time went, and what to change",
        import_path="zprof.cli.report:ReportCommand",
    ),
    Entry(
        name="compare",
        summary="compare the metrics and settings of two runs side by side",
        import_path="zprof.cli.compare:CompareCommand",
    ),
    Entry(
        name="check",
        summary="fail in CI if memory, communication or overlap regressed",
        import_path="zprof.cli.check:CheckCommand",
    ),
    Entry(
        name="baseline",
        summary="save, show and update the baseline for zprof check",
        import_path="zprof.cli.baseline:BaselineCommand",
    ),
    Entry(
        name="plan",
        summary="predict whether a job fits, and the cost of stage, world size and network",
        import_path="zprof.cli.plan:PlanCommand",
    ),
    Entry(
        name="whatif",
        summary="predict the effect of a change on a measured run",
        import_path="zprof.cli.whatif:WhatIfCommand",
    ),
    Entry(
        name="explain",
        summary="explain a finding, or list all findings",
        import_path="zprof.cli.explain:ExplainCommand",
    ),
    Entry(
        name="verify",
        summary="analyze a trace with zprof and HTA and show the differences",
        import_path="zprof.cli.verify:VerifyCommand",
    ),
    Entry(
        name="export",
        summary="write all ranks of a run as one trace for Perfetto, on one clock",
        import_path="zprof.cli.export:ExportCommand",
    ),
    Entry(
        name="simulate",
        summary="write synthetic traces of a sharded job with known ground truth",
        import_path="zprof.cli.simulate:SimulateCommand",
    ),
    Entry(
        name="schema",
        summary="print the JSON schema of a report, check, baseline, plan or prediction",
        import_path="zprof.cli.schema:SchemaCommand",
    ),
    Entry(
        name="bundle",
        summary="write an anonymized support bundle of a run",
        import_path="zprof.cli.bundle:BundleCommand",
    ),
    Entry(
        name="doctor",
        summary="show which features zprof can use on this machine",
        import_path="zprof.cli.doctor:DoctorCommand",
    ),
)
