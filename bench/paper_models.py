#!/usr/bin/python3
"""The tables of Layer-Streaming and OptMLX with models of their sizes: the papers' figures beside ours, and ours beside their limits.

    bench/paper_models.py BIN_DIR OUT_DIR [PART...] [--model NAME...] [--disk MB/s] [--missing] [--keep-models] [--rounds N] [--tokens N] [--csv FILE] [--quick]

Parts of Layer-Streaming (Qwen3.5):
  reduction   Table 3: peak memory in memory, and with nothing resident
  tradeoff    Table 4: speed over the resident share, 9B in 8 bits
  budgets     Table 7: budgets of 2 to 5 GiB, each a hard limit of memory
  modes       Table 8: budgets that LIME derives from a group of 6.5 GiB
  sweep       Table 9: speed over the resident share, against the model in memory
  placements  section 4.4: three placements with half resident
  attention   section 5.2: attention resident, only the MLPs stream
  layers      section 5.2: load and computation of a layer
  dense       a goal of ours: 9B in bf16 under a hard limit of 8 GiB
Parts of OptMLX (Qwen3):
  load        Tables 2 and 3: load, prompt and generation by loader
  first       Table 4: KV that is reserved, and the first token

Each model is made when its first part needs it, and removed after its last one. Weights are random, and sizes are those of the published models; a model above
20 GB has fewer layers, and the tables say how many. OUT_DIR/paper-models.json keeps the last figures of every row, so parts can be measured one by one;
--missing measures only rows that it does not have. --csv writes all tables that have figures. Without a part, all are measured; `tables` measures nothing.
--quick takes models whose widths are divided by 8, and one model for each part.

--disk limits the reads of the streaming parts, so that a machine has the disk of a board (the papers' iPad reads 2 GB/s); figures with a limit have a file of
their own, such as OUT_DIR/paper-models-2000.json, and tables of their own. Without it, a virtual disk may be its host's cache, which takes cores and memory bus from
computing.

A row of the streaming parts has a hard memory limit of exactly its budget. Its limit is the larger of two times: the computation of a token in memory, and the
streamed bytes / the disk's rate, which disk_bench measures before and after. Embedding rows are read one by one, so a share counts all other weights; the papers
keep embedding and head in memory, and with nothing resident LIME streams the head, too. Needs root, for control groups.
"""
import argparse
import collections
import contextlib
import csv
import functools
import json
import os
import pathlib
import re
import signal
import statistics
import sys

import cgroups
import paper_figures
import paper_tables
from machine import machine, set_cache, touch_memory
from paper_figures import FIRST, FOUR, LOAD, NINE, NINE_8, NINE_BF16, REDUCTION, TWENTY_SEVEN
from paper_geometries import Models, expected_bytes, geometry_of
from report import answer, call, heading, table
from streaming import Streaming
from streaming_paper import BOOT_TOKENS, GIB, bytes_of

MIB = 1 << 20
LARGE = 8e9  # bytes of weights: fewer tokens and turns
ATTENTION_ROOM = 1.005  # of the attention's share of the weights: norms and the ends of parts
Part = collections.namedtuple("Part", "models rows")
PARTS = {
    "reduction": Part([*REDUCTION, NINE], ["baseline", "0 %"]),
    "tradeoff": Part([NINE_8], list(paper_figures.TRADEOFF)),
    "budgets": Part([NINE, TWENTY_SEVEN], list(paper_figures.BUDGETS)),
    "modes": Part([NINE], list(paper_figures.MODES)),
    "sweep": Part([FOUR, NINE, TWENTY_SEVEN], list(paper_figures.SWEEP)),
    "placements": Part([NINE, TWENTY_SEVEN], ["first_n", "last_n", "interleaved"]),
    "attention": Part([NINE], ["0 %", "attention_first", "interleaved, as much as attention"]),
    "layers": Part([NINE, TWENTY_SEVEN], ["layers"]),
    "dense": Part([NINE_BF16], ["8.0 GiB"]),
    "load": Part(list(LOAD), ["load"]),
    "first": Part(list(FIRST), ["first"]),
}
SPAN = re.compile(r"(\w+) (\d+)( \[.*\])?")  # of the trace: the block, its layer, and which of its parts


