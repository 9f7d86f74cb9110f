"""Modules of public packages, derived by the plainest command, and run for real.

Packages are installed by name and version, without what they depend on, into an environment of its
own beside the one that runs this; torch, transformers and attnprof are those here. Each target is
derived as ``attnprof derive TARGET`` would, forward and training. Then the real module runs at
shapes of the domain that no formula was verified at: products are counted by torch's
``FlopCounterMode`` at two, the peak is the CPU allocator's at one::

    python reports/run.py derive/foreign              # what is not there yet
    python reports/run.py derive/foreign timm vit_    # these again

``FOREIGN_MODULES`` names the environment's folder.
"""

from __future__ import annotations

import importlib.metadata
import os
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rows import grouped, table

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"


def targets_in(text: str) -> list[str]:
    """Return ``module:Name`` of each name that follows its module in a text."""
    targets, module = list[str](), ""
    for word in text.split():
        if word.endswith(":"):
            module = word
        else:
            targets.append(f"{module}{word}")
    return targets


#: What is installed: the packages, and what importing them asks for.
INSTALLED = (
    "timm==1.0.31", "torchvision==0.28.0", "diffusers==0.42.1", "requests", "certifi", "urllib3",
    "charset-normalizer", "x-transformers==2.31.10", "einops==0.8.2", "einx==0.4.3", "frozendict",
    "torch-einops-utils==0.2.0",
    "loguru==0.7.3", "local-attention==1.11.2", "hyper-connections==0.4.11", "linformer==0.2.3",
    "performer-pytorch==1.1.4", "axial-positional-embedding==0.3.12", "nystrom-attention==0.0.14",
    "reformer-pytorch==1.4.4", "product-key-memory==0.3.0", "rotary-embedding-torch==0.9.1",
    "vit-pytorch==1.26.11", "linear-attention-transformer==0.19.1", "h-transformer-1d==0.1.9",
    "colt5-attention==0.11.2",
    "conformer==0.3.2", "halonet-pytorch==0.0.5", "g-mlp-pytorch==0.1.5",
    "isab-pytorch==0.3.0", "axial-attention==0.6.1", "sinkhorn-transformer==0.11.4",
    "memory-efficient-attention-pytorch==0.1.6", "soft-moe-pytorch==0.1.9",
    "routing-transformer==1.6.1", "mixture-of-experts==0.2.3", "lambda-networks==0.4.0",
    "perceiver-pytorch==0.11.0",
)  # fmt: skip
#: Targets: their modules, and the names in each.
TARGETS = targets_in("""
torch.nn: MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer LSTM GRU RNN
transformers: LlamaAttention LlamaMLP LlamaDecoderLayer LlamaModel MistralAttention Qwen2Attention
    Qwen3Attention Gemma2Attention Gemma3Attention PhiAttention Phi3Attention OlmoAttention
    StableLmAttention GraniteMLP MptAttention GPT2Attention GPT2Block GPTNeoXAttention GPTJAttention
    BertSelfAttention BertLayer BertModel RobertaSelfAttention DebertaV2Layer ElectraLayer
    AlbertAttention T5Attention BartAttention OPTAttention BloomBlock FalconAttention ViTModel
    ViTLayer CLIPEncoderLayer SiglipEncoderLayer WhisperAttention WhisperEncoderLayer
    NystromformerSelfAttention FNetBasicFourierTransform DeepseekV3Attention CohereAttention
    RoFormerSelfAttention Wav2Vec2Attention ConvBertSelfAttention MambaMixer FalconMambaBlock
    Mamba2Mixer BambaMixer RwkvSelfAttention RecurrentGemmaRecurrentBlock MiniMaxLightningAttention
    Lfm2ShortConv MixtralSparseMoeBlock Qwen2MoeSparseMoeBlock DeepseekV3MoE DeepseekV2Attention
    Llama4TextAttention Gemma3nTextAttention GptOssAttention DiffLlamaAttention JetMoeAttention
    ModernBertAttention GPTNeoSelfAttention T5Block LongformerSelfAttention SqueezeBertSelfAttention
    LayoutLMv3SelfAttention PerceiverLayer WavLMAttention Dinov2Layer SwinLayer Swinv2SelfAttention
    SegformerLayer MobileViTAttention MobileViTLayer ConvNextLayer TimesformerSelfAttention
    DetrDecoderLayer Qwen3NextGatedDeltaNet Qwen3NextAttention Zamba2Attention T5GemmaSelfAttention
    Phi4MultimodalAttention Olmo2Attention SmolLM3Attention Glm4Attention MoonshineAttention
    MimiAttention BltSelfAttention GptOssMLP Llama4TextMoe OlmoeSparseMoeBlock
    MllamaTextCrossAttention IdeficsAttention Wav2Vec2ConformerSelfAttention VitsAttention
    EncodecLSTM SamAttention SamVisionAttention DabDetrAttention CvtSelfAttention LevitAttention
    PoolFormerLayer ModernBertEncoderLayer CLIPAttention T5LayerFF Qwen3MoeSparseMoeBlock Qwen3MLP
    Qwen3DecoderLayer Gemma3DecoderLayer DeepseekV3DecoderLayer MambaBlock FalconDecoderLayer
    BlipTextSelfAttention BlipAttention CLIPVisionModel SiglipAttention WhisperDecoderLayer T5Stack
    DINOv3ViTAttention GptOssDecoderLayer
timm.layers: Attention AttentionRope
timm.models.vision_transformer: Block
timm.layers: Mlp GlobalResponseNormMlp LambdaLayer HaloAttn
timm: VisionTransformer
timm.models.swin_transformer: WindowAttention SwinTransformerBlock
timm.models.beit: Attention
timm.models.eva: EvaBlock
timm.models.volo: OutlookAttention
timm.models.cait: ClassAttn
timm.models.xcit: XCA
timm.layers: AttentionPool2d
timm.models.convnext: ConvNeXtBlock
timm.models.mlp_mixer: MixerBlock
timm.models.pvt_v2: Block
timm.models.davit: ChannelBlock
timm.models.mobilevit: LinearSelfAttention
timm.models.metaformer: MetaFormerBlock
timm.models.twins: GlobalSubSampleAttn
timm.models.efficientvit_mit: LiteMLA
timm.models.edgenext: CrossCovarianceAttn SplitTransposeBlock
timm.models.hiera: MaskUnitAttention
timm.models.maxxvit: TransformerBlock2d
timm.models.mvitv2: MultiScaleAttention
timm.models.convit: GPSA
timm.models.xcit: XCABlock
timm.models.focalnet: FocalNetBlock
timm.layers: AttentionPoolLatent BottleneckAttn NonLocalAttn
timm.models.twins: LocallyGroupedAttn
timm.models.maxxvit: MaxxVitBlock
timm.models.levit: LevitBlock
timm.models.nest: Attention
timm.models.visformer: Attention
timm.models.fastvit: Attention
timm.models.convit: Block
timm.models.davit: SpatialBlock
timm.models.swin_transformer_v2: SwinTransformerV2Block
timm.models.mvitv2: MultiScaleBlock
timm.models.gcvit: WindowAttentionGlobal
timm.models.efficientformer_v2: Attention2d
timm.models.xcit: ClassAttentionBlock
timm.layers: MultiQueryAttention2d
timm.models.vision_transformer: ParallelScalingBlock
timm.models.hiera: HieraBlock
timm.models.coat: SerialBlock
timm.models.tnt: Block
timm.models.crossvit: MultiScaleBlock
timm.models.swin_transformer_v2: WindowAttention
timm.models.cait: LayerScaleBlock
timm.models.crossvit: CrossAttentionBlock
timm.models.efficientformer: Attention
timm.models.coat: FactorAttnConvRelPosEnc
timm.models.repvit: RepViTBlock
timm.models.csatv2: TransformerBlock
timm.layers: DiffAttention Attention2d
torchvision.models.swin_transformer: SwinTransformerBlock
torchvision.models.maxvit: MaxVitLayer
diffusers: Attention BasicTransformerBlock FluxTransformerBlock JointTransformerBlock
    HunyuanDiTBlock FluxAttention LTXAttention Transformer2DModel
diffusers.models.transformers.transformer_flux: FluxSingleTransformerBlock
diffusers.models.attention: FeedForward
diffusers.models.transformers.transformer_wan: WanTransformerBlock
diffusers.models.transformers.sana_transformer: SanaTransformerBlock
x_transformers: Attention Encoder Decoder FeedForward TransformerWrapper CrossAttender
local_attention: LocalAttention LocalMHA
linformer: LinformerSelfAttention
performer_pytorch: SelfAttention FastAttention CrossAttention
nystrom_attention: NystromAttention
reformer_pytorch: LSHSelfAttention LSHAttention
vit_pytorch: ViT
vit_pytorch.cait: Attention
vit_pytorch.cvt: Attention
vit_pytorch.max_vit: Attention
vit_pytorch.twins_svt: GlobalAttention
vit_pytorch.deepvit: Attention
vit_pytorch.xcit: XCAttention
vit_pytorch.nest: Attention
vit_pytorch.crossformer: Attention
vit_pytorch.simple_vit: SimpleViT
vit_pytorch.cross_vit: CrossTransformer
vit_pytorch.regionvit: Attention
vit_pytorch.levit: Attention
linear_attention_transformer: SelfAttention
h_transformer_1d.h_transformer_1d: HAttention1D
conformer: ConformerBlock
halonet_pytorch: HaloAttention
g_mlp_pytorch: gMLP
isab_pytorch: ISAB
axial_attention: AxialAttention
sinkhorn_transformer: SinkhornSelfAttention
memory_efficient_attention_pytorch: Attention
soft_moe_pytorch: SoftMoE
routing_transformer.routing_transformer: KmeansAttention
lambda_networks: LambdaLayer
perceiver_pytorch: Perceiver
timm.models.mobilenetv5: MobileNetV5MultiScaleFusionAdapter
timm.layers.selective_kernel: SelectiveKernelAttn
transformers.models.swin.modeling_swin: SwinStage
transformers.models.big_bird.modeling_big_bird: BigBirdBlockSparseAttention
""")
PHASES = ("forward", "train")
#: Wall-clock seconds for a phase of one target: a guard, no measurement.
LIMIT_S = 400
#: Up to where sizes of the compared shapes go.
MOST = {"B": 5, "N": 300, "h": 5, "d": 40}
#: The same where formulas begin beyond 2,048 tokens.
MOST_LONG = {"B": 2, "N": 2600, "h": 4, "d": 16}
#: Bytes by which a peak may differ: Python numbers that torch wraps as tensors while it runs.
SCALARS = 128


