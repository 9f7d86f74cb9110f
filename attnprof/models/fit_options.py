"""The options of serving and of training a model, checked before a model is laid out."""

from dataclasses import dataclass, fields

from attnprof.arguments import choice
from attnprof.errors import RequestError
from attnprof.models.fit_formats import CACHES, WEIGHTS, format_named

#: The longest context that is asked for.
LONGEST = 2**50
#: Bytes a parameter of an optimizer, besides weights and gradients in half precision: a
#: master copy in float32, and moments in float32 or in eight bits.
OPTIMIZERS = {"adamw": (12, 12), "adamw-8bit": (6, 6), "muon": (8, 12), "sgd": (8, 8)}
#: Bytes of a gradient, by format.
GRADIENTS = {"bfloat16": 2, "float32": 4}
#: What of weights, gradients and optimizer is divided among data-parallel ranks.
SHARDS = {"none": "", "zero1": "o", "zero2": "og", "zero3": "ogw"}
#: Options of serving alone, and values of them that are true of training, too.
_SERVING = {
    "dtype": ("bfloat16", "bf16"), "cache_dtype": (), "block_size": (), "chunk": (), "uncapped": (),
}  # fmt: skip


def _flag(name: str) -> str:
    """Return the command's flag of an option."""
    return "--" + name.removesuffix("_len").removesuffix("_size").replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How a model is served: number formats, pages of the cache, and the division among ranks.

    ``memory`` is of one device, in bytes; ``utilization`` the share of it that is used. ``dtype``
    None is the format of the file, else bfloat16. ``chunk`` tokens of a prompt are taken at once.
    """

    memory: int
    seq_len: int = 4096
    batch_size: int = 1
    dtype: str | None = None
    cache_dtype: str | None = None
    block_size: int = 16
    tensor_parallel: int = 1
    pipeline: int = 1
    expert_parallel: int = 1
    context_parallel: int = 1
    chunk: int = 8192
    utilization: float = 0.9
    uncapped: bool = False

    def __post_init__(self) -> None:
        for name in (item.name for item in fields(self) if item.type is int):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= LONGEST:
                raise RequestError(f"{_flag(name)} {value}: give a whole number from 1 to 2**50")
        if not 0 < self.utilization <= 1:
            raise RequestError(f"--utilization {self.utilization}: give a share, like 0.9")
        if self.dtype is not None:
            format_named(self.dtype, "--dtype", WEIGHTS)
        self.cache_formats()

    @property
    def ranks(self) -> int:
        """The number of devices."""
        shared = max(self.tensor_parallel, self.expert_parallel)  # the same ones
        return shared * self.pipeline * self.context_parallel

    def cache_formats(self) -> tuple[str, str]:
        """Return the formats of keys and of values, which ``fp8,nvfp4`` names apart."""
        names = ("bfloat16" if self.cache_dtype is None else self.cache_dtype).split(",")
        if len(names) > 2:
            raise RequestError(
                f"--cache-dtype {self.cache_dtype}: type one format, or two, of keys and of values"
            )
        first, *rest = (format_named(name, "--cache-dtype", CACHES) for name in names)
        return first, (rest or [first])[0]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(FitOptions):
    """How a model is trained: optimizer, recomputed activations, sharding among ranks.

    ``gradient_dtype`` is the format that gradients are summed in; without ``sequence_parallel``
    every rank of tensor parallelism keeps the inputs of norms and blocks whole.
    """

    optimizer: str = "adamw"
    gradient_dtype: str = "bfloat16"
    sequence_parallel: bool = True
    recompute: str = "selective"
    shard: str = "none"
    data_parallel: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for item in fields(FitOptions):
            value = getattr(self, item.name)
            if item.name in _SERVING and value not in (item.default, *_SERVING[item.name]):
                flag = _flag(item.name)
                raise RequestError(
                    f"{flag} is of serving, and training is in bfloat16 with --gradient-dtype and "
                    f"--optimizer: leave {flag} or --train out"
                )
        choice("optimizer", self.optimizer, list(OPTIMIZERS))
        choice("gradient_dtype", self.gradient_dtype, list(GRADIENTS))
        choice("recompute", self.recompute, ["none", "selective", "full"])
        choice("shard", self.shard, list(SHARDS))
