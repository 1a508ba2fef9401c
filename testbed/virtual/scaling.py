"""Scale models: the paper's devices and model made small, with the times that they have at full size.

A model whose width is divided by `width` has matrices of 1/width**2 of the bytes and operations, hidden states and KV of 1/width. Divide memories
and the rates of disks, memory and arithmetic by width**2, the network's rate and the context by width, and every block, read and hop takes the
time it takes at full size. Pure.
"""
import json
from dataclasses import asdict, dataclass

MIB = 1 << 20
FULL_PIECE = 64 * MIB  # in which the full-size model streams
READ_ENDS = 12 * 1024  # of every matrix: reads begin and end on 4 KiB, and plans count that
MATRICES = 7  # of a layer
PIECE_ENDS = 64 * 1024  # without them the ends of reads would make a small piece hold fewer rows, and a model have twice the pieces
VOCAB_SPECIALS = 258  # of make_model's byte tokenizer, that a vocabulary must hold


@dataclass(frozen=True)
class Factors:
    """By what things are divided."""

    width: int = 8

    @property
    def weights(self):
        return self.width**2

    def piece(self):
        """Longest piece in which the scale model streams: of as many rows as at full size."""
        return FULL_PIECE if self.width == 1 else FULL_PIECE // self.weights + PIECE_ENDS

    def table(self):
        """(what, divided by) for reports."""
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
        """Of its matrices, in bf16."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return 2 * (self.layers * (attention + 3 * self.hidden * self.intermediate) + 2 * self.vocab * self.hidden)

    def read_ends(self):
        """What plans count beside the matrices. It does not shrink with them: nothing at full size, 0.3 % of a layer of 27 MB."""
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
    """A device of testbed/clusters, for a model of `shape`: its memory holds the share of the model, ends of reads included, that the full-size one
    holds. Its runtime and activations are in the part of the memory that is not `memory_bytes`.
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
    """Of a real process: beside the scaled memory, in the budget and the cgroup's limit."""

    runtime: int
    activations: int
    margin: int = 16 * MIB

    def total(self):
        return self.runtime + self.activations + self.margin


def device_profiles(devices, overheads, mbit, latency_ms):
    """What `lime plan --device-profiles` reads, as an object."""
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
    """What `limed --pace` reads, as an object: the rates that the plan's times come from."""
    return {"cpu": f"scale model of {device.name}", "threads": 1, "read_bytes_per_second": device.read_bytes_per_second,
            "flops": device.flops, "block_overhead_ms": device.block_overhead_ms}


def describe(device):
    return json.dumps(asdict(device))
