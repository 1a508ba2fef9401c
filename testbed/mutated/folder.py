"""A small model in the form of a Hugging Face folder, written with the standard library, and
changes of such a folder.
"""
import json
import os
import random
import struct

from . import values

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB = 32, 2, 4, 2, 8, 64, 260
TENSOR_WORDS = ["F64", "F32", "F16", "BF16", "I64", "U8", "F8_E4M3", "BOOL", "X"]


def config():
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 256,
            "eos_token_id": 257, "torch_dtype": "float32", "rope_scaling": None}


def tokenizer():
    """A tokenizer of bytes without merges, in the form of byte-level BPE: printable bytes stand for
    themselves, the others begin at U+0100.
    """
    names, more = {}, 0
    for byte in range(256):
        as_is = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        names[chr(byte if as_is else 256 + more)] = byte
        more += 0 if as_is else 1
    added = [{"id": 256 + i, "content": content, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
             for i, content in enumerate(["<s>", "</s>"])]
    return {"version": "1.0", "added_tokens": added, "normalizer": None, "post_processor": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "unk_token": None, "byte_fallback": False, "ignore_merges": False, "vocab": names, "merges": []}}


def shapes():
    out = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN], "lm_head.weight": [VOCAB, HIDDEN]}
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        out.update({p + "input_layernorm.weight": [HIDDEN], p + "post_attention_layernorm.weight": [HIDDEN],
                    p + "self_attn.q_proj.weight": [HEADS * HEAD_DIM, HIDDEN], p + "self_attn.k_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN],
                    p + "self_attn.v_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN], p + "self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD_DIM],
                    p + "mlp.gate_proj.weight": [INTERMEDIATE, HIDDEN], p + "mlp.up_proj.weight": [INTERMEDIATE, HIDDEN],
                    p + "mlp.down_proj.weight": [HIDDEN, INTERMEDIATE]})
    return out


def safetensors(header, data, text=None):
    raw = (text if text is not None else json.dumps(header)).encode("utf-8", "surrogatepass")
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + data


def weights(seed):
    """-> (header, data)"""
    r, header, data = random.Random(seed), {"__metadata__": {"format": "pt"}}, b""
    for name, shape in shapes().items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        raw = struct.pack(f"<{count}f", *(r.uniform(-0.3, 0.3) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return header, data


def write(path, seed=1):
    path.mkdir(parents=True)
    header, data = weights(seed)
    (path / "model.safetensors").write_bytes(safetensors(header, data))
    for name, tree in (("config.json", config()), ("tokenizer.json", tokenizer()), ("generation_config.json", {"bos_token_id": 256, "eos_token_id": [257]}),
                       ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"})):
        (path / name).write_text(json.dumps(tree), encoding="utf-8")


def mutate_header(r, path):
    """Changes a tensor's entry, or the header's length."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    name = r.choice([key for key in header if key != "__metadata__"])
    act = r.randrange(6)
    if act == 0:
        header[name]["dtype"] = r.choice(TENSOR_WORDS)
    elif act == 1:
        header[name]["shape"] = r.choice([[], [0], [-1, 2], [2**62, 4], header[name]["shape"][::-1], header[name]["shape"] + [1]])
    elif act == 2:
        header[name]["data_offsets"] = r.choice([[0, 0], [4, 0], [-8, 8], [0, 2**63], header[name]["data_offsets"][::-1], [8, len(data)]])
    elif act == 3:
        header[r.choice([name + ".x", "lm_head.bias", "model.layers.9.x", ""])] = header.pop(name)
    elif act == 4:
        path.write_bytes(struct.pack("<Q", r.choice([0, 1, 8, size - 1, size + 8, 2**40, 2**64 - 1])) + raw[8:])
        return
    else:
        values.mutate_tree(r, header)
    path.write_bytes(safetensors(header, data, values.json_text(r, header)))


def mutate_entry(r, path):
    """Changes the file itself: missing, empty, a folder, a link, a pipe, another kind of file, or
    far too large.
    """
    act = r.randrange(9)
    if path.exists() or path.is_symlink():
        path.unlink()
    if act == 1:
        path.touch()
    elif act == 2:
        path.mkdir()
    elif act == 3:
        path.symlink_to(path.name)
    elif act == 4:
        path.symlink_to("nowhere")
    elif act == 5:
        os.mkfifo(path)
    elif act == 6:
        path.symlink_to("/dev/zero")
    elif act == 7:
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    elif act == 8:
        with open(path, "wb") as f:
            f.truncate(1 << 40)


def mutate(r, path):
    """Makes some changes in a folder that `write` made."""
    for _ in range(r.choice([1, 1, 2, 3])):
        files = sorted(f for f in path.iterdir() if f.is_file() and not f.is_symlink() and f.stat().st_size < 1 << 24)
        if not files:
            return
        file = r.choice(files)
        act = r.random()
        if act < 0.15:
            mutate_entry(r, file)
        elif act < 0.35 or file.suffix not in (".json", ".safetensors"):
            file.write_bytes(values.mutate_bytes(r, file.read_bytes()))
        elif file.suffix == ".safetensors":
            try:
                mutate_header(r, file)
            except (ValueError, KeyError, TypeError, struct.error, AttributeError, IndexError, RecursionError):  # broken by an earlier change
                file.write_bytes(values.mutate_bytes(r, file.read_bytes()))
        else:
            try:
                tree = json.loads(file.read_text(encoding="utf-8"))
            except (ValueError, RecursionError):
                tree = {}
            for _ in range(r.choice([1, 1, 3])):
                values.mutate_tree(r, tree)
            file.write_bytes(values.json_text(r, tree).encode("utf-8", "surrogatepass"))