class PaperStreaming(Streaming):
    """The rows of one model of Layer-Streaming."""

    def __init__(self, bench, name, path, geometry):
        super().__init__(bench, {name: path})
        self.name, self.path, self.geometry, self.weights = name, path, geometry, bytes_of(path)
        self.repeats, self.counted_s = min(1, self.repeats), 0.5 if self.quick else 8
        self.megabytes = bench.flags.disk
        self.disk = self.limited(self.megabytes)  # None: not limited
        self.beside = (256 if self.quick else 640) * MIB  # of a row's budget, beside its share of the weights
        self.rate = self.disk_rate(path, self.disk)
        self.profile = self.frozen_profile(self.megabytes, self.disk)

    def close(self):
        if self.disk:
            self.disk.close()

    def scaled(self, gib):
        """A budget, or of a quick model as much as leaves it the same share."""
        return int(gib * GIB) if not self.quick else int(gib * GIB * self.weights / expected_bytes(self.name)) // MIB * MIB + self.beside

    # ---- In memory

    def in_memory(self, flags):
        """A run with all weights in memory. None if memory has no room for them."""
        available = int(next(line.split()[1] for line in open("/proc/meminfo") if line.startswith("MemAvailable"))) * 1024
        if available < self.weights + GIB // 2:
            return None
        run = self.run(self.path, ["--loader", "read", *flags], BOOT_TOKENS + (10 if self.weights < LARGE else 4))
        return run if run["streaming"]["streamed_bytes_per_step"] == 0 else None

    def baseline(self, flags=()):
        run = self.in_memory(flags)
        if run is None:
            return {"fits": False}
        ms = statistics.median(self.intervals(run))
        self.compute[self.name] = min(ms, self.compute.get(self.name, ms))
        return {"fits": True, "ms": ms, "tps": 1e3 / ms, "peak_rss_bytes": run["peak_rss_bytes"], "load_s": run["load"]["seconds"]}

    def measure_compute(self):
        """Of a token in memory; if there is no room, of a step that streams: without its waits, but beside the reads."""
        row = self.baseline()
        if row["fits"]:
            return row
        run = self.run(self.path, ["--memory", self.beside, "--resident", 0, "--profile", self.profile], 3, prompt="")
        device = run["devices"][0]
        self.compute[self.name] = device["compute_ms"] / device["steps"]
        return {**row, "ms_while_streaming": self.compute[self.name]}

    # ---- Rows

    def measured(self, row):
        """The row with this name."""
        if row in ("baseline", "100 %"):
            return self.both_in_memory[row]
        if row.endswith("GiB"):
            return self.under(self.scaled(float(row.split()[0])), [])
        if row in paper_figures.MODES:
            return self.mode(row)
        if row == "layers":
            return self.layers()
        share, flags = 0.5, ["--placement", row]
        if row.endswith(" %"):
            share, flags = float(row.split()[0]) / 100, []
        elif "attention" in row:
            share = self.geometry.attention_share() * ATTENTION_ROOM
            flags = ["--placement", "attention_first" if row == "attention_first" else "interleaved"]
        resident = share * self.geometry.streamable_share()
        return self.under(int(self.weights * resident) + self.beside, ["--resident", resident, *flags])

    def under(self, budget, flags):
        streams = max(0, self.weights * self.geometry.streamable_share() - max(0, budget - self.beside))
        row, self.rate = self.row(lambda rate: self.attempt(self.name, budget, flags, streams, self.megabytes, self.disk, self.profile, rate), self.megabytes, self.rate)
        return row

    @functools.cached_property
    def both_in_memory(self):
        """The path that cannot stream and the one that can, in turns; of each the fastest turn, as others slow it at times."""
        turns = {"baseline": [], "100 %": []}
        orders = ("baseline", "100 %"), ("100 %", "baseline")
        for order in orders if self.weights < LARGE else orders[:1]:
            for row in order:
                turns[row].append(self.baseline(["--resident", 1] if row == "100 %" else ()))
        return {row: min(of, key=lambda turn: turn.get("ms", 0)) for row, of in turns.items()}

    def mode(self, mode):
        flags = ["--resident", 0] if mode == "full stream" else ["--memory-mode", mode]
        limit = self.scaled(paper_figures.MODES_GIB)
        before = self.disk_rate(self.path, self.disk)
        read_bps = (cgroups.disk_of(self.out), int(self.megabytes * 1e6)) if self.megabytes else None
        with cgroups.Group(read_bps=read_bps, memory=limit) as group:
            run = self.run(self.path, [*flags, "--profile", self.profile], BOOT_TOKENS + 4, group)
            use = group.memory_use()
        return {**self.figures(self.name, run, self.megabytes, before, self.disk_rate(self.path, self.disk)), "budget_bytes": limit, "group_peak_bytes": use["peak"], "killed": use["killed"]}

    # ---- Layers

    def layers(self):
        """Means over the layers, of steps after the prompt: what a layer takes to load and to compute while all of them stream."""
        path = self.out / "paper-models.trace.json"
        before = self.disk_rate(self.path, self.disk)
        run = self.run(self.path, ["--memory", self.beside, "--resident", 0, "--profile", self.profile, "--trace", path, "--overwrite"], BOOT_TOKENS + 3, self.disk)
        after = self.disk_rate(self.path, self.disk)
        means = layer_means(json.loads(path.read_text())["traceEvents"])
        path.unlink()
        count = len(means["compute"])
        layer_bytes = run["streaming"]["streamed_bytes_per_step"] * self.geometry.layer_share() / count
        return {**self.figures(self.name, run, self.megabytes, before, after), "layers": count, "layer_bytes": layer_bytes,
                "load_ms": statistics.mean(means["load"].values()), "compute_layer_ms": statistics.mean(means["compute"].values())}


