"""bench/gguf.py: a GGUF file has the values of its checkpoint, in the order that llama.cpp wants; what it cannot hold is refused."""
import json
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import gguf  # noqa: E402

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, EXPERTS, WIDTH = 12, 4, 2, 6, 10, 3, 7
COMMON = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB, "num_hidden_layers": 2,
          "max_position_embeddings": 64, "intermediate_size": 9, "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "hidden_act": "silu", "rope_scaling": None}
LLAMA = COMMON | {"model_type": "llama", "tie_word_embeddings": True}
QWEN = COMMON | {"model_type": "qwen3_moe", "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH, "norm_topk_prob": True}


def shapes_of(config):
    """name -> shape, without `.weight`."""
    shapes = {"model.embed_tokens": [VOCAB, HIDDEN], "model.norm": [HIDDEN]}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head"] = [VOCAB, HIDDEN]
    for layer in (f"model.layers.{i}." for i in range(2)):
        shapes |= {layer + "input_layernorm": [HIDDEN], layer + "post_attention_layernorm": [HIDDEN],
                   layer + "self_attn.q_proj": [HEADS * HEAD_DIM, HIDDEN], layer + "self_attn.k_proj": [KV_HEADS * HEAD_DIM, HIDDEN],
                   layer + "self_attn.v_proj": [KV_HEADS * HEAD_DIM, HIDDEN], layer + "self_attn.o_proj": [HIDDEN, HEADS * HEAD_DIM]}
        mlps = {layer + "mlp.": 9}
        if config["model_type"] == "qwen3_moe":
            shapes |= {layer + "mlp.gate": [EXPERTS, HIDDEN], layer + "self_attn.q_norm": [HEAD_DIM], layer + "self_attn.k_norm": [HEAD_DIM]}
            mlps = {f"{layer}mlp.experts.{i}.": WIDTH for i in range(EXPERTS)}
        for mlp, width in mlps.items():
            shapes |= {mlp + "gate_proj": [width, HIDDEN], mlp + "up_proj": [width, HIDDEN], mlp + "down_proj": [HIDDEN, width]}
    return shapes


def write_file(path, tensors, dtype):
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name + ".weight"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(data for _, data in tensors.values()))


