"""The tables of bench/paper_models.py, from the figures that it keeps: the papers' rows beside ours. A row is {column: text}."""
import dataclasses

import paper_figures
from paper_figures import FIRST, FOUR, INFERENCE, LOAD, NINE, NINE_8, NINE_BF16, REDUCTION, TWENTY_SEVEN
from paper_geometries import geometry_of
from streaming_paper import GIB

PLACEMENTS = ("first_n", "last_n", "interleaved")
ATTENTION = {"0 %": "nothing resident", "attention_first": "attention resident, MLPs and head stream", "interleaved, as much as attention": "as much resident, interleaved"}


def percent(share, signed=False):
    return f"{100 * share:{'+' if signed else ''}.0f} %"


def gib(size):
    return f"{size / GIB:.2f}"


def met(holds):
    return "met" if holds else "missed"


def stays(row, full):
    """The share in memory of the weights that stream for every token with nothing resident."""
    return percent(1 - row["streamed_bytes"] / full["streamed_bytes"]) if full else ""


def beside_limit(row):
    """A row of the streaming parts beside its limit."""
    return {"tokens/s": f"{1e3 / row['ms']:.2f}", "limit tokens/s": f"{1e3 / row['limit_ms']:.2f}", "time / limit": f"{row['ratio']:.3f}",
            "streams GB": f"{row['streamed_bytes'] / 1e9:.2f}", "disk GB/s": f"{(row['rate_before'] + row['rate_after']) / 2e9:.2f}", "computing ms": f"{row['compute_ms']:.0f}",
            "peak GiB": gib(row["peak_rss_bytes"])}


def in_memory(row):
    """The same columns of a row that reads nothing: it is the limit itself."""
    speed = f"{row['tps']:.2f}" if row["fits"] else "does not fit"
    return {"tokens/s": speed, "limit tokens/s": speed if row["fits"] else "", "time / limit": "", "streams GB": "0.00", "disk GB/s": "",
            "computing ms": f"{row['ms']:.0f}" if row["fits"] else "", "peak GiB": gib(row["peak_rss_bytes"]) if row["fits"] else ""}


def columns(row):
    return beside_limit(row) if "limit_ms" in row else in_memory(row)


class Kept:
    """The figures of a report."""

    def __init__(self, report):
        self.figures, self.models = report["figures"], report["models"]

    def row(self, model, name):
        return self.figures.get(model, {}).get(name)

    def layers(self, model):
        """The factor of a table: how many of the published model's layers ours has."""
        made = self.models[model]
        return f"{made['layers']} of {made['of_layers']}"

    def named(self, model, names):
        return [(name, self.row(model, name)) for name in names if self.row(model, name)]


# ---- Layer-Streaming


def reduction(kept):
    rows = []
    for model in (*REDUCTION, NINE):
        normal, streaming = kept.row(model, "baseline"), kept.row(model, "0 %")
        if not normal or not streaming:
            continue
        paper = REDUCTION.get(model)
        whole = normal["peak_rss_bytes"] if normal["fits"] else None
        rows.append({"model": model, "layers": kept.layers(model), "weights GiB": gib(kept.models[model]["bytes"]),
                     "paper: in memory GB": f"{paper[0]:.2f}" if paper else "", "streaming GB": f"{paper[1]:.2f}" if paper else "", "less": percent(1 - paper[1] / paper[0]) if paper else "",
                     "ours: in memory GiB": gib(whole) if whole else "does not fit", "nothing resident GiB": gib(streaming["peak_rss_bytes"]),
                     "less memory": percent(1 - streaming["peak_rss_bytes"] / (whole or kept.models[model]["bytes"])),
                     **{column: text for column, text in beside_limit(streaming).items() if column != "peak GiB"}})
    return rows


def tradeoff(kept):
    rows = []
    for name, row in kept.named(NINE_8, paper_figures.TRADEOFF):
        tps, memory, waits = paper_figures.TRADEOFF[name]
        rows.append({"resident": name, "paper: tokens/s": f"{tps:.1f}", "memory GB": f"{memory:.2f}", "I/O": percent(waits), **columns(row),
                     "waits for the disk": percent(row["waiting"]) if "waiting" in row else ""})
    return rows


def budgets(kept):
    rows = []
    for model in (NINE, TWENTY_SEVEN):
        full = kept.row(model, "0 %")
        for name, row in kept.named(model, paper_figures.BUDGETS):
            layers, ipad, iphone, memory = paper_figures.BUDGETS[name]
            of_paper = model == NINE
            gain = lambda: percent(full["ms"] / row["ms"] - 1, signed=True) if full and row is not full else ""
            rows.append({"model": model, "budget": "nothing resident" if name == "0 %" else name, "paper: resident layers": f"{layers} of 32" if of_paper else "",
                         "iPad tokens/s": f"{ipad:.2f}" if of_paper else "", "iPhone tokens/s": f"{iphone:.2f}" if of_paper else "",
                         "iPad gain": percent(ipad / paper_figures.BUDGETS["0 %"][1] - 1, signed=True) if of_paper and layers else "", "memory GB": f"{memory:.2f}" if of_paper else "",
                         "ours: resident": stays(row, full), **beside_limit(row), "gain": gain()})
    return rows


