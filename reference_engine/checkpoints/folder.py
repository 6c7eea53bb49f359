"""A folder that is there as a whole or not at all.

It is written as ``.NAME.saving`` beside its place, flushed to disk, and renamed.  Two names cannot be
exchanged in one step on every file system, so the checkpoint that it replaces is first renamed to
``.NAME.replaced``; whoever finds that and no NAME puts it back.  So at every instant one whole checkpoint can
be loaded.
"""

import os
import shutil
from pathlib import Path

from zprof.reference_engine.checkpoints.manifest import MANIFEST


class CheckpointFolder:
    """The place of one checkpoint.  Only the first rank may call what changes anything."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        self.draft = self.path.with_name(f".{self.path.name}.saving")
        self._replaced = self.path.with_name(f".{self.path.name}.replaced")

    def recover(self) -> None:
        """Put back a checkpoint whose replacement was cut short."""
        if self._replaced.is_dir() and not self.path.exists():
            self._replaced.rename(self.path)

    def begin(self, *, overwrite: bool) -> None:
        """Make an empty draft.

        Raises:
            ValueError: something is there already that may not be replaced.
        """
        self.recover()
        self.check(overwrite=overwrite)
        shutil.rmtree(self.draft, ignore_errors=True)
        self.draft.mkdir(parents=True)

    def check(self, *, overwrite: bool) -> None:
        """Refuse a place where no checkpoint can be written; changes nothing.

        Raises:
            ValueError: something is there already that may not be replaced, or the folder is not writable.
        """
        if self.path.exists():
            if not overwrite:
                raise ValueError("it exists; choose another folder or pass overwrite=True")
            if not (self.path / MANIFEST).is_file():
                raise ValueError(
                    f"what is there is not a checkpoint (it has no {MANIFEST}); remove it yourself"
                )
        nearest = next(parent for parent in self.path.parents if parent.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise ValueError(f"nothing can be written in {nearest}; choose another folder")

    def publish(self) -> None:
        """Flush the draft to disk and put it in its place."""
        for file in self.draft.iterdir():
            _flush(file)
        _flush(self.draft)
        shutil.rmtree(self._replaced, ignore_errors=True)
        if self.path.exists():
            self.path.rename(self._replaced)
        self.draft.rename(self.path)
        _flush(self.path.parent)
        shutil.rmtree(self._replaced, ignore_errors=True)

    def abandon(self) -> None:
        """Remove a draft that was not finished; what was there before is there still."""
        shutil.rmtree(self.draft, ignore_errors=True)
        self.recover()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
