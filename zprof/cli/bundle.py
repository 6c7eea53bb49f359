"""``zprof bundle``: write an anonymized support bundle."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.base.errors import BadInput
from zprof.cli import console
from zprof.cli.inputs import open_run
from zprof.cli.output import check_output_target, open_atomically, write_document

if TYPE_CHECKING:
    pass


class BundleCommand:
    """Write an anonymized zip file of a run for support, and list its contents first.

    Contains the report, the manifests, the software versions of this machine, and the
    collectives of each rank (times and sizes). Only allow-listed data is included. Names
    of modules, groups, hosts and runs are replaced by pseudonyms such as module-3; in
    texts only zprof's own words and numbers are kept, so paths, kernel names and the like
    are hidden. Events and stacks are never included.

    examples:
      zprof bundle zero3.zprof -o ticket.zip
      zprof bundle zero3.zprof --baseline ddp.zprof -o ticket.zip --names names.json
      zprof bundle traces/ --list
    """

    name = "bundle"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare RUN and the output files."""
        parser.add_argument("run", metavar="RUN", type=Path, help="recording folder or traces")
        parser.add_argument("--baseline", metavar="RUN", type=Path, help="run to compare RUN with")
        parser.add_argument(
            "-o", "--output", metavar="FILE", type=Path, help="output file (default: name of RUN with .zip)"
        )
        parser.add_argument("--force", action="store_true", help="overwrite FILE")
        parser.add_argument(
            "--list", action="store_true", help="list the contents without writing the bundle"
        )
        parser.add_argument(
            "--names",
            metavar="FILE",
            type=Path,
            help="write the mapping from names to pseudonyms to FILE; do not share it",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Collect the bundle, print its contents, and write it."""
        output: Path = arguments.output or Path(f"{arguments.run.resolve().stem}.zip")
        if not arguments.list:
            check_output_target(output, force=arguments.force)
        if arguments.names is not None:
            check_output_target(arguments.names, force=arguments.force)
            # Raise if both are the same file: the bundle must not contain the names.
            if arguments.names.resolve() == output.resolve():
                raise BadInput(
                    f"{arguments.names}: used for both the bundle and the names",
                    hint="choose another file for --names",
                )
        run = open_run(arguments.run)
        baseline = open_run(arguments.baseline) if arguments.baseline else None
        from zprof.diagnosis.diagnose import diagnose
        from zprof.integrations.doctor import examine
        from zprof.integrations.support_bundle import collect_bundle

        bundle = collect_bundle(run, diagnose(run, baseline), examine())
        from zprof.reports.pages.small_pages import build_bundle_page

        parts = [(part.name, part.description, len(part.content)) for part in bundle.parts]
        console.print_page(build_bundle_page(parts, len(bundle.names), bundle.left_out))
        if arguments.names is not None:
            import json

            write_document(json.dumps(bundle.names, indent=1) + "\n", arguments.names, force=arguments.force)
        if not arguments.list:
            from zprof.integrations.support_bundle import write_bundle

            with open_atomically(output, force=arguments.force) as file:
                write_bundle(bundle, file)
            console.print_note(f"zprof: wrote {output}")
        return 0
