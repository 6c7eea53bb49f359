"""Define the interface of a command, and list all commands; their modules are imported lazily."""

import argparse
from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from typing import NamedTuple, Protocol, cast


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
        """Run the command and return the exit code; raise ZprofError for errors that the user can fix."""


class Group(StrEnum):
    """Purpose of a command, in the order of ``zprof --help``."""

    RECORD = "Record"
    UNDERSTAND = "Understand"
    PREDICT = "Predict"
    GUARD = "Guard"
    TOOLS = "Tools"


class Entry(NamedTuple):
    """A command: its name, group, one line of help, and the import path of its class (``module:Class``)."""

    name: str
    group: Group
    summary: str
    import_path: str

    def load(self) -> Command:
        """Import the command's module and create the command."""
        module, _, kind = self.import_path.partition(":")
        return cast(Command, getattr(import_module(module), kind)())


COMMANDS: tuple[Entry, ...] = (
    Entry(
        name="record",
        group=Group.RECORD,
        summary="run an unmodified training program and record it",
        import_path="zprof.cli.record:RecordCommand",
    ),
    Entry(
        name="train",
        group=Group.RECORD,
        summary="train with the reference ZeRO engine on this machine and record it",
        import_path="zprof.cli.train:TrainCommand",
    ),
    Entry(
        name="demo",
        group=Group.RECORD,
        summary="reproduce a case: why sharding made a training step slower",
        import_path="zprof.cli.demo:DemoCommand",
    ),
    Entry(
        name="hang",
        group=Group.UNDERSTAND,
        summary="explain why a job hangs: which rank, which collective, which line",
        import_path="zprof.cli.hang:HangCommand",
    ),
    Entry(
        name="diagnose",
        group=Group.UNDERSTAND,
        summary="explain on one page why a run is slow, with or without a baseline",
        import_path="zprof.cli.diagnose:DiagnoseCommand",
    ),
    Entry(
        name="report",
        group=Group.UNDERSTAND,
        summary="report where a run's memory and time went, and what to change",
        import_path="zprof.cli.report:ReportCommand",
    ),
    Entry(
        name="tui",
        group=Group.UNDERSTAND,
        summary="explore a run in the terminal and drill down into any number",
        import_path="zprof.cli.tui:TuiCommand",
    ),
    Entry(
        name="compare",
        group=Group.UNDERSTAND,
        summary="compare the metrics and settings of two runs side by side",
        import_path="zprof.cli.compare:CompareCommand",
    ),
    Entry(
        name="query",
        group=Group.UNDERSTAND,
        summary="ask SQL of a run: steps, collectives, findings, memory",
        import_path="zprof.cli.query:QueryCommand",
    ),
    Entry(
        name="explain",
        group=Group.UNDERSTAND,
        summary="explain a finding, or list all findings",
        import_path="zprof.cli.explain:ExplainCommand",
    ),
    Entry(
        name="import",
        group=Group.UNDERSTAND,
        summary="turn traces, memory snapshots or flight-recorder dumps into a run",
        import_path="zprof.cli.import_run:ImportCommand",
    ),
    Entry(
        name="mcp",
        group=Group.TOOLS,
        summary="answer agents over the Model Context Protocol",
        import_path="zprof.cli.mcp:McpCommand",
    ),
    Entry(
        name="export",
        group=Group.UNDERSTAND,
        summary="write all ranks of a run as one trace for Perfetto, on one clock",
        import_path="zprof.cli.export:ExportCommand",
    ),
    Entry(
        name="plan",
        group=Group.PREDICT,
        summary="predict whether a job fits, its step time and its traffic",
        import_path="zprof.cli.plan:PlanCommand",
    ),
    Entry(
        name="whatif",
        group=Group.PREDICT,
        summary="predict the effect of a change on a measured run",
        import_path="zprof.cli.whatif:WhatIfCommand",
    ),
    Entry(
        name="check",
        group=Group.GUARD,
        summary="fail in CI if memory, communication or overlap regressed",
        import_path="zprof.cli.check:CheckCommand",
    ),
    Entry(
        name="baseline",
        group=Group.GUARD,
        summary="save, show and update the baseline for zprof check",
        import_path="zprof.cli.baseline:BaselineCommand",
    ),
    Entry(
        name="doctor",
        group=Group.TOOLS,
        summary="show which features zprof can use on this machine",
        import_path="zprof.cli.doctor:DoctorCommand",
    ),
    Entry(
        name="bundle",
        group=Group.TOOLS,
        summary="write an anonymized support bundle of a run",
        import_path="zprof.cli.bundle:BundleCommand",
    ),
    Entry(
        name="verify",
        group=Group.TOOLS,
        summary="analyze a trace with zprof and HTA and show the differences",
        import_path="zprof.cli.verify:VerifyCommand",
    ),
    Entry(
        name="simulate",
        group=Group.TOOLS,
        summary="write synthetic traces of a sharded job with known ground truth",
        import_path="zprof.cli.simulate:SimulateCommand",
    ),
    Entry(
        name="schema",
        group=Group.TOOLS,
        summary="print the JSON schema of a report, check, baseline or plan",
        import_path="zprof.cli.schema:SchemaCommand",
    ),
    Entry(
        name="cache",
        group=Group.TOOLS,
        summary="show or clear cached imports and reports",
        import_path="zprof.cli.cache:CacheCommand",
    ),
    Entry(
        name="completion",
        group=Group.TOOLS,
        summary="print a script that completes zprof in bash, zsh or fish",
        import_path="zprof.cli.completion:CompletionCommand",
    ),
)
