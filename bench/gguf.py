#!/usr/bin/python3
"""Writes a Hugging Face checkpoint in BF16 or F32, of Llama or of Qwen3 with experts, as a GGUF file, so that llama.cpp can run it beside LIME.

    bench/gguf.py MODEL_FOLDER OUT.gguf

Matrices are copied as they are; norms and routers become F32, as in llama.cpp's own converter. The experts of a layer are stacked. The vocabulary is made up,
and no text has tokens in it: programs give llama.cpp ids and get ids. Memory holds 4 MiB or the rows of one head. What the file cannot hold is refused by name:
other families and dtypes, biases, quantised weights, scaled rotations, and layers without experts in a model with experts.
"""
import argparse
import json
import math
import os
import pathlib
import struct
import sys

VERSION, ALIGNMENT = 3, 32
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9  # types of values of the header
F32, BF16 = 0, 30  # types of tensors
BYTES = {F32: 4, BF16: 2}
DTYPES = {"F32": F32, "BF16": BF16}
FILE_TYPES = {F32: 0, BF16: 32}  # general.file_type, by the type of the matrices
CHUNK = 4 << 20
MOST_HEADER_BYTES = 100 << 20  # of a safetensors file


class Unsupported(Exception):
    """One sentence that says what this program cannot write or read."""


# ---- Reading

class Source:
    """One tensor of a checkpoint: `offset` is that of its first byte in its file."""

    def __init__(self, path, offset, kind, shape):
        self.path, self.offset, self.kind, self.shape = path, offset, kind, shape
        self.bytes = BYTES[kind] * math.prod(shape)


def sources_of_file(path):
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(MOST_HEADER_BYTES, size - 8):
            raise Unsupported(f"{path} is not a safetensors file: its header would have {length} bytes")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] not in DTYPES:
            raise Unsupported(f"{path}: {name} is {entry['dtype']}; only {' and '.join(DTYPES)} are supported")
        begin, end = entry["data_offsets"]
        source = Source(path, 8 + length + begin, DTYPES[entry["dtype"]], entry["shape"])
        if end - begin != source.bytes or begin < 0 or 8 + length + end > size:
            raise Unsupported(f"{path}: {name} has the bytes {begin} to {end}, which do not fit its shape or the file")
        yield name, source


def sources_of(folder):
    """name -> Source, of all files of a checkpoint."""
    index = folder / "model.safetensors.index.json"
    names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    return dict(item for name in names for item in sources_of_file(folder / name))


# ---- What the file has

class Tensor:
    """A tensor of the GGUF file: the values of `sources`, one behind another. `heads`: q and k of Llama, whose rows change places; 0: as they are."""

    def __init__(self, name, kind, shape, sources, heads=0):
        self.name, self.kind, self.shape, self.sources, self.heads = name, kind, shape, sources, heads
        self.bytes = BYTES[kind] * math.prod(shape)


