"""Format quantities with units, and make untrusted text safe to print.

A module name in a recording may contain escape sequences that control a terminal, line breaks that forge a
line of the report, or bidirectional overrides that reverse text. Such characters are shown as escapes.
"""

import shlex
import signal
import unicodedata
from collections.abc import Iterable, Sequence

_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
DECIMAL_SIZES = ((10**9, "GB"), (10**6, "MB"), (10**3, "KB"), (1, "B"))
_TIME = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
#: For less frequent events, the number of steps between them is given.
_MIN_TIMES_PER_STEP = 0.5


def format_bytes(count_bytes: float) -> str:
    """Format bytes: ``1572864`` as ``1.5 MiB``; below 1 KiB as a plain count."""
    for unit, name in _BINARY:
        if abs(count_bytes) >= unit:
            return f"{count_bytes / unit:.1f} {name}"
    return f"{count_bytes:.0f} B"


def format_decimal_bytes(count_bytes: float) -> str:
    """Format bytes in decimal units, as plans do: ``40_500_000_000`` as ``40.5 GB``."""
    factor, unit = next((entry for entry in DECIMAL_SIZES if count_bytes >= entry[0]), DECIMAL_SIZES[-1])
    return f"{count_bytes / factor:,.1f}".removesuffix(".0") + f" {unit}"


def format_ns(duration_ns: float) -> str:
    """Format a duration: ``412000000`` as ``412.0 ms``."""
    for unit, name in _TIME:
        if abs(duration_ns) >= unit:
            return f"{duration_ns / unit:.1f} {name}"
    return f"{duration_ns:.0f} ns"


def format_ms(duration_ns: float) -> str:
    """Format a duration in milliseconds with one decimal and without unit, for table columns."""
    return f"{duration_ns / 1e6:.1f}"


def format_percent(ratio: float) -> str:
    """Format a ratio: ``0.384`` as ``38.4 %``."""
    return f"{ratio * 100:.1f} %"


def format_frequency(per_step: float, basis: str) -> str:
    """Return "2.5 times per step"; for rare events the steps between them, never "0.0 times"."""
    if 0 < per_step < _MIN_TIMES_PER_STEP:
        return f"once in {round(1 / per_step):,} steps"
    number = f"{per_step:.1f}".removesuffix(".0")
    return f"once {basis}" if number == "1" else f"{number} times {basis}"


def format_rate(bytes_per_s: float) -> str:
    """Format a bandwidth in decimal gigabytes (or megabytes) per second, as link speeds are quoted."""
    if bytes_per_s >= 1e9:
        return f"{bytes_per_s / 1e9:.1f} GB/s"
    return f"{bytes_per_s / 1e6:.1f} MB/s"


#: Unicode categories that are shown as escapes: control, format (bidirectional and zero width), surrogate,
#: private use, unassigned, line and paragraph separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: object) -> str:
    """Return ``text`` on one line, without characters that control a terminal."""
    string = str(text)
    return string if string.isprintable() else "".join(_escape(character) for character in string)


def escape_surrogates(text: str) -> str:
    """Return ``text`` as valid Unicode: a name that is not UTF-8 has surrogates instead of its bytes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def format_next_step(run: object) -> str:
    """Return the next command to suggest after a run was written, quoted for a shell."""
    return f"next: zprof diagnose {shlex.quote(printable(run))}"


def printable_lines(text: object) -> list[str]:
    """Return the lines of zprof's own multi-line text, each made printable."""
    return [printable(line) for line in str(text).split("\n")]


def name_ranks(ranks: Sequence[int], max_ranks: int = 8) -> str:
    """Return "rank 1", "ranks 1 and 2", "ranks 1, 2, 3 and 120 more", or "no rank"."""
    if len(ranks) <= 1:
        return f"rank {ranks[0]}" if ranks else "no rank"
    if len(ranks) > max_ranks:
        return f"ranks {', '.join(map(str, ranks[:max_ranks]))} and {len(ranks) - max_ranks} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def format_ranges(ranks: Iterable[int]) -> str:
    """Format ranks as ``0-3, 8, 10-13``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def name_signal(number: int) -> str:
    """Return "SIGKILL"; real-time signals only have a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def display_width(text: str) -> int:
    """Return the terminal columns of ``text``: two per wide character, none per combining mark."""
    if text.isascii():
        return len(text)
    return sum(_count_columns(character) for character in text)


def shorten(text: str, width: int) -> str:
    """Truncate ``text`` to at most ``width`` columns, with ``…`` at the end if it was truncated."""
    if display_width(text) <= width:
        return text
    characters, columns = [], 0
    for character in text:
        columns += _count_columns(character)
        if columns > width - 1:
            break
        characters.append(character)
    return "".join(characters) + "…" if width > 0 else ""


def _escape(character: str) -> str:
    code = ord(character)
    if unicodedata.category(character) not in _UNSAFE:
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _count_columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def format_psi(value: float) -> str:
    """Format a value in Ψ, the bytes of all parameters."""
    return f"{value:.4g}Ψ"
