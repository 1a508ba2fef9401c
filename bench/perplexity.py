"""What quantisation costs in accuracy and what it saves (Layer-Streaming, Table 2): perplexity, size, memory and time for a token, dense and in 8, 6, 4 and 3 bits."""
import pathlib
import statistics

from report import answer, call, heading, mib, table, verdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
BITS = (8, 6, 4, 3)
TEXT_CHARACTERS = 12000  # of a text that is no held-out text of the model
TOLERANCE = {bits: 0.05 if bits == 3 else 0.01 for bits in ("dense", *BITS)}
# Model, text, weights that share a scale, and what arithmetic in float64 over the same groups gives.
MODELS = [
    (ROOT / "models/lime-fables", ROOT / "models/lime-fables/heldout.txt", 32, {"dense": 3.879, 8: 3.882, 6: 3.867, 4: 3.896, 3: 5.001}),
    (SHARED / "models/opt-shakespeare", SHARED / "text/tinyshakespeare.txt", 32, {"dense": 23.511, 8: 23.517, 6: 23.548, 4: 23.970, 3: 25.573}),
    (SHARED / "models/stories260k-bf16", SHARED / "text/tinystories-sample.txt", 64, {"dense": 4.117, 8: 4.121, 6: 4.133, 4: 4.710, 3: 9.113}),
]


def scored_text(text, out):
    """The file to score: a held-out text as it is, of another the beginning without its marks of the end of a text."""
    if text.parent.name != "text":
        return text
    lines = [line for line in text.read_text(encoding="utf-8").splitlines(keepends=True) if line.strip() != "<|endoftext|>"]
    file = out / f"scored-{text.name}"
    file.write_text("".join(lines)[:TEXT_CHARACTERS], encoding="utf-8")
    return file


def packed(bench, model, bits, group):
    out = bench.out / f"{model.name}-q{bits}"
    if not (out / "config.json").exists():
        call([bench.lime, "quantize", "--model", model, "--out", out, "--bits", bits, "--group-size", group])
    return out


def measured(bench, model, text):
    scored = answer([bench.lime, "score", "--model", model, "--text-file", text])
    run = [bench.lime, "run", "--model", model, "--prompt", "Once upon a time", "--max-tokens", 64, "--ignore-eos"]
    runs = [answer(run) for _ in range(3 if bench.quick else 7)]
    return {"perplexity": scored["perplexity"], "bytes": sum(file.stat().st_size for file in model.glob("*.safetensors")),
            "memory_bytes": statistics.median(one["peak_rss_bytes"] for one in runs), "ms_per_token": statistics.median(one["ms_per_token"] for one in runs)}


def of_model(bench, model, text, group, expected):
    """{"dense" or bits: figures}"""
    text = scored_text(text, bench.out)
    found = {}
    for bits in expected:
        found[bits] = measured(bench, model if bits == "dense" else packed(bench, model, bits, group), text)
    return found


def perplexity(bench):
    heading("Perplexity by quantisation (Layer-Streaming Table 2)")
    rows, report = [], {}
    for model, text, group, expected in MODELS:
        if not (model.is_dir() and text.is_file()):
            print(f"  {model.name} is left out: {model} or {text} is not there")
            continue
        report[model.name] = of_model(bench, model, text, group, expected)
        for bits, figures in report[model.name].items():
            off = figures["perplexity"] / expected[bits] - 1
            rows.append([f"{model.name}, groups of {group}", bits, f"{figures['perplexity']:.3f}", f"{expected[bits]:.3f}", f"{100 * off:+.2f} %",
                         verdict(round(abs(off), 4), TOLERANCE[bits], at_least=False), mib(figures["bytes"]), mib(figures["memory_bytes"]),
                         f"{figures['ms_per_token']:.3f} ms"])
    bench.report["perplexity"] = report
    table(["model", "bits", "perplexity", "float64", "difference", "goal", "size", "peak memory", "a token"], rows)