@dataclass(frozen=True)
class Row:
    """One phase of one target: what was derived, and what the real module says of it."""

    target: str
    version: str
    phase: str
    method: str = ""
    seconds: float = 0.0
    flops: str = ""
    without: str = ""
    domain: str = ""
    shapes: str = ""
    products: str = ""
    peak: str = ""
    refused: str = ""


def environment(folder: Path) -> Path:
    """The Python of an environment with the packages, which sees what is installed here, too."""
    python = folder / "bin" / "python"
    if python.exists():
        return python

    def run(*command: str, check: bool = True) -> bool:
        done = subprocess.run(command, check=check, capture_output=not check)  # noqa: S603 - ours
        return done.returncode == 0

    run(sys.executable, "-m", "venv", str(folder))
    site = next((folder / "lib").glob("python*/site-packages"))
    here = [sysconfig.get_paths()["purelib"], str(Path(__file__).parents[2])]
    (site / "here.pth").write_text("\n".join(here) + "\n")
    run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", *INSTALLED)
    if not run(str(python), "-c", "import torchvision", check=False):
        # its kernels were built for another torch; no target here uses them
        (site / "torchvision" / "_meta_registrations.py").write_text("")
    return python


def prepare() -> None:
    """Start again in the environment made for this report, unless it is the one that runs."""
    folder = Path(
        os.environ.get("FOREIGN_MODULES", Path(tempfile.gettempdir()) / "foreign-modules")
    )
    if Path(sys.prefix) != folder:
        python = str(environment(folder))
        os.execv(python, [python, *sys.argv])  # noqa: S606 - the same script
    import transformers  # noqa: F401 - once for all processes


