#!/usr/bin/python3
"""What reading experts on demand gains, at half memory: time of a token beside the limit of the disk, hits beside their replay and their prediction.

    bench/experts.py BIN_DIR OUT_DIR [--layers N] [--rounds N] [--tokens N] [--recorded-tokens N] [--disk MB/s] [--read-ahead N] [--llama PACKAGES] [--out FILE]

The model has the width of Qwen3-30B-A3B and N of its 48 layers; its vocabulary is divided by the same factor, so that the head keeps its share of a token. Its
routes are planted (testbed/make_model/planted_routes.h), and text is sampled at temperature 1. Each run has a hard memory limit, and a budget, of half of the
file. The variants take turns; a figure is the median of the rounds.

  on demand    experts on demand; the plan knows the routes of another text
  own routes   the same text, planned with its own routes: its expectation is the replay of these
  read ahead   on demand with --read-ahead N, if asked for
  in memory    everything in memory, without a limit of half: the computation of a token, by the fastest round, as others slow it at times
  all stream   --experts 0: a fixed set of blocks stays, all others are read for every token
  llama.cpp    llama.cpp follows the beginning of the same text, if PACKAGES is given: the folder in which npm installed node-llama-cpp (bench/README.md). It maps a
               GGUF file of the model, which stays in OUT_DIR, too. No page of it is cached before a run. The first half of the tokens is not counted: meanwhile
               the page cache fills with the experts that they choose. Its memory limit is 64 MiB larger, as node is in the group, too. A second variant has
               memory for the whole file: the computation of a token of llama.cpp.

The limit of a token is the computation that overlaps no read, plus the larger of its bytes / disk rate and the other computation. No read covers attention,
routers and the head, since experts are known only when the router has run, nor the last expert of each layer that reads one. All computation is that of the
variant in memory, and is divided by the bytes that each part takes from memory. The disk's rate is the mean of disk_bench before and after each run. A disk
limited with --disk may read later what it did not read while computation ran, so its limit is the larger of all computation and bytes / rate.
Control groups need root. The model stays in OUT_DIR for the next run.
"""
import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys

import cgroups
import gguf
import llama
import planted_a3b
from planted_a3b import EXPERT_BYTES, EXPERTS, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, OTHER_TEXT, PER_TOKEN, TEXT, VOCAB
from report import heading, mib, table, verdict
from streaming_paper import bytes_of

MIB = 1 << 20
IN_MEMORY, ALL_STREAM, LLAMA, LLAMA_IN_MEMORY = "in memory", "all stream", "llama.cpp", "llama.cpp, in memory"
RATIO_GOAL, HITS_GOAL, LLAMA_GOAL = 1.1, 0.03, 3
NODE_BYTES = 64 << 20