def modes(kept):
    rows, full = [], kept.row(NINE, "0 %")
    for name, row in kept.named(NINE, paper_figures.MODES):
        layers, tps, memory = paper_figures.MODES[name]
        rows.append({"mode": name, "paper: resident layers": f"{layers} of 32", "paper: tokens/s": f"{tps:.2f}", "memory GB": f"{memory:.2f}",
                     "ours: resident": stays(row, full), **beside_limit(row), "killed": str(row["killed"])})
    return rows


def sweep(kept):
    rows = []
    for model in (FOUR, NINE, TWENTY_SEVEN):
        base = kept.row(model, "baseline")
        of_paper = model == FOUR
        for name, row in kept.named(model, paper_figures.SWEEP):
            ipad, ipad_share, iphone, iphone_share, memory = paper_figures.SWEEP[name]
            share = percent(base["ms"] / row["ms"]) if base and base["fits"] and "ms" in row else ""
            rows.append({"model": model, "resident": name, "paper: iPad tokens/s": f"{ipad:.1f}" if of_paper else "", "iPad, of the baseline": percent(ipad_share),
                         "iPhone tokens/s": f"{iphone:.1f}" if of_paper else "", "iPhone, of the baseline": percent(iphone_share), "memory MB": str(memory) if of_paper else "",
                         "ours, of the baseline": share, **columns(row)})
    return rows


def placements(kept):
    rows = []
    for model in (NINE, TWENTY_SEVEN):
        of = kept.named(model, PLACEMENTS)
        fastest = min((row["ms"] for _, row in of), default=0)
        rows += [{"model": model, "placement": name, "paper: slower than the fastest": "at most 3 %", "ours": percent(row["ms"] / fastest - 1), **beside_limit(row)} for name, row in of]
    return rows


def attention(kept):
    full = kept.row(NINE, "0 %")
    rows = []
    for name, row in kept.named(NINE, ATTENTION):
        against = full and name != "0 %"
        rows.append({"what stays": ATTENTION[name], "paper: gain": "under 2 %" if name == "attention_first" else "", "ours: gain": percent(full["ms"] / row["ms"] - 1, signed=True) if against else "",
                     "fewer bytes": percent(1 - row["streamed_bytes"] / full["streamed_bytes"]) if against else "", **beside_limit(row)})
    return rows


def layers(kept):
    rows = []
    for device, (load, compute) in paper_figures.LAYER_MS.items():
        rows.append({"model": "paper, layers of 200 MB", "device": device, "layer MB": "200", "load ms": f"{load:.2f}", "computing ms": f"{compute:.2f}", "load / computing": f"{load / compute:.0f}",
                     "at the disk's rate ms": "", "load / that": "", "computing in memory ms": ""})
    for model in (NINE, TWENTY_SEVEN):
        row = kept.row(model, "layers")
        if not row:
            continue
        base, at_rate = kept.row(model, "baseline"), row["layer_bytes"] / ((row["rate_before"] + row["rate_after"]) / 2e3)
        alone = base["ms"] * dataclasses.replace(geometry_of(model), layers=row["layers"]).layer_share() / row["layers"] if base and base["fits"] else None
        rows.append({"model": model, "device": "this machine", "layer MB": f"{row['layer_bytes'] / 1e6:.0f}", "load ms": f"{row['load_ms']:.1f}", "computing ms": f"{row['compute_layer_ms']:.1f}",
                     "load / computing": f"{row['load_ms'] / row['compute_layer_ms']:.1f}", "at the disk's rate ms": f"{at_rate:.1f}", "load / that": f"{row['load_ms'] / at_rate:.2f}",
                     "computing in memory ms": f"{alone:.1f}" if alone else ""})
    return rows if len(rows) > len(paper_figures.LAYER_MS) else []


def dense(kept):
    row = kept.row(NINE_BF16, "8.0 GiB")
    if not row:
        return []
    return [{"model": NINE_BF16, "layers": kept.layers(NINE_BF16), "weights GiB": gib(kept.models[NINE_BF16]["bytes"]), "budget = hard limit GiB": gib(row["budget_bytes"]),
             **beside_limit(row), "group's peak GiB": gib(row["group_peak_bytes"]) if row["group_peak_bytes"] else "", "goal": f"<= {paper_figures.STREAM_GOAL}",
             "result": met(row["ratio"] <= paper_figures.STREAM_GOAL)}]


# ---- OptMLX


