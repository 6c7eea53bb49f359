"""Run the command line as ``python -m zprof``."""

import sys

from zprof.cli import main

if __name__ == "__main__":
    sys.exit(main())