class ExpertsBench:
    def __init__(self, flags):
        self.flags, self.binaries, self.folder = flags, flags.binaries, flags.folder
        self.lime, self.tokens = flags.binaries / "lime", flags.tokens
        self.model = planted_a3b.make(self.binaries, self.folder, flags.layers)
        self.memory = bytes_of(self.model) // 2 // MIB * MIB
        self.whole = bytes_of(self.model) // MIB * MIB + (1 << 30)
        self.llama = llama.Llama(flags.llama, self.binaries, self.model) if flags.llama else None
        self.disk = (cgroups.disk_of(self.folder), int(flags.disk * 1e6)) if flags.disk else None

    # ---- Runs

    def start(self, command, memory):
        """What a command prints under the limits, its messages, and the group's peak of memory."""
        with cgroups.Group(read_bps=self.disk, memory=memory) as group:
            process = group.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            out, err = process.communicate()
            use = group.memory_use()
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(str(word) for word in command)} ended with {process.returncode}, killed for memory: {use['killed']}\n{err}")
        return out, err, use["peak"]

    def sample(self, flags=(), command="run", seed=TEXT, tokens=None, memory=None):
        memory = memory or self.memory
        out, _, peak = self.start([self.lime, command, "--model", self.model, "--memory", memory, "--prompt", llama.PROMPT, "--max-tokens", tokens or self.tokens,
                                   "--temperature", 1, "--seed", seed, "--ignore-eos", "--profile", self.profile(), "--json", *flags], memory)
        return {**json.loads(out), "group_peak_bytes": peak}

    def disk_rate(self):
        out, _, _ = self.start([self.binaries / "disk_bench", "--model", self.model, "--seconds", 2], 0)
        return json.loads(out)["bytes_per_second"]

    @functools.cache
    def profile(self):
        path = self.folder / "experts.profile.json"
        path.unlink(missing_ok=True)
        self.start([self.lime, "profile", "--model", self.model, "--out", path, "--seconds", 3, "--json"], 0)
        return path

    @functools.cache
    def text(self, seed):
        """A sampled text: the file of its routes, and its ids."""
        path = self.folder / f"experts-{seed}.routes"
        tokens = self.tokens if seed == TEXT else self.flags.recorded_tokens
        answer = self.sample(["--routes", path, "--trace", self.folder / "experts.trace.json", "--overwrite"], "trace", seed, tokens)
        return path, answer["token_ids"]

    # ---- The limit

    def fixed_share(self, experts_read):
        """Of a token's computation, by the bytes that it takes from memory: what overlaps no read, if a token reads so many experts."""
        layers = self.flags.layers
        attention = 2 * HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS)
        fixed = layers * (attention + 2 * HIDDEN * EXPERTS) + 2 * HIDDEN * (VOCAB * layers // LAYERS)
        experts = layers * PER_TOKEN * EXPERT_BYTES
        last = min(layers, experts_read) * EXPERT_BYTES
        return (fixed + last) / (fixed + experts)

    def limit_ms(self, run, compute_ms):
        fixed = 0 if self.disk else self.fixed_share(run["read_bytes"] / EXPERT_BYTES) * compute_ms
        return fixed + max(1e3 * run["read_bytes"] / run["disk_rate"], compute_ms - fixed)

    def add_limits(self, rounds):
        """To the rounds that read. Returns the computation of a token, in ms."""
        compute_ms = min(run["ms"] for run in rounds[IN_MEMORY])
        for name, runs in rounds.items():
            for run in runs if name not in (IN_MEMORY, LLAMA, LLAMA_IN_MEMORY) else []:
                run["limit_ms"] = self.limit_ms(run, compute_ms)
                run["ratio"] = run["ms"] / run["limit_ms"]
        return compute_ms

    # ---- Variants

    def variants(self):
        flags = {"on demand": ["--routes", self.text(OTHER_TEXT)[0]], "own routes": ["--routes", self.text(TEXT)[0]]}
        if self.flags.read_ahead:
            flags["read ahead"] = [*flags["on demand"], "--read-ahead", self.flags.read_ahead]
        return {**flags, IN_MEMORY: [], ALL_STREAM: ["--experts", 0]}

    def run(self, name, flags):
        before = self.disk_rate()
        run = self.sample(flags, tokens=self.flags.few_tokens if name == ALL_STREAM else None, memory=self.whole if name == IN_MEMORY else None)
        rate = (before + self.disk_rate()) / 2
        read, experts, streaming = run["disk_bytes_per_token"], run["streaming"].get("experts", {}), run["streaming"]
        busy_s = streaming.get("disk_busy_ms", 0) / 1e3
        return {"ms": run["ms_per_token"], "predicted_ms": run["predicted_ms_per_token"], "read_bytes": read, "disk_rate": rate,
                "busy_rate": streaming["bytes_read"] / busy_s if busy_s else 0, "kept": experts.get("kept"), "expected_hits": experts.get("expected_hit_share"), "hits": experts.get("measured_hit_share"),
                "read_ahead": experts.get("read_ahead"), "read_ahead_used": experts.get("read_ahead_used"), "suggested": experts.get("suggested"),
                "cause": run["prediction"]["cause"], "group_peak_bytes": run["group_peak_bytes"], "text": run["token_ids"][:self.flags.few_tokens]}

    def run_llama(self, memory):
        text = self.text(TEXT)[1][:self.flags.llama_tokens]
        out, _, peak = self.start(self.llama.command(text, len(text) // 2), memory + NODE_BYTES)
        answer = json.loads(out)
        return {"ms": answer["ms_per_token"], "group_peak_bytes": peak, "release": answer["release"],
                "logprobs_apart": statistics.median(self.llama.apart(text, answer["logprobs"]))}

    def measure(self):
        variants = self.variants()
        memory_of_llama = {LLAMA: self.memory, LLAMA_IN_MEMORY: self.whole} if self.llama else {}
        rounds = {name: [] for name in [*variants, *memory_of_llama]}
        for turn in range(self.flags.rounds):
            order = list(rounds)
            for name in order if turn % 2 == 0 else reversed(order):
                rounds[name].append(self.run(name, variants[name]) if name in variants else self.run_llama(memory_of_llama[name]))
                print(f"  {name}: {rounds[name][-1]['ms']:.1f} ms", file=sys.stderr, flush=True)
        return rounds


def check_text(rounds):
    """What is in memory changes no token."""
    texts = {tuple(run["text"]) for runs in rounds.values() for run in runs if "text" in run}
    if len(texts) > 1:
        raise RuntimeError("the variants of LIME sampled different texts, so their times cannot be compared")


def medians(rounds):
    """Of each variant, the round with the median time; the lower one of two."""
    return {name: sorted(runs, key=lambda run: run["ms"])[(len(runs) - 1) // 2] for name, runs in rounds.items()}


def percent(share):
    return "" if share is None else f"{100 * share:.1f} %"


def time_row(name, run, rounds):
    spread = f"{min(r['ms'] for r in rounds):.1f} to {max(r['ms'] for r in rounds):.1f}"
    row = [name, f"{run['ms']:.1f}", spread, f"{1e3 / run['ms']:.2f}", mib(run["group_peak_bytes"] or 0)]
    if "ratio" not in run:
        return row + [""] * 7
    return row + [mib(run["read_bytes"]), f"{run['disk_rate'] / 1e6:.0f}", f"{run['busy_rate'] / 1e6:.0f}", f"{run['limit_ms']:.1f}", f"{run['ratio']:.3f}",
                  "" if name == ALL_STREAM else verdict(run["ratio"], RATIO_GOAL, at_least=False), f"{run['predicted_ms']:.1f} ({run['cause']})"]


def print_times(bench, rounds, of):
    flags = bench.flags
    heading(f"Experts on demand at half memory: {flags.layers} of {LAYERS} layers of Qwen3-30B-A3B, {bytes_of(bench.model) / 1e9:.2f} GB in bf16, limit {mib(bench.memory)}, "
            f"disk {f'limited to {flags.disk:g} MB/s' if flags.disk else 'not limited'}")
    table(["", "ms/token", "of the rounds", "tokens/s", "group's peak", "read a token", "disk MB/s", "while busy", "limit ms", "ratio", "goal", "predicted ms"],
          [time_row(name, run, rounds[name]) for name, run in of.items()])


def print_hits(of):
    heading("Hits of experts in decode steps")
    own, demand = of["own routes"], of["on demand"]
    apart = abs(own["hits"] - own["expected_hits"])
    table(["kept", "measured", "replayed", "apart", "goal", "measured, planned with another text", "predicted", "apart"],
          [[f"{own['kept']} of {EXPERTS}", percent(own["hits"]), percent(own["expected_hits"]), percent(apart), verdict(apart, HITS_GOAL, at_least=False),
            percent(demand["hits"]), percent(demand["expected_hits"]), percent(abs(demand["hits"] - demand["expected_hits"]))]])
    if "read ahead" in of:
        ahead = of["read ahead"]
        print(f"  read ahead: {ahead['suggested']} guessed experts were not in memory, {ahead['read_ahead']} of them were read, {ahead['read_ahead_used']} of these were used")


def print_gains(of):
    demand = of["on demand"]["ms"]
    print(f"  {of[ALL_STREAM]['ms'] / demand:.2f} times as fast as a fixed resident set")
    if LLAMA in of:
        faster = of[LLAMA]["ms"] / demand
        print(f"  {faster:.2f} times as fast as the mmap of llama.cpp {of[LLAMA]['release']}: {verdict(faster, LLAMA_GOAL)}; "
              f"log-probabilities of the text are {of[LLAMA]['logprobs_apart']:.2g} apart in the median")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="folder of lime, make_model and disk_bench")
    parser.add_argument("folder", type=pathlib.Path, help="for the model, on the disk to measure")
    parser.add_argument("--layers", type=int, default=6, help="of 48; 6: 7.6 GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--recorded-tokens", type=int, default=512, help="of the other text, whose routes the plan knows")
    parser.add_argument("--few-tokens", type=int, default=8, help="of the slow variants")
    parser.add_argument("--disk", type=float, default=0, help="limit of reads, in MB/s; 0: none")
    parser.add_argument("--read-ahead", type=int, default=0)
    parser.add_argument("--llama", type=pathlib.Path, help="folder in which npm installed node-llama-cpp (bench/README.md)")
    parser.add_argument("--llama-tokens", type=int, default=64, help="of llama.cpp; the first half is not counted")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file with all rounds")
    flags = parser.parse_args()
    if not 1 <= flags.layers <= LAYERS or flags.rounds < 1 or min(flags.few_tokens, flags.tokens, flags.recorded_tokens) < 2:
        parser.error(f"--layers is 1 to {LAYERS}, --rounds at least 1, and numbers of tokens at least 2")
    if flags.llama and min(flags.tokens, flags.llama_tokens) < llama.FEWEST_TOKENS:
        parser.error(f"with --llama, --tokens and --llama-tokens are at least {llama.FEWEST_TOKENS}")
    return flags


def main():
    flags = parse()
    flags.folder.mkdir(parents=True, exist_ok=True)
    try:
        bench = ExpertsBench(flags)
        rounds = bench.measure()
        check_text(rounds)
        compute_ms = bench.add_limits(rounds)
    except (cgroups.Unavailable, gguf.Unsupported, RuntimeError) as why:
        sys.exit(f"bench/experts.py: {why}")
    of = medians(rounds)
    print_times(bench, rounds, of)
    print_hits(of)
    print_gains(of)
    if flags.out:
        flags.out.write_text(json.dumps({"layers": flags.layers, "of_layers": LAYERS, "model_bytes": bytes_of(bench.model), "memory_bytes": bench.memory,
                                         "disk_limit_mb": flags.disk, "compute_ms": compute_ms, "rounds": rounds, "medians": of}, indent=1))


if __name__ == "__main__":
    main()
