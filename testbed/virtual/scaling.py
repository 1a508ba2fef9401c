"""Scale models: smaller versions of the paper's devices and model, with the times that they have at
full size.

Divide a model's width by `width`: its matrices then have 1/width**2 of the bytes and operations,
and hidden states and KV have 1/width. Divide memories and the rates of disks, memory and arithmetic
by width**2, and the network's rate and the context by width. Then every block, read and hop takes
the time of full size. Pure.
"""
import json
from dataclasses import asdict, dataclass

MIB = 1 << 20
FULL_PIECE = 64 * MIB  # largest part that streams at full size
READ_ENDS = 12 * 1024  # bytes of every matrix that plans count because reads begin and end on 4 KiB
MATRICES = 7  # of a layer
PIECE_ENDS = 64 * 1024  # for the ends of reads; without it, small parts have fewer rows and a model has twice as many parts
VOCAB_SPECIALS = 258  # least vocabulary of make_model's byte tokenizer


@dataclass(frozen=True)
class Factors:
    """The divisors of all quantities."""

    width: int = 8

    @property
    def weights(self):
        return self.width**2

    def piece(self):
        """The largest part that streams in the scale model, with as many rows as at full size."""
        return FULL_PIECE if self.width == 1 else FULL_PIECE // self.weights + PIECE_ENDS

    def table(self):
        """(quantity, divisor) for reports."""
        return [
            ("hidden size, heads, inner size, vocabulary", self.width),
            ("weights, memory, disk rate, memory rate, operations per second", self.weights),
            ("bytes of a hidden state, network rate", self.width),
            ("context (KV keeps its share of memory)", self.width),
            ("layers, times", 1),
        ]


@dataclass(frozen=True)
class ModelShape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope_theta: float
    family: str = "llama"

    def weight_bytes(self):
        """Bytes of its matrices in bf16."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return 2 * (self.layers * (attention + 3 * self.hidden * self.intermediate) + 2 * self.vocab * self.hidden)

    def read_ends(self):
        """Bytes that plans count in addition to the matrices. They do not shrink with the matrices:
        negligible at full size, 0.3 % of a layer of 27 MB.
        """
        return READ_ENDS * (self.layers * MATRICES + 1)

    def make_model_flags(self):
        names = {"family": self.family, "layers": self.layers, "hidden": self.hidden, "heads": self.heads, "kv-heads": self.kv_heads,
                 "head-dim": self.head_dim, "intermediate": self.intermediate, "vocab": self.vocab, "rope-theta": self.rope_theta}
        return [word for name, value in names.items() for word in (f"--{name}", str(value))]


def divided(value, factor, what):
    """value / factor, which must be whole."""
    if value % factor:
        raise ValueError(f"{what} = {value} cannot be divided by {factor}; choose another --width")
    return value // factor


def scale_model(config, factors):
    """The shape of the scale model of a config.json."""
    by = factors.width
    shape = ModelShape(
        layers=config["num_hidden_layers"],
        hidden=divided(config["hidden_size"], by, "hidden_size"),
        heads=divided(config["num_attention_heads"], by, "num_attention_heads"),
        kv_heads=divided(config["num_key_value_heads"], by, "num_key_value_heads"),
        head_dim=config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]),
        intermediate=divided(config["intermediate_size"], by, "intermediate_size"),
        vocab=divided(config["vocab_size"], by, "vocab_size"),
        rope_theta=config.get("rope_theta", 10000.0),
        family=config.get("model_type", "llama"),
    )
    if shape.vocab < VOCAB_SPECIALS:
        raise ValueError(f"a vocabulary of {shape.vocab} is too small for the byte tokenizer; choose a smaller --width")
    return shape


@dataclass(frozen=True)
class ScaledDevice:
    name: str
    weights_memory: int  # for weights, KV and streaming
    read_bytes_per_second: float
    flops: float
    block_overhead_ms: float
    disk_bytes_per_second: float
    disk_latency_ms: float


def scale_device(device, factors, shape):
    """A device of testbed/clusters, for a model of `shape`. Its memory holds the same share of the
    model, with the ends of reads, as at full size. Its runtime and activations are in the memory
    beyond `memory_bytes`.
    """
    by = factors.weights
    ends = 1 + shape.read_ends() / shape.weight_bytes()
    return ScaledDevice(
        name=device["name"],
        weights_memory=int(device["memory_bytes"] / by * ends),
        read_bytes_per_second=device["read_bytes_per_second"] / by,
        flops=device["flops"] / by,
        block_overhead_ms=device["block_overhead_ms"],
        disk_bytes_per_second=device["disk"]["bytes_per_second"] / by,
        disk_latency_ms=device["disk"]["latency_ms"],
    )


@dataclass(frozen=True)
class Overheads:
    """Memory of a real process in addition to the scaled memory, in the budget and in the cgroup's
    limit.
    """

    runtime: int
    activations: int
    margin: int = 16 * MIB

    def total(self):
        return self.runtime + self.activations + self.margin


def device_profiles(devices, overheads, mbit, latency_ms):
    """The input of `lime plan --device-profiles`, as an object."""
    described = []
    for device in devices:
        described.append({
            "name": device.name,
            "memory_bytes": device.weights_memory + overheads.total(),
            "runtime_bytes": overheads.runtime,
            "activation_bytes": overheads.activations,
            "margin_bytes": overheads.margin,
            "read_bytes_per_second": device.read_bytes_per_second,
            "flops": device.flops,
            "block_overhead_ms": device.block_overhead_ms,
            "disk": {"bytes_per_second": device.disk_bytes_per_second, "latency_ms": device.disk_latency_ms},
        })
    return {"link": {"bytes_per_second": mbit * 1e6 / 8, "latency_ms": latency_ms}, "devices": described}


def pace_profile(device):
    """The input of `limed --pace`, as an object: the rates behind the plan's times."""
    return {"cpu": f"scale model of {device.name}", "threads": 1, "read_bytes_per_second": device.read_bytes_per_second,
            "flops": device.flops, "block_overhead_ms": device.block_overhead_ms}


def describe(device):
    return json.dumps(asdict(device))