class Layout:
    """The tensors of the GGUF file, in their order, of a model's sources. Each source is used once."""

    def __init__(self, config, sources):
        self.config, self.left, self.tensors = config, dict(sources), []
        self.hidden, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head_dim = config.get("head_dim") or self.hidden // self.heads

    def take(self, name, shape):
        source = self.left.pop(name, None)
        if source is None:
            raise Unsupported(f"the checkpoint lacks {name}")
        if source.shape != shape:
            raise Unsupported(f"{name} has the shape {source.shape}; config.json says {shape}")
        return source

    def add(self, name, source, shape, kind=None, heads=0):
        found = self.take(source + ".weight", shape)
        self.tensors.append(Tensor(name + ".weight", found.kind if kind is None else kind, shape, [found], heads))

    def add_experts(self, name, source, count, shape):
        sources = [self.take(source.format(expert) + ".weight", shape) for expert in range(count)]
        if len({found.kind for found in sources}) != 1:
            raise Unsupported(f"{source.format(0)} to {count - 1} have several dtypes; one tensor of the GGUF file holds them all")
        self.tensors.append(Tensor(name + ".weight", sources[0].kind, [count, *shape], sources))

    def add_all(self):
        vocab = [self.config["vocab_size"], self.hidden]
        self.add("token_embd", "model.embed_tokens", vocab)
        for layer in range(self.config["num_hidden_layers"]):
            self.add_layer(f"blk.{layer}.", f"model.layers.{layer}.")
        self.add("output_norm", "model.norm", [self.hidden], F32)
        if not self.config.get("tie_word_embeddings"):
            self.add("output", "lm_head", vocab)
        if self.left:
            raise Unsupported(f"the GGUF file has no place for {min(self.left)}")
        return self.tensors

    def add_layer(self, to, of):
        experts = self.config["model_type"] == "qwen3_moe"
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.add(to + "attn_norm", of + "input_layernorm", [self.hidden], F32)
        self.add(to + "attn_q", of + "self_attn.q_proj", [queries, self.hidden], heads=0 if experts else self.heads)
        self.add(to + "attn_k", of + "self_attn.k_proj", [keys, self.hidden], heads=0 if experts else self.kv_heads)
        self.add(to + "attn_v", of + "self_attn.v_proj", [keys, self.hidden])
        self.add(to + "attn_output", of + "self_attn.o_proj", [self.hidden, queries])
        if experts:
            self.add(to + "attn_q_norm", of + "self_attn.q_norm", [self.head_dim], F32)
            self.add(to + "attn_k_norm", of + "self_attn.k_norm", [self.head_dim], F32)
        self.add(to + "ffn_norm", of + "post_attention_layernorm", [self.hidden], F32)
        if experts:
            self.add_expert_mlp(to, of)
        else:
            self.add_mlp(to, of)

    def add_mlp(self, to, of):
        width = self.config["intermediate_size"]
        self.add(to + "ffn_gate", of + "mlp.gate_proj", [width, self.hidden])
        self.add(to + "ffn_up", of + "mlp.up_proj", [width, self.hidden])
        self.add(to + "ffn_down", of + "mlp.down_proj", [self.hidden, width])

    def add_expert_mlp(self, to, of):
        count, width = self.config["num_experts"], self.config["moe_intermediate_size"]
        self.add(to + "ffn_gate_inp", of + "mlp.gate", [count, self.hidden], F32)
        self.add_experts(to + "ffn_gate_exps", of + "mlp.experts.{}.gate_proj", count, [width, self.hidden])
        self.add_experts(to + "ffn_up_exps", of + "mlp.experts.{}.up_proj", count, [width, self.hidden])
        self.add_experts(to + "ffn_down_exps", of + "mlp.experts.{}.down_proj", count, [self.hidden, width])


# ---- The header

ARCHITECTURES = {"llama": "llama", "qwen3_moe": "qwen3moe"}


def check(config):
    """Fields that change the computation, but have no tensor of their own. Layout refuses those that have one."""
    family = config.get("model_type")
    if family not in ARCHITECTURES:
        raise Unsupported(f"model_type {family!r} is not supported; {' and '.join(ARCHITECTURES)} are")
    wanted = {"hidden_act": "silu", "quantization_config": None}
    if family == "qwen3_moe":
        wanted |= {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False}
    for name, only in wanted.items():
        value = config.get(name, False if name == "norm_topk_prob" else only)  # as transformers reads a config without the field
        if value != only and (value or only):
            raise Unsupported(f"{name} is {json.dumps(value)}; only {json.dumps(only)} is supported")
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise Unsupported(f"rotations scaled by {json.dumps(rope)} are not supported")