def layer_means(events):
    """{"compute" or "load": {layer: ms}}: the sum over the parts of the mean time of each, without the first step."""
    spans = collections.defaultdict(list)
    first = min(event["args"]["step"] for event in events if event.get("cat") == "compute")
    for event in events:
        found = SPAN.fullmatch(event.get("name", ""))
        if found and event.get("cat") in ("compute", "load") and event["args"]["step"] > first:
            spans[event["cat"], int(found.group(2)), event["name"]].append(event["dur"] / 1e3)
    means = {"compute": collections.Counter(), "load": collections.Counter()}
    for (cat, layer, _), times in spans.items():
        means[cat][layer] += statistics.mean(times)
    return means


class Loading:
    """The rows of one model of OptMLX."""

    def __init__(self, bench, path):
        self.bench, self.path, self.weights = bench, path, bytes_of(path)
        self.tokens = 4 if bench.quick else bench.flags.tokens

    def run(self, *flags):
        return answer([self.bench.lime, "run", "--model", self.path, "--prompt", "x" * paper_figures.PROMPT_TOKENS, "--max-tokens", self.tokens, "--ignore-eos", *flags])

    def disk_rate(self):
        return json.loads(call([self.bench.binaries / "disk_bench", "--model", self.path, "--seconds", "1" if self.bench.quick else "2"]))["bytes_per_second"]

    @staticmethod
    def figures(run):
        return {"load_s": run["load"]["seconds"], "loader": run["load"]["loader"].split()[0].rstrip(":"), "ttft_ms": run["ttft_ms"],
                "prompt_per_s": 1e3 * run["prompt_tokens"] / run["ttft_ms"], "tps": 1e3 / run["ms_per_token"], "peak_rss_bytes": run["peak_rss_bytes"],
                "streams": run["streaming"]["streamed_bytes_per_step"] > 0}

    def load(self):
        """Loaders in turn, in another order each round; warm as in the paper, and once cold."""
        runs, before = collections.defaultdict(list), self.disk_rate()
        for turn in range(self.bench.flags.rounds + 1):
            cache = "warm" if turn < self.bench.flags.rounds else "cold"
            for loader in ("read", "mmap", "auto")[::1 if turn % 2 == 0 else -1]:
                touch_memory(self.weights)  # first: it takes memory from the page cache
                set_cache(self.path, cache == "warm")
                runs[f"{cache}, {loader}"].append(self.figures(self.run("--loader", loader)))
        return {"weights": self.weights, "rate_before": before, "rate_after": self.disk_rate(), "rounds": self.bench.flags.rounds,
                **{name: medians(of) for name, of in runs.items()}}

    def first(self):
        modes = {"growing": (4096, "grow"), "reserved 2048": (2048, "reserve"), "reserved 4096": (4096, "reserve")}
        runs = collections.defaultdict(list)
        for turn in range(self.bench.flags.rounds):
            for mode in list(modes)[::1 if turn % 2 == 0 else -1]:
                context, kv = modes[mode]
                runs[mode].append(self.figures(self.run("--loader", "mmap", "--context", context, "--kv", kv)))
        return {"weights": self.weights, "rounds": self.bench.flags.rounds, **{name: medians(of) for name, of in runs.items()}}


def medians(runs):
    return {key: statistics.median(run[key] for run in runs) if isinstance(runs[0][key], (int, float)) and not isinstance(runs[0][key], bool) else runs[0][key]
            for key in runs[0]}