def name_of(row: Row) -> str:
    """Return the case of a row."""
    return f"{row.target}, {row.phase}"


def cases() -> dict[str, tuple[str, str]]:
    """Return every target in each phase, by name."""
    pairs = [(target, phase) for target in TARGETS for phase in PHASES]
    return {f"{target}, {phase}": (target, phase) for target, phase in pairs}


def rows(_: str, case: tuple[str, str]) -> Iterator[Row]:
    """Yield the row of a target in a phase."""
    yield row_of(*case)


def stopped(name: str) -> list[Row]:
    """Return the row of a case that took too long."""
    target, phase = cases()[name]
    return [Row(target, version(target), phase, refused=f"stopped after {LIMIT_S} s")]


def version(target: str) -> str:
    """The name and version of the package that a target is in."""
    package = target.partition(":")[0].partition(".")[0].replace("_", "-")
    package = {"fla": "fla-core"}.get(package, package)
    return f"{package} {importlib.metadata.version(package)}"


def row_of(target: str, phase: str) -> Row:
    """What is derived, and how it compares."""
    return row_of_thing(target, target, phase, ())


def row_of_thing(
    target: str, thing: Any, phase: str, inputs: Any, arguments: Any = None, at: Any = None
) -> Row:
    """What is derived of a name or an object, at asked sizes, and how it compares."""
    from attnprof.errors import AttnprofError
    from attnprof.trace.request.lookup import target_of
    from attnprof.trace.solve.derive import derived

    try:
        lookup = target_of(thing, arguments, inputs)
        derivation = derived(lookup, (phase,), at or {})
    except AttnprofError as error:
        return Row(target, version(target), phase, seconds=spent(), refused=str(error))
    seconds, forms = spent(), derivation.phases[phase]
    shapes = list(compared_shapes(derivation, phase))
    differences = [
        difference(lookup, derivation, phase, shape, peak=not n) for n, shape in enumerate(shapes)
    ]
    flops = forms.formulas["flops"].expression
    return Row(
        target, version(target), phase, forms.method, seconds,
        "" if flops is None else str(flops),
        ", ".join(n for n, form in forms.formulas.items() if form.expression is None),
        "; ".join(forms.domain),
        "; ".join(",".join(f"{n}={size}" for n, size in shape.items()) for shape in shapes),
        f"{sum(products for products, _ in differences)} of {len(differences)}",
        differences[0][1] if differences else "",
    )  # fmt: skip