def values_of(config, layout):
    """name -> value of the header's fields; a float becomes FLOAT32, an int UINT32, a list an ARRAY of STRING."""
    architecture = ARCHITECTURES[config["model_type"]]
    own = {"vocab_size": config["vocab_size"], "block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
           "embedding_length": layout.hidden, "feed_forward_length": config["intermediate_size"], "attention.head_count": layout.heads,
           "attention.head_count_kv": layout.kv_heads, "attention.key_length": layout.head_dim, "attention.value_length": layout.head_dim,
           "attention.layer_norm_rms_epsilon": float(config.get("rms_norm_eps", 1e-6)), "rope.dimension_count": layout.head_dim,
           "rope.freq_base": float(config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta") or 10000)}
    if config["model_type"] == "qwen3_moe":
        own |= {"expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
                "expert_feed_forward_length": config["moe_intermediate_size"]}
    return {"general.architecture": architecture, "general.alignment": ALIGNMENT, "general.file_type": FILE_TYPES[layout.tensors[0].kind],
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": [f"t{id}" for id in range(config["vocab_size"])], "tokenizer.ggml.merges": [],
            **{f"{architecture}.{name}": value for name, value in own.items()}}


def text(words):
    data = words.encode()
    return struct.pack("<Q", len(data)) + data


def field(name, value):
    if isinstance(value, str):
        return text(name) + struct.pack("<I", STRING) + text(value)
    if isinstance(value, list):
        return text(name) + struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(text, value))
    return text(name) + (struct.pack("<If", FLOAT32, value) if isinstance(value, float) else struct.pack("<II", UINT32, value))


def padding(size):
    return -size % ALIGNMENT


def header_of(values, tensors):
    parts = [b"GGUF", struct.pack("<IQQ", VERSION, len(tensors), len(values)), *(field(*item) for item in values.items())]
    offset = 0
    for tensor in tensors:
        dimensions = tensor.shape[::-1]  # the one whose elements are neighbours comes first
        parts.append(text(tensor.name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, tensor.kind, offset))
        offset += tensor.bytes + padding(tensor.bytes)
    header = b"".join(parts)
    return header + bytes(padding(len(header)))


# ---- The data

def widened(data):
    """BF16 as F32."""
    out = bytearray(2 * len(data))
    out[2::4], out[3::4] = data[0::2], data[1::2]
    return out


def interleaved(head, rows):
    """The rows of a head: of the pairs (i, i + rows / 2) that transformers rotates, llama.cpp wants each pair side by side."""
    row, half = len(head) // rows, rows // 2
    return b"".join(head[at * row:(at + 1) * row] for i in range(half) for at in (i, i + half))


def pieces(tensor, source):
    with open(source.path, "rb") as file:
        file.seek(source.offset)
        size = source.bytes // tensor.heads if tensor.heads else CHUNK
        for at in range(0, source.bytes, size):
            data = file.read(min(size, source.bytes - at))
            if tensor.heads:
                data = interleaved(data, source.shape[0] // tensor.heads)
            yield widened(data) if tensor.kind != source.kind else data


def write_data(out, tensor):
    for source in tensor.sources:
        for piece in pieces(tensor, source):
            out.write(piece)
    out.write(bytes(padding(tensor.bytes)))


def write(folder, path):
    """The GGUF file of a checkpoint. It gets its name when it is whole."""
    config = json.loads((folder / "config.json").read_text())
    check(config)
    layout = Layout(config, sources_of(folder))
    tensors = layout.add_all()
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as out:
            out.write(header_of(values_of(config, layout), tensors))
            for tensor in tensors:
                write_data(out, tensor)
            out.flush()
            os.fsync(out.fileno())
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="with config.json and safetensors files")
    parser.add_argument("out", type=pathlib.Path)
    flags = parser.parse_args()
    try:
        write(flags.folder, flags.out)
    except (Unsupported, OSError) as why:
        sys.exit(f"bench/gguf.py: {why}")
    except (KeyError, TypeError, ValueError) as why:
        sys.exit(f"bench/gguf.py: {flags.folder} is not a checkpoint that this program can read: {type(why).__name__}: {why}")


if __name__ == "__main__":
    main()