def size_of(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def write_checkpoint(folder, config, dtype="BF16", more=None, shards=1):
    """Random bytes. Returns name -> (shape, data)."""
    (folder / "config.json").write_text(json.dumps(config))
    source = random.Random(7)
    tensors = {name: (shape, source.randbytes({"F32": 4}.get(dtype, 2) * size_of(shape))) for name, shape in (shapes_of(config) | (more or {})).items()}
    names = list(tensors)
    files = {f"model-{i}.safetensors" if shards > 1 else "model.safetensors": names[i::shards] for i in range(shards)}
    for file, own in files.items():
        write_file(folder / file, {name: tensors[name] for name in own}, dtype)
    if shards > 1:
        index = {"weight_map": {name + ".weight": file for file, own in files.items() for name in own}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors


class Reader:
    """What a GGUF file has: `values` of its header, and `tensors`, name -> (dimensions, type, data)."""

    def __init__(self, path):
        self.file = path.read_bytes()
        self.at = 0
        magic, version, tensors, values = self.take("4sIQQ")
        assert (magic, version) == (b"GGUF", 3)
        self.values = {self.text(): self.value(self.take("I")[0]) for _ in range(values)}
        infos = [self.info() for _ in range(tensors)]
        start = -(-self.at // 32) * 32
        self.end = start + max(offset + len_of(dims, kind) for _, dims, kind, offset in infos)
        self.tensors = {name: (dims, kind, self.file[start + offset:start + offset + len_of(dims, kind)]) for name, dims, kind, offset in infos}
        assert all(offset % 32 == 0 for *_, offset in infos)

    def take(self, format):
        format = "<" + format
        self.at += struct.calcsize(format)
        return struct.unpack_from(format, self.file, self.at - struct.calcsize(format))

    def text(self):
        return self.take(f"{self.take('Q')[0]}s")[0].decode()

    def value(self, kind):
        if kind == 9:
            of, count = self.take("IQ")
            return [self.value(of) for _ in range(count)]
        return self.text() if kind == 8 else self.take({4: "I", 6: "f"}[kind])[0]

    def info(self):
        name, dimensions = self.text(), self.take("I")[0]
        return name, list(self.take(f"{dimensions}Q")), *self.take("IQ")


def len_of(dims, kind):
    size = {0: 4, 30: 2}[kind]
    for dim in dims:
        size *= dim
    return size


def numbers(bf16):
    return [struct.unpack("<I", b"\0\0" + bf16[at:at + 2])[0] for at in range(0, len(bf16), 2)]


def rows(data, count):
    return [data[i * len(data) // count:(i + 1) * len(data) // count] for i in range(count)]


class GgufTest(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="lime-gguf.")
        self.addCleanup(temp.cleanup)
        self.folder = Path(temp.name)

    def written(self):
        path = self.folder / "model.gguf"
        gguf.write(self.folder, path)
        self.assertEqual([file.name for file in self.folder.glob("*.part")], [])
        return Reader(path)

    def test_the_header_has_the_fields_of_the_config(self):
        write_checkpoint(self.folder, QWEN)
        values = self.written().values
        self.assertEqual(values["general.architecture"], "qwen3moe")
        self.assertEqual({name: values[f"qwen3moe.{name}"] for name in ("block_count", "attention.head_count_kv", "attention.key_length", "expert_count",
                                                                        "expert_used_count", "expert_feed_forward_length", "rope.freq_base")},
                         {"block_count": 2, "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD_DIM, "expert_count": EXPERTS, "expert_used_count": 2,
                          "expert_feed_forward_length": WIDTH, "rope.freq_base": 5000.0})
        self.assertAlmostEqual(values["qwen3moe.attention.layer_norm_rms_epsilon"], 1e-5)
        self.assertEqual(len(set(values["tokenizer.ggml.tokens"])), VOCAB)

    def test_experts_are_stacked_from_all_files_and_matrices_are_copied(self):
        tensors = write_checkpoint(self.folder, QWEN, shards=3)
        file = self.written()
        for ours, theirs in (("ffn_gate_exps", "gate_proj"), ("ffn_up_exps", "up_proj"), ("ffn_down_exps", "down_proj")):
            shape = tensors[f"model.layers.1.mlp.experts.0.{theirs}"][0]
            data = b"".join(tensors[f"model.layers.1.mlp.experts.{i}.{theirs}"][1] for i in range(EXPERTS))
            self.assertEqual(file.tensors[f"blk.1.{ours}.weight"], ([*shape[::-1], EXPERTS], 30, data))
        for ours, theirs in (("output", "lm_head"), ("blk.0.attn_q", "model.layers.0.self_attn.q_proj"), ("blk.1.attn_output", "model.layers.1.self_attn.o_proj")):
            self.assertEqual(file.tensors[ours + ".weight"], (tensors[theirs][0][::-1], 30, tensors[theirs][1]))
        self.assertEqual(len(file.tensors), 3 + 2 * 12)
        self.assertGreaterEqual(len(file.file), file.end)

    def test_norms_and_routers_become_f32(self):
        tensors = write_checkpoint(self.folder, QWEN)
        file = self.written()
        for ours, theirs in (("output_norm", "model.norm"), ("blk.0.ffn_gate_inp", "model.layers.0.mlp.gate"), ("blk.1.attn_k_norm", "model.layers.1.self_attn.k_norm")):
            dims, kind, data = file.tensors[ours + ".weight"]
            self.assertEqual((dims, kind), (tensors[theirs][0][::-1], 0))
            self.assertEqual(list(struct.unpack(f"<{len(data) // 4}I", data)), numbers(tensors[theirs][1]))

    def test_rows_that_llama_rotates_together_stand_together(self):
        for dtype in ("BF16", "F32"):
            tensors = write_checkpoint(self.folder, LLAMA, dtype)
            file = self.written()
            self.assertNotIn("output.weight", file.tensors)
            for ours, theirs, heads in (("attn_q", "q_proj", HEADS), ("attn_k", "k_proj", KV_HEADS)):
                before = rows(tensors[f"model.layers.0.self_attn.{theirs}"][1], heads * HEAD_DIM)
                wanted = [before[head * HEAD_DIM + at] for head in range(heads) for at in (0, 3, 1, 4, 2, 5)]
                self.assertEqual(rows(file.tensors[f"blk.0.{ours}.weight"][2], heads * HEAD_DIM), wanted)
            self.assertEqual(file.tensors["blk.0.attn_v.weight"][2], tensors["model.layers.0.self_attn.v_proj"][1])

    def test_what_the_file_cannot_hold_is_refused_by_name(self):
        cases = (({"model_type": "gemma3"}, "BF16", {}, "gemma3"),
                 ({"rope_scaling": {"rope_type": "llama3"}}, "BF16", {}, "llama3"),
                 ({"hidden_act": "relu"}, "BF16", {}, "hidden_act"),
                 ({"quantization_config": {"quant_method": "fp8"}}, "BF16", {}, "quantization_config"),
                 ({"num_key_value_heads": 1}, "BF16", {}, "k_proj.weight has the shape"),
                 ({}, "F16", {}, "is F16; only F32 and BF16"),
                 ({}, "BF16", {"model.layers.0.self_attn.q_proj_bias": [HIDDEN]}, "no place for model.layers.0.self_attn.q_proj_bias"))
        for fields, dtype, more, said in cases:
            with self.subTest(said):
                write_checkpoint(self.folder, LLAMA, dtype, more)
                (self.folder / "config.json").write_text(json.dumps(LLAMA | fields))
                self.refused(said)
        for fields in ({"norm_topk_prob": False}, {"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}, {"use_sliding_window": True}):
            with self.subTest(fields):
                write_checkpoint(self.folder, QWEN)
                (self.folder / "config.json").write_text(json.dumps(QWEN | fields))
                self.refused(next(iter(fields)))
        (self.folder / "config.json").write_text(json.dumps({name: value for name, value in QWEN.items() if name != "norm_topk_prob"}))
        self.refused("norm_topk_prob is false")

    def refused(self, said):
        with self.assertRaisesRegex(gguf.Unsupported, said):
            gguf.write(self.folder, self.folder / "model.gguf")
        self.assertFalse((self.folder / "model.gguf").exists())

    def test_a_file_that_is_no_checkpoint_is_one_sentence(self):
        (self.folder / "config.json").write_text(json.dumps(LLAMA))
        for data in (b"short", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 2) + b"[]", b""):
            (self.folder / "model.safetensors").write_bytes(data)
            done = subprocess.run([sys.executable, "-B", ROOT / "bench/gguf.py", self.folder, self.folder / "model.gguf"], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertRegex(done.stderr, "^bench/gguf.py: .*(not a safetensors file|not a checkpoint)")


if __name__ == "__main__":
    unittest.main(verbosity=2)
