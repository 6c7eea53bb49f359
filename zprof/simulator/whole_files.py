"""Write files that are complete or absent."""

import os
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it; nothing is left if that fails.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
