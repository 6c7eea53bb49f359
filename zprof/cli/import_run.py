"""``zprof import``: files of other programs in, a run out."""

import argparse
from pathlib import Path

from zprof.cli import console
from zprof.model.printable import printable


class ImportCommand:
    """Turn CUDA memory snapshots into a run, one snapshot a rank.

    A snapshot (torch.cuda.memory._dump_snapshot) is a pickle: it is read in a
    process of its own, with limits on memory and time, and nothing in it is ever
    executed.  The rank is taken from the name of the file (rank3, _3.pickle),
    else from the order.  Commands that take a RUN take a snapshot too.

    examples:
      zprof import snapshot.pickle -o customer.zprof
      zprof import rank0.pickle rank1.pickle -o customer.zprof
      zprof import snapshots/ -o customer.zprof --force
    """

    name = "import"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The files, and the run to write."""
        parser.add_argument(
            "paths", metavar="PATH", type=Path, nargs="+", help="a CUDA memory snapshot, or a folder of them"
        )
        parser.add_argument("-o", "--output", metavar="RUN", type=Path, required=True, help="run to write")
        parser.add_argument("--force", action="store_true", help="overwrite RUN")

    def run(self, arguments: argparse.Namespace) -> int:
        """Import, and say of what ranks."""
        from zprof.integrations.importing import import_paths

        made = import_paths(arguments.paths, arguments.output, arguments.force)
        for note in made.notes:
            console.note(f"zprof: {printable(note)}")
        count = len(made.files)
        ranks = f"{count} rank" if count == 1 else f"{count} ranks"
        console.note(f"zprof: wrote {printable(made.run)} ({ranks})")
        console.note(f"zprof: next, zprof report {printable(made.run)}")
        return 0
