"""The committed copy: a compressed file per case, and a list of digests that shows which of them changed."""

import hashlib
import json
import lzma
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from benchmarks.frozen.changes import is_text, list_leaves
from benchmarks.frozen.run_case import Documents

COPIES = Path(__file__).parent / "copies"
_DIGESTS = "digests.json"


class Digest(Struct, frozen=True, kw_only=True):
    """What stands in the list of a case."""

    sha256: str
    leaves: int
    lines: int


def encode_documents(documents: Documents) -> bytes:
    """Return the documents as bytes that are the same for the same documents."""
    return json.dumps(documents, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def make_digest(documents: Documents) -> Digest:
    """Return the digest of all documents of a case, and what they count."""
    texts = [each for each in documents.values() if is_text(each)]
    values = [each for each in documents.values() if not is_text(each)]
    return Digest(
        sha256=hashlib.sha256(encode_documents(documents)).hexdigest(),
        leaves=sum(1 for value in values for _ in list_leaves(value)),
        lines=sum(map(len, texts)),
    )


def read_digests(folder: Path = COPIES) -> dict[str, Digest]:
    """Return the digests by case; none if there is no copy."""
    path = folder / _DIGESTS
    if not path.exists():
        return {}
    return {name: Digest(**entry) for name, entry in json.loads(path.read_text()).items()}


def read_copy(name: str, folder: Path = COPIES) -> Documents:
    """Return the documents of a case as they were."""
    return json.loads(lzma.decompress((folder / f"{name}.json.xz").read_bytes()))


def update_copies(
    found: dict[str, Documents], kept: Iterable[str], folder: Path = COPIES
) -> tuple[list[str], list[str]]:
    """Write the cases that changed, and remove those that are neither found nor to be ``kept``.

    A copy that says the same is not written again: another version of the compressor may write other bytes.
    Returns the names that were written, and that were removed.
    """
    folder.mkdir(exist_ok=True)
    before = read_digests(folder)
    after = {name: make_digest(documents) for name, documents in found.items()}
    written = [
        name for name in found if after[name] != before.get(name) or not (folder / f"{name}.json.xz").exists()
    ]
    for name in written:
        (folder / f"{name}.json.xz").write_bytes(lzma.compress(encode_documents(found[name]), preset=9))
    after |= {name: before[name] for name in kept if name in before and name not in after}
    removed = [path for path in folder.glob("*.json.xz") if path.name.removesuffix(".json.xz") not in after]
    for path in removed:
        path.unlink()
    rows = (
        f'{json.dumps(name)}: {{"sha256": "{each.sha256}", "leaves": {each.leaves}, "lines": {each.lines}}}'
        for name, each in sorted(after.items())
    )
    (folder / _DIGESTS).write_text("{\n" + ",\n".join(rows) + "\n}\n")
    return written, sorted(path.name.removesuffix(".json.xz") for path in removed)