def spent() -> float:
    """Processor seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round(used.ru_utime + used.ru_stime, 1)


def compared_shapes(derivation: Any, phase: str) -> Iterator[dict[str, int]]:
    """Two random shapes of the domain that no formula was verified at."""
    forms = derivation.phases[phase]
    chance, known = random.Random(derivation.name), list(forms.verified_at)  # noqa: S311 - no secret
    compared = 0
    for turn in range(20_000):
        most = MOST if turn < 10_000 or compared else {**MOST, "N": 1500, "H": 130, "W": 130}
        most = MOST_LONG if turn > 15_000 else most
        shape = {
            name: round(2 * (most.get(name, 20) / 2) ** chance.random())
            for name in derivation.symbols
        }
        if shape not in known and forms.holds(shape):
            known.append(shape)
            yield shape
            compared += 1
        if compared == 2:
            return


def difference(
    target: Any, derivation: Any, phase: str, sizes: dict[str, int], *, peak: bool
) -> Any:
    """Whether the products are those that ran, and how far the peak is off, in words."""
    import torch
    from derive.transformers_models import OWN_RULES
    from subjects import subject_of
    from torch.utils.flop_counter import FlopCounterMode

    from attnprof.measure.memory import measure_peak

    torch.manual_seed(0)
    if derivation.phases[phase].trace.routes:
        evenly_routed().__enter__()  # for as long as this process lives
    module = target.make(sizes)
    positional, named = target.call_inputs(sizes)
    subject = subject_of(module, positional, named, phase)
    off = ""
    if peak:
        real, counted = (
            measure_peak(subject, "cpu", torch).bytes,
            derivation.at("peak_bytes", phase, **sizes),
        )
        bound = derivation.phases[phase].bound("peak_bytes")
        share = abs(counted - real) / real if real and abs(counted - real) > SCALARS else 0
        off = "equal" if not share else f"{100 * (counted - real) / real:+.3f} % ({bound})"
    subject.reset()
    # a view made without gradients has none, which torch's counter asks for
    for leaf in subject.leaves:
        leaf.requires_grad_(phase == "train")
    torch.backends.mha.set_fastpath_enabled(False)  # one operation, which the counter passes over
    if not peak:
        subject.call()  # formulas are of a later call than that which sets a module up
    with FlopCounterMode(display=False, custom_mapping=OWN_RULES | _of_lstm()) as counter:
        subject.call()
    return derivation.at("matmul_flops", phase, **sizes) == counter.get_total_flops(), off


def _of_lstm() -> dict[Any, Any]:
    """FLOPs of the products of ``nn.LSTM`` on a CPU, one operation that torch counts as none."""
    import torch

    def forward(x: Any, w: Any, u: Any, *_: Any, **__: Any) -> int:
        return int(2 * x[0] * x[1] * w[0] * (w[1] + u[1]))

    aten = torch.ops.aten
    return {
        aten.mkldnn_rnn_layer: forward,
        aten.mkldnn_rnn_layer_backward: lambda *args, **_: 2 * forward(*args),
    }


def evenly_routed() -> Any:
    """Inside, tokens choose experts evenly: the assumption that such formulas state."""
    from torch.overrides import TorchFunctionMode

    from attnprof.trace.run.experts import spread

    class Even(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **kwargs or {})
            choice = spread(getattr(func, "__name__", ""), args, kwargs or {}, out)
            if choice:
                choice[0].data.copy_(choice[2])
            return out

    return Even()


def page(all_rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    done = [row for row in all_rows if not row.refused and row.method != "counted"]
    targets = grouped(all_rows, lambda row: row.target)
    both = [t for t in targets if sum(row.target == t for row in done) == len(PHASES)]
    yield "# Modules of public packages: derived by the plainest command, and run for real"
    yield (
        "One thread. Every target was derived without any option. "
        "*Products*: at how many of two further shapes the FLOPs of products are those of torch's "
        "`FlopCounterMode` (with rules of the script's own for the CPU's fused attention and LSTM, "
        "which it counts as 0). *Peaks*: against the CPU allocator's account at one; experts are "
        "chosen evenly. *s*: processor seconds, up to three of them for imports."
    )
    yield ""
    yield (
        f"{len(both)} of {len(targets)} targets have formulas in both phases; "
        f"products equal at {sum(int(row.products[0]) for row in done)} of "
        f"{sum(int(row.products[-1]) for row in done)} shapes; peaks equal, but for "
        f"{SCALARS} bytes, at {sum(row.peak == 'equal' for row in done)} of "
        f"{sum(bool(row.peak) for row in done)}."
    )
    yield ""
    heads = "package | target | forward | training | >s | products | peaks"
    yield from table(heads, (_line(target, rows) for target, rows in targets.items()))


def _line(target: str, rows: list[Row]) -> tuple[str, ...]:
    """Return the cells of a target: both phases side by side."""
    phases = {row.phase: row for row in rows}
    both = [phases[phase] for phase in PHASES]
    counted = [row for row in both if row.products]
    same = sum(int(row.products.split()[0]) for row in counted)
    of = sum(int(row.products.split()[-1]) for row in counted)
    peaks = ", ".join(dict.fromkeys(row.peak for row in counted if row.peak))
    return (
        both[0].version, f"`{target}`", *map(_result, both),
        " + ".join(f"{row.seconds:g}" for row in both), f"{same} of {of}" if of else "", peaks,
    )  # fmt: skip


def _result(row: Row) -> str:
    """How the formulas were found, or why there are none."""
    result = (
        f"no formula: {row.refused.removeprefix(row.target).lstrip(': ')}" if row.refused else ""
    )
    less = f", but for {row.without}" if row.without else ""
    return (result or f"{row.method}{less}").replace("|", "\\|").replace("\n", " ")[:300]
