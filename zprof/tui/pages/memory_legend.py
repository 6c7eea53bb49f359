"""The legend of the bars: tenants of one rank with their bytes, what they sum to, and what is to be said."""

from zprof.model.memory import RankMemory
from zprof.model.tenants import SHOWN, Tenant
from zprof.reports.page import UNKNOWN
from zprof.reports.presenters.memory_figures import BY_RULE, basis_note, peak_mark, tenant_bytes, tenant_name
from zprof.tui.figures import Figure, How, Unit, figure
from zprof.tui.pages.memory_missing import said_of_rank
from zprof.tui.session import Loaded, Selected
from zprof.tui.tables import Cell, Column, Line, Mark, Table, Word
from zprof.tui.theme.palette import NON_PYTORCH, RESERVED_UNUSED, UNTAGGED

RANKS = "memory.per_rank"
OUTSIDE = ((RESERVED_UNUSED, "reserved_unused_bytes"), (NON_PYTORCH, "non_pytorch_bytes"))
_NAMES = {UNTAGGED: "untagged", RESERVED_UNUSED: "reserved, unused", NON_PYTORCH: "outside PyTorch"}


def used_figure(loaded: Loaded, place: int) -> Figure:
    """All that the process of a rank has, as far as it is known."""
    stem, rank = f"{RANKS}[{place}]", loaded.report.memory.per_rank[place]
    known = [f"{stem}.{leaf}" for _, leaf in OUTSIDE if getattr(rank, leaf) is not None]
    if not known:
        return figure(loaded.tree, Unit.BYTES, f"{stem}.peak_bytes")
    return figure(loaded.tree, Unit.BYTES, f"{stem}.peak_bytes", *known, how=How.SUM)


def legend_table(loaded: Loaded, rank: RankMemory, place: int) -> Table:
    """Tenants of one rank with their bytes; the key of a line is the name of its paint."""
    stem, peak = f"{RANKS}[{place}]", f"{RANKS}[{place}].peak_bytes"
    leaves = [(tenant.value, f"{stem}.tenants.{tenant.value}", _rests_on(rank, tenant)) for tenant in SHOWN]
    leaves.append((UNTAGGED, f"{stem}.untagged_bytes", ""))
    lines = [
        Line(
            key=name,
            cells=(
                Word(label(name)),
                Word("unknown") if basis == UNKNOWN else figure(loaded.tree, Unit.BYTES, leaf),
                figure(loaded.tree, Unit.RATIO, leaf, peak, how=How.SHARE),
                Word(basis),
            ),
        )
        for name, leaf, basis in leaves
    ]
    lines += [
        Line(key=name, cells=(Word(label(name)), number, Word(""), Word("")))
        for name, leaf in OUTSIDE
        if (number := figure(loaded.tree, Unit.BYTES, f"{stem}.{leaf}")).value is not None
    ]
    return Table(
        name="tenants",
        title=f"tenants of rank {rank.rank} at its peak",
        columns=(
            Column(title="tenant"),
            Column(title="size", numeric=True),
            Column(title="of the peak", numeric=True),
            Column(title="by", says=f"{BY_RULE}: told by a rule on stacks, not by what hooks or tags saw"),
        ),
        lines=tuple(lines),
        help=(
            "One bar a rank, each at its own peak. up and down: another rank; left and right: another tenant "
            "of it; enter: what its bytes are.\nThe six tenants and untagged sum to the allocated peak."
        ),
    )


def label(name: str) -> str:
    """A tenant's name, or that of what is none."""
    return _NAMES.get(name) or tenant_name(name)


def _rests_on(rank: RankMemory, tenant: Tenant) -> str:
    text = tenant_bytes(rank, tenant)
    return UNKNOWN if text == UNKNOWN else BY_RULE if text.startswith(BY_RULE) else ""


def total_of(loaded: Loaded, rank: RankMemory, place: int) -> tuple[Cell, ...]:
    """The line under the legend: what its bytes sum to."""
    peak = figure(loaded.tree, Unit.BYTES, f"{RANKS}[{place}].peak_bytes")
    cells: tuple[Cell, ...] = (
        Word(f"sum {peak_mark(rank)}".rstrip(), Mark.TITLE),
        peak,
        Word(f"allocated, rank {rank.rank}"),
    )
    if all(getattr(rank, leaf) is None for _, leaf in OUTSIDE):
        return (*cells, Word("· reserved, outside PyTorch: unknown (g)", Mark.MUTED))
    with_them = "reserved" if rank.non_pytorch_bytes is None else "used by the process"
    return (*cells, Word("·"), used_figure(loaded, place), Word(with_them))


def notes_of(loaded: Loaded, selected: Selected, subject: RankMemory) -> list[tuple[Cell, ...]]:
    """What has to be said of the rank and its bars."""
    notes: list[tuple[Cell, ...]] = []
    if selected.rank is not None and subject.rank != selected.rank:
        said = f"rank {selected.rank}: {said_of_rank(loaded.report, selected.rank)}"
        notes.append((Word(said, Mark.DOUBTFUL),))
    if note := basis_note(subject):
        notes.append((Word(note),))
    spread = loaded.report.memory.spread
    if spread is not None and spread.difference_bytes:
        more = figure(loaded.tree, Unit.BYTES, "memory.spread.difference_bytes")
        than = f"more than rank {spread.smallest_rank}"
        notes.append((Word(f"rank {spread.largest_rank} holds"), more, Word(than), *_most_of_it(loaded)))
    return notes


def _most_of_it(loaded: Loaded) -> tuple[Cell, ...]:
    """The tenant that differs most, and by how much; nothing where none has more."""
    spread = loaded.report.memory.spread
    if spread is None or not spread.tenant:
        return ()
    size = figure(loaded.tree, Unit.BYTES, f"memory.spread.delta_bytes.{spread.tenant}", signed=True)
    return (Word(f"· {label(spread.tenant)}"), size)
