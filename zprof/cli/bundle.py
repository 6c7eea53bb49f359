"""``zprof bundle``: write one file for a support ticket."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli import console
from zprof.cli.inputs import open_run
from zprof.cli.output import check_target, deliver, open_atomically
from zprof.model.errors import BadInput

if TYPE_CHECKING:
    from zprof.integrations.support_bundle import Bundle


class BundleCommand:
    """Put what support needs of a run into one zip file, and say what is in it first.

    The report, the manifests, this machine's versions, and the collectives of each rank
    (times and sizes). Only what is on an allow-list goes in; names of modules, groups,
    hosts and runs get stand-ins such as module-3, and of texts only zprof's own words and
    numbers stay: paths, kernels and all else are hidden. Events and stacks stay here.

    examples:
      zprof bundle zero3.zprof -o ticket.zip
      zprof bundle zero3.zprof --baseline ddp.zprof -o ticket.zip --names names.json
      zprof bundle traces/ --list
    """

    name = "bundle"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare RUN and the output files."""
        parser.add_argument("run", metavar="RUN", type=Path, help="a recording, or traces")
        parser.add_argument("--baseline", metavar="RUN", type=Path, help="recording to compare with")
        parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="(default: RUN's name .zip)")
        parser.add_argument("--force", action="store_true", help="overwrite FILE")
        parser.add_argument("--list", action="store_true", help="say what would be in it, write nothing")
        parser.add_argument(
            "--names",
            metavar="FILE",
            type=Path,
            help="write which name got which stand-in; keep it to yourself",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Collect the bundle, print its contents, and write it."""
        output: Path = arguments.output or Path(f"{arguments.run.resolve().stem}.zip")
        if not arguments.list:
            check_target(output, force=arguments.force)
        if arguments.names is not None:
            check_target(arguments.names, force=arguments.force)
            _check_apart(arguments.names, output)
        bundle = _collect_bundle(arguments)
        console.data(_describe_contents(bundle))
        if arguments.names is not None:
            _deliver_names(bundle, arguments.names, force=arguments.force)
        if not arguments.list:
            _deliver(bundle, output, force=arguments.force)
        return 0


def _check_apart(names: Path, output: Path) -> None:
    """Raise if both are one file: the names must stay apart from the bundle."""
    if names.resolve() == output.resolve():
        raise BadInput(f"{names}: both the bundle and the names", hint="name another file for --names")


def _collect_bundle(arguments: argparse.Namespace) -> "Bundle":
    from zprof.integrations.doctor import examine
    from zprof.integrations.support_bundle import collect_bundle
    from zprof.rules.diagnose import diagnose

    run = open_run(arguments.run)
    baseline = open_run(arguments.baseline) if arguments.baseline else None
    return collect_bundle(run, diagnose(run, baseline), examine())


def _describe_contents(bundle: "Bundle") -> str:
    from zprof.reports.formats import page_text
    from zprof.reports.presenters.small_pages import bundle_page

    parts = [(part.name, part.says, len(part.content)) for part in bundle.parts]
    return page_text(bundle_page(parts, len(bundle.names), bundle.left_out))


def _deliver(bundle: "Bundle", output: Path, *, force: bool) -> None:
    from zprof.integrations.support_bundle import write_bundle

    with open_atomically(output, force=force) as file:
        write_bundle(bundle, file)
    console.note(f"zprof: wrote {output}")


def _deliver_names(bundle: "Bundle", path: Path, *, force: bool) -> None:
    import json

    deliver(json.dumps(bundle.names, indent=1) + "\n", path, force=force)
