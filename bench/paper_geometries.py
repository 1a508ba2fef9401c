"""The models of Layer-Streaming (Qwen3.5) and OptMLX (Qwen3): random weights with the sizes of the published models."""
import dataclasses
import re
import shutil

from report import call

LARGEST_FILE = 20e9  # bytes of a model that is made
QUICK_LAYERS, QUICK_FACTOR = 8, 8  # at most so many layers, and widths divided by so much
GROUP = 64  # weights that share a scale and a bias, in MLX's own models
FULL_INTERVAL, LINEAR_KEY_HEADS = 4, 16  # of Qwen3.5: each fourth layer has full attention


@dataclasses.dataclass(frozen=True)
class Geometry:
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    linear_value_heads: int = 0  # of the layers with linear attention, which have LINEAR_KEY_HEADS; 0: no such layers
    linear_head: int = 128  # columns of their heads

    def divided(self, factor):
        """Widths by the factor; numbers of heads and of layers stay."""
        narrow = {field: getattr(self, field) // factor for field in ("hidden", "head_dim", "intermediate", "vocab", "linear_head")}
        return dataclasses.replace(self, **narrow)

    def is_full_attention(self, layer):
        return not self.linear_value_heads or layer % FULL_INTERVAL == FULL_INTERVAL - 1

    # ---- Numbers of weights, of matrices only

    def attention_weights(self, layer):
        """Of the attention half of a layer."""
        if self.is_full_attention(layer):
            gates = 1 if self.linear_value_heads else 0
            return self.hidden * self.head_dim * ((2 + gates) * self.heads + 2 * self.kv_heads)
        return self.hidden * self.linear_head * (2 * LINEAR_KEY_HEADS + 3 * self.linear_value_heads)

    def layer_weights(self, layer):
        return self.attention_weights(layer) + 3 * self.hidden * self.intermediate

    def table_weights(self):
        """Of the embedding, which is as large as the head."""
        return self.vocab * self.hidden

    def weights(self):
        return sum(map(self.layer_weights, range(self.layers))) + self.table_weights() * (1 if self.tied else 2)

    def streamable_share(self):
        """Of the weights: rows of an embedding that is not the head, too, are read one by one."""
        return 1 if self.tied else 1 - self.table_weights() / self.weights()

    def layer_share(self):
        """The layers' part of the weights that can stream; the other part is the head."""
        return 1 - self.table_weights() / (self.streamable_share() * self.weights())

    def attention_share(self):
        """The attention's part of the weights that can stream."""
        return sum(map(self.attention_weights, range(self.layers))) / (self.streamable_share() * self.weights())

    def kv_bytes(self, tokens):
        """In two bytes a value."""
        full = sum(map(self.is_full_attention, range(self.layers)))
        return full * 2 * self.kv_heads * self.head_dim * 2 * tokens

    def flags(self):
        """Of make_model."""
        words = ["--family", self.family, "--layers", self.layers, "--hidden", self.hidden, "--heads", self.heads, "--kv-heads", self.kv_heads, "--head-dim", self.head_dim,
                 "--intermediate", self.intermediate, "--vocab", self.vocab, "--positions", 8192]
        if self.linear_value_heads:
            words += ["--full-attention-interval", FULL_INTERVAL, "--partial-rotation", 0.25, "--linear-key-heads", LINEAR_KEY_HEADS,
                      "--linear-value-heads", self.linear_value_heads, "--linear-key-dim", self.linear_head, "--linear-value-dim", self.linear_head]
        return words + (["--tie"] if self.tied else [])


GEOMETRIES = {
    "Qwen3.5-0.8B": Geometry("qwen3_5", 24, 1024, 8, 2, 256, 3584, 248320, True, 16),
    "Qwen3.5-4B": Geometry("qwen3_5", 32, 2560, 16, 4, 256, 9216, 248320, True, 32),
    "Qwen3.5-9B": Geometry("qwen3_5", 32, 4096, 16, 4, 256, 12288, 248320, False, 32),
    "Qwen3.5-27B": Geometry("qwen3_5", 64, 5120, 24, 4, 256, 17408, 248320, False, 48),
    "Qwen3-4B": Geometry("qwen3", 36, 2560, 32, 8, 128, 9728, 151936, True),
    "Qwen3-8B": Geometry("qwen3", 36, 4096, 32, 8, 128, 12288, 151936, False),
    "Qwen3-14B": Geometry("qwen3", 40, 5120, 40, 8, 128, 17408, 151936, False),
}
NAME = re.compile(r"(Qwen3(?:\.5)?-[\d.]+B)-(?:(\d)bit|bf16)")


def bits_of(name):
    """Of a weight, or None in bf16. ValueError for a name of no model."""
    found = NAME.fullmatch(name)
    if not found or found.group(1) not in GEOMETRIES:
        raise ValueError(f"{name} is no model of the papers; the geometries are {', '.join(GEOMETRIES)}, with -3bit, -4bit, -6bit, -8bit or -bf16 behind")
    return int(found.group(2)) if found.group(2) else None


def bytes_per_weight(bits):
    """With a 16-bit scale and bias for each group."""
    return 2 if bits is None else bits / 8 + 4 / GROUP


def geometry_of(name):
    bits_of(name)
    return GEOMETRIES[NAME.fullmatch(name).group(1)]


def expected_bytes(name, layers=None):
    """Of the matrices, with so many of the layers."""
    model = geometry_of(name)
    return dataclasses.replace(model, layers=layers or model.layers).weights() * bytes_per_weight(bits_of(name))


def layers_that_fit(name):
    """All, or as many as a file of LARGEST_FILE has room for, in steps that keep the share of layers with linear attention."""
    layers = geometry_of(name).layers
    while expected_bytes(name, layers) > LARGEST_FILE:
        layers -= FULL_INTERVAL
    return layers


class Models:
    """Makes models in a folder when they are first asked for."""

    def __init__(self, binaries, folder, quick):
        self.binaries, self.folder, self.quick = binaries, folder, quick

    def path(self, name):
        return self.folder / (name + ("-quick" if self.quick else ""))

    def geometry(self, name):
        """Of the model that is made."""
        layers = layers_that_fit(name)
        if not self.quick:
            return dataclasses.replace(geometry_of(name), layers=layers)
        return dataclasses.replace(geometry_of(name).divided(QUICK_FACTOR), layers=min(layers, QUICK_LAYERS))

    def make(self, name):
        """The model's folder, and its geometry."""
        path, geometry, bits = self.path(name), self.geometry(name), bits_of(name)
        if not (path / "config.json").exists():
            packing = ["--bits", bits, "--group-size", GROUP] if bits else ["--dtype", "BF16"]
            call([self.binaries / "make_model", "--out", path, *geometry.flags(), *packing])
        return path, geometry

    def remove(self, name):
        shutil.rmtree(self.path(name), ignore_errors=True)
