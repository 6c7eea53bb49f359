"""Suggest what a mistyped name may stand for: a command, an option, a choice, a gate, a file."""

from collections.abc import Iterable

from zprof.model.formatting import printable, shorten

_MAX_SUGGESTIONS = 3
_CUTOFF = 0.6
#: Comparing is quadratic in the length of a name, and a hint is one line.
_MAX_COMPARED, _MAX_SHOWN = 64, 80


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Return a hint with similar names (``did you mean peak_memory?``), or with all names."""
    names = list(known)
    return ask_for_name(name, names) or f"known: {', '.join(names)}"


def ask_for_name(name: str, known: Iterable[str]) -> str:
    """Return the question ``did you mean A or B?``; empty if no name is similar."""
    near = find_similar(name, known)
    shown = [shorten(printable(entry), _MAX_SHOWN) for entry in near]
    return f"did you mean {' or '.join(shown)}?" if shown else ""


def find_similar(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three names of similar spelling, best first; case and leading dashes are ignored."""
    from difflib import get_close_matches  # only errors need it

    by_key: dict[str, str] = {}
    for entry in known:
        by_key.setdefault(_make_key(entry), entry)
    keys = get_close_matches(_make_key(name), by_key, n=_MAX_SUGGESTIONS, cutoff=_CUTOFF)
    return [by_key[key] for key in keys]


def _make_key(name: str) -> str:
    return name.lstrip("-")[:_MAX_COMPARED].lower()
