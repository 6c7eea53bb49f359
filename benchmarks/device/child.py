"""Makes one check in this process and writes its row.

python -m benchmarks.device.child CHECK ROW.json
"""

import json
import sys
import time
from pathlib import Path

from benchmarks.device.checks import Check, check_of
from benchmarks.device.row import CheckFailed, NotMeasured, Row, Status, one_line


def made(check: Check) -> Row:
    """The row of a check, whatever happens in it."""
    begin = time.monotonic()

    def seconds() -> float:
        return round(time.monotonic() - begin, 2)

    try:
        figures = check.measure()
    except NotMeasured as why:
        return Row(check=check.name, status=Status.NOT_MEASURED, reason=one_line(why), seconds=seconds())
    except CheckFailed as failed:
        return Row(
            check=check.name,
            status=Status.FAILED,
            reason=one_line(failed),
            seconds=seconds(),
            figures=failed.figures,
        )
    except ImportError as error:
        return Row(
            check=check.name,
            status=Status.NOT_MEASURED,
            reason=f"{error.name or 'a package'} is missing: {one_line(error)}",
            seconds=seconds(),
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        return Row(check=check.name, status=Status.FAILED, reason=reason, seconds=seconds())
    return Row(check=check.name, status=Status.OK, seconds=seconds(), figures=figures)


def main() -> None:
    name, path = sys.argv[1:]
    row = made(check_of(name))
    Path(path).write_text(json.dumps(row.as_dict()))


if __name__ == "__main__":
    main()
