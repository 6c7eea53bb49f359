"""Models, layouts and look-ups for the forms that are worked out by hand."""

from msgspec.structs import replace

from zprof.model.layout import Framework, Layout, ParallelDegrees
from zprof.model.machines import H100, Hardware
from zprof.model.plan import Axis, Estimate, LinkTraffic
from zprof.model.tenants import Tenant
from zprof.model.transformer import Attention, Experts, LayerRun, Mlp, Transformer
from zprof.planner.estimate import estimate_layout

#: GPT: no grouped queries, four times the hidden size in the MLP.
GPT_H, GPT_A, GPT_L, GPT_V = 2048, 16, 24, 51200
GPT = Transformer(
    hidden=GPT_H,
    layers=(
        LayerRun(
            count=GPT_L,
            mixer=Attention(heads=GPT_A, kv_heads=GPT_A, head_width=GPT_H // GPT_A),
            feed_forward=Mlp(width=4 * GPT_H, gated=False),
        ),
    ),
    vocabulary=GPT_V,
    layer_norm=True,
)
#: The shape of Llama 3 8B: grouped queries, SwiGLU, a head of its own.
H, A, K, D, F, L, V = 4096, 32, 8, 128, 14336, 32, 128256
LLAMA = Transformer(
    hidden=H,
    layers=(
        LayerRun(
            count=L,
            mixer=Attention(heads=A, kv_heads=K, head_width=D),
            feed_forward=Mlp(width=F),
        ),
    ),
    vocabulary=V,
)
#: Elements of one layer that tensor parallelism splits, of a layer, of the tables, and of all.
SPLIT = 2 * H * A * D + 2 * H * K * D + 3 * H * F
LAYER = SPLIT + 2 * H
TABLES = 2 * V * H + H
PSI = L * LAYER + TABLES
#: The shape of Mixtral 8x7B: E experts, of which each token uses TOP.
E, TOP = 8, 2
MIXTRAL_V = 32000
MIXTRAL = Transformer(
    hidden=H,
    layers=(
        LayerRun(
            count=L,
            mixer=Attention(heads=A, kv_heads=K, head_width=D),
            feed_forward=Experts(experts=E, active=TOP, width=F),
        ),
    ),
    vocabulary=MIXTRAL_V,
)
EXPERTS = L * E * 3 * H * F
DENSE = L * (2 * H * A * D + 2 * H * K * D + 2 * H + E * H) + 2 * MIXTRAL_V * H + H


def make_degrees(**degrees: int) -> ParallelDegrees:
    """Return degrees that shard over all data and context ranks, unless ``shard`` is given."""
    made = ParallelDegrees(**degrees)
    return made if "shard" in degrees else replace(made, shard=made.data * made.context)


def make_layout(framework: Framework, stage: int, degrees: ParallelDegrees, **rest: object) -> Layout:
    """Return a layout with two micro-batches of one sequence of 4,096 tokens, unless ``rest`` says else."""
    base = Layout(
        framework=framework, stage=stage, degrees=degrees, micro_batch=1, micro_batches=2, sequence=4096
    )
    return replace(base, **rest)


def estimate(model: Transformer, layout: Layout, hardware: Hardware = H100) -> Estimate:
    """Return the estimate of a layout, on an H100 unless given."""
    return estimate_layout(model, layout, hardware)


def get_bytes(made: Estimate, tenant: Tenant, sub: str) -> int:
    """Return the bytes of a term, 0 if the peak has none."""
    return sum(term.bytes or 0 for term in made.terms if (term.tenant, term.sub) == (tenant, sub))


def get_traffic(made: Estimate, axis: Axis) -> list[LinkTraffic]:
    """Return the traffic along an axis, by link."""
    return [link for link in made.links if link.axis is axis]
