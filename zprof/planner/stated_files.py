"""Read the small files that users name in options: machines, models, DeepSpeed configurations."""

from pathlib import Path

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, shorten

_MAX_REASON = 80


def read_stated_file(path: Path, *, max_bytes: int, what: str, hint: str = "") -> bytes:
    """Return the content of a file.

    Args:
        path: The file.
        max_bytes: A larger file is something else.
        what: What the file should be, as in "a machine description".
        hint: What to give instead.

    Raises:
        BadInput: it is not a regular file, cannot be read, or is too large.
    """
    name = printable(path)
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block; a device might never end
            raise BadInput(f"{name}: not a file", hint=hint)
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadInput(f"{name}: cannot be read: {reason}", hint=hint) from error
    if len(content) > max_bytes:
        raise BadInput(f"{name}: larger than {max_bytes} bytes: not {what}", hint=hint)
    return content


def name_parse_error(error: Exception) -> str:
    """Return the first line of a parser's message, shortened and escaped, because it quotes the file."""
    lines = str(error).splitlines()
    return shorten(printable(lines[0] if lines else type(error).__name__), _MAX_REASON)