class PaperBench:
    """Also what Streaming asks of a bench: programs, the folder, and where figures are kept."""

    def __init__(self, flags):
        self.flags, self.binaries, self.out, self.quick = flags, flags.binaries, flags.folder, flags.quick
        self.lime, self.report = flags.binaries / "lime", {}
        self.models = Models(flags.binaries, flags.folder, flags.quick)
        self.path = flags.folder / f"paper-models{'-quick' if flags.quick else ''}{f'-{flags.disk:g}' if flags.disk else ''}.json"
        self.kept = json.loads(self.path.read_text()) if self.path.exists() else {"figures": {}, "models": {}}

    def keep(self):
        self.kept.update(machine=machine(), quick=self.quick)
        self.path.write_text(json.dumps(self.kept, indent=1))

    def wanted(self, model):
        """Rows to measure, each once, in the order of the parts."""
        rows = dict.fromkeys(row for part in self.flags.parts if model in self.models_of(part) for row in PARTS[part].rows)
        kept = self.kept["figures"].get(model, {}) if self.flags.missing else {}
        return [row for row in rows if row not in kept]

    def models_of(self, part):
        return PARTS[part].models[:1] if self.quick and not self.flags.model else PARTS[part].models

    def measure(self):
        for model in dict.fromkeys(model for part in self.flags.parts for model in self.models_of(part)):
            if rows := self.wanted(model) if not self.flags.model or model in self.flags.model else []:
                self.measure_model(model, rows)

    def measure_model(self, model, rows):
        path, geometry = self.models.make(model)
        os.sync()  # what is still being written would disturb the first rows
        self.kept["models"][model] = {"bytes": bytes_of(path), "layers": geometry.layers, "of_layers": geometry_of(model).layers, "published_bytes": expected_bytes(model)}
        self.say(f"{model}: {bytes_of(path) / GIB:.2f} GiB, {geometry.layers} layers")
        figures = self.kept["figures"].setdefault(model, {})
        loading = Loading(self, path)
        with contextlib.ExitStack() as ends:
            streaming = None
            for row in rows:
                if row in ("load", "first"):
                    figures[row] = getattr(loading, row)()
                else:
                    if streaming is None:
                        streaming = ends.enter_context(contextlib.closing(PaperStreaming(self, model, path, geometry)))
                        figures["baseline"] = streaming.measure_compute()
                    figures[row] = streaming.measured(row) if row != "baseline" or "100 %" in rows else figures[row]
                self.keep()
                self.say(f"  {row}: " + ", ".join(f"{key} {figures[row][key]:.4g}" for key in ("ms", "limit_ms", "ratio", "load_ms", "compute_layer_ms") if key in figures[row]))
        if not self.flags.keep_models:
            self.models.remove(model)

    @staticmethod
    def say(text):
        print(text, file=sys.stderr, flush=True)


def print_tables(kept, parts, out):
    """Those that have figures. Returns the cells of the data file."""
    cells = []
    for name, title, rows in paper_tables.tables(kept, parts):
        heading(title)
        table(list(rows[0]), [list(row.values()) for row in rows])
        cells += [[name, number, column, value] for number, row in enumerate(rows, 1) for column, value in row.items()]
    if out:
        with open(out, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([["table", "row", "column", "value"], *cells])


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="folder of lime, make_model and disk_bench")
    parser.add_argument("folder", type=pathlib.Path, help="for models and figures, on the disk to measure")
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS) + ", or tables")
    parser.add_argument("--model", action="append", help="only this model; may be given several times")
    parser.add_argument("--disk", type=float, default=0, help="limit of the streaming parts' reads, in MB/s; 0: none")
    parser.add_argument("--missing", action="store_true", help="measure only rows without figures")
    parser.add_argument("--keep-models", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="of load and first; a figure is the median")
    parser.add_argument("--tokens", type=int, default=16, help="of load and first (the paper has 200)")
    parser.add_argument("--csv", type=pathlib.Path, help="data file of the tables, for bench/performance_page.py")
    parser.add_argument("--quick", action="store_true", help="widths divided by 8, one model for each part: checks the program")
    flags = parser.parse_intermixed_args()  # parts may follow flags
    if unknown := [part for part in flags.parts if part not in PARTS and part != "tables"]:
        parser.error(f"{unknown[0]} is no part; the parts are {', '.join(PARTS)} and tables")
    if unknown := [model for model in flags.model or [] if not any(model in part.models for part in PARTS.values())]:
        parser.error(f"{unknown[0]} is no model of a part")
    if flags.rounds < 1 or flags.tokens < 2 or flags.disk < 0:
        parser.error("--rounds is at least 1, --tokens at least 2, and --disk at least 0")
    flags.shown = [part for part in flags.parts if part != "tables"] or list(PARTS)
    flags.parts = [] if "tables" in flags.parts else flags.shown
    return flags


def main():
    flags = parse()
    flags.folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that groups are removed
    print(machine())
    bench = PaperBench(flags)
    try:
        bench.measure()
    except cgroups.Unavailable as why:
        sys.exit(f"bench/paper_models.py: {why}")
    print_tables(bench.kept, list(PARTS) if flags.csv else flags.shown, flags.csv)


if __name__ == "__main__":
    main()