def load(kept):
    rows = []
    for model in LOAD:
        row = kept.row(model, "load")
        if not row:
            continue
        standard, mapped = LOAD[model]
        disk_s = row["weights"] / ((row["rate_before"] + row["rate_after"]) / 2)
        for cache in ("warm", "cold"):
            read, mmap, auto = (row[f"{cache}, {loader}"] for loader in ("read", "mmap", "auto"))
            warm = cache == "warm"
            rows.append({"model": model, "weights GiB": gib(row["weights"]), "cache": cache, "paper: read s": f"{standard:.3f}" if warm else "", "mmap s": f"{mapped:.3f}" if warm else "",
                         "faster": f"{standard / mapped:.2f}" if warm else "", "ours: read s": f"{read['load_s']:.2f}", "ours: mmap s": f"{mmap['load_s']:.3f}",
                         "ours: faster": f"{read['load_s'] / mmap['load_s']:.2f}", "auto took": auto["loader"], "auto s": f"{auto['load_s']:.3f}", "bytes / disk s": f"{disk_s:.2f}",
                         "read / that": f"{read['load_s'] / disk_s:.2f}"})
    return rows


def inference(kept):
    rows = []
    for model in INFERENCE:
        row = kept.row(model, "load")
        if not row:
            continue
        pair = lambda values, form: " / ".join(form.format(value) for value in values)
        of = [row[f"warm, {loader}"] for loader in ("read", "mmap")]
        prompt, speed, memory = INFERENCE[model]
        rows.append({"model": model, "paper: prompt tokens/s, read / mmap": pair(prompt, "{:.0f}"), "tokens/s": pair(speed, "{:.1f}"), "memory GB": pair(memory, "{:.2f}"),
                     "memory / weights": pair([gb * GIB / row["weights"] for gb in memory], "{:.2f}"),
                     "ours: prompt tokens/s": pair([one["prompt_per_s"] for one in of], "{:.1f}"), "ours: tokens/s": pair([one["tps"] for one in of], "{:.2f}"),
                     "ours: memory GiB": pair([one["peak_rss_bytes"] / GIB for one in of], "{:.2f}"),
                     "ours: memory / weights": pair([one["peak_rss_bytes"] / row["weights"] for one in of], "{:.2f}")})
    return rows


def first(kept):
    rows = []
    for model, paper in FIRST.items():
        row = kept.row(model, "first")
        if not row:
            continue
        for mode, (ttft_ms, tps, more) in paper.items():
            mine, growing = row[mode], row["growing"]
            grows = mode == "growing"
            reserved = 0 if grows else geometry_of(model).kv_bytes(int(mode.split()[1]))
            rows.append({"model": model, "KV": mode, "paper: first token ms": f"{ttft_ms:.0f}", "later": "" if grows else percent(ttft_ms / paper["growing"][0] - 1, signed=True), "tokens/s": f"{tps:.1f}",
                         "more memory GB": "" if grows else f"{more:.2f}", "ours: first token ms": f"{mine['ttft_ms']:.0f}",
                         "ours: later": "" if grows else percent(mine["ttft_ms"] / growing["ttft_ms"] - 1, signed=True), "ours: tokens/s": f"{mine['tps']:.2f}",
                         "ours: more memory GiB": "" if grows else gib(mine["peak_rss_bytes"] - growing["peak_rss_bytes"]), "KV reserved GiB": "" if grows else gib(reserved)})
    return rows


TABLES = {
    "reduction": ("reduction", "Layer-Streaming, Table 3: peak memory in memory, and with nothing resident", reduction),
    "tradeoff": ("tradeoff", "Layer-Streaming, Table 4: speed over the resident share, 9B in 8 bits (paper: Mac Studio)", tradeoff),
    "budgets": ("budgets", "Layer-Streaming, Table 7: budgets, each a hard limit of memory", budgets),
    "modes": ("modes", f"Layer-Streaming, Table 8: budgets that LIME derives from a group of {paper_figures.MODES_GIB} GiB", modes),
    "sweep": ("sweep", "Layer-Streaming, Table 9: speed over the resident share, against the model in memory (paper: 4B in 4 bits)", sweep),
    "placements": ("placements", "Layer-Streaming, section 4.4: placements with half resident", placements),
    "attention": ("attention", f"Layer-Streaming, section 5.2: attention resident, MLPs streamed, {NINE}", attention),
    "layers": ("layers", "Layer-Streaming, section 5.2: load and computation of a layer", layers),
    "dense": ("dense", "A dense model under a hard limit of memory", dense),
    "load": ("load", "OptMLX, Table 2: loading, by loader", load),
    "inference": ("load", "OptMLX, Table 3: prompt, generation and memory, by loader, page cache warm", inference),
    "first": ("first", "OptMLX, Table 4: KV reserved or growing, and the first token", first),
}


def tables(report, parts):
    """(name, title, rows) of each table of these parts that has rows."""
    kept = Kept(report)
    made = [(name, title, rows(kept)) for name, (part, title, rows) in TABLES.items() if part in parts]
    return [table for table in made if table[2]]
