"""A made model of the width of Qwen3-30B-A3B, with some of its layers and planted routes (testbed/make_model/planted_routes.h)."""
from report import call

LAYERS, VOCAB = 48, 151936
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, PER_TOKEN, EXPERT_WIDTH, MLP_WIDTH = 2048, 32, 4, 128, 128, 8, 768, 6144
EXPERT_BYTES = 3 * HIDDEN * EXPERT_WIDTH * 2
TEXT, OTHER_TEXT = 1, 2  # seeds of sampling: what is measured, and what a plan has the routes of


def make(binaries, folder, layers, divided_by=1, least_vocab=0):
    """Makes it unless it is there. Widths are divided by `divided_by`, and the vocabulary as the layers are, too, so that the head keeps its share of a token."""
    model = folder / (f"planted-a3b-{layers}" + (f"-divided-by-{divided_by}" if divided_by > 1 else ""))
    if not (model / "config.json").exists():
        call([binaries / "make_model", "--out", model, "--family", "qwen3_moe", "--routes", "planted", "--layers", layers, "--hidden", HIDDEN // divided_by,
              "--heads", HEADS // divided_by, "--kv-heads", max(1, KV_HEADS // divided_by), "--head-dim", HEAD_DIM, "--experts", EXPERTS, "--experts-per-token", PER_TOKEN,
              "--expert-intermediate", EXPERT_WIDTH // divided_by, "--intermediate", MLP_WIDTH // divided_by,
              "--vocab", max(least_vocab, VOCAB * layers // LAYERS // divided_by), "--positions", 4096, "--rope-theta", 1000000])
    return model
