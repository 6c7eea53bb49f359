"""An environment with zprof's wheel and its default dependencies only, linked from this one: no network."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import BytesParser
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def make_bare_environment(folder: Path, wheel: Path) -> Path:
    """Create it in ``folder`` and return its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    link_packages(_wheel_requirements(wheel), site)
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
    subprocess.run((*pip, "--no-deps", "--no-index", "--no-compile", str(wheel)), check=True)
    return python


def link_packages(requirements: Iterable[str], site: Path) -> None:
    """Link what is installed here for these requirements, and for theirs, into ``site``."""
    site.mkdir(parents=True, exist_ok=True)
    for name in sorted(_closure(requirements)):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))).resolve())


def _closure(requirements: Iterable[str]) -> set[str]:
    """The names of all packages that an installer would take."""
    names: set[str] = set()
    seen: set[tuple[str, str]] = set()
    pending = [(requirement, "") for requirement in requirements]
    while pending:
        text, extra_of_parent = pending.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra_of_parent}):
            continue
        name = canonicalize_name(requirement.name)
        names.add(name)
        for extra in {"", *requirement.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            pending += [(child, extra) for child in distribution(name).requires or ()]
    return names


def _wheel_requirements(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        yield from BytesParser().parsebytes(archive.read(name)).get_all("Requires-Dist", [])
