"""One device beyond its memory: streaming beside the disk's limit, predictions, memory under a hard limit, a neighbour, the paper's tables.

Parts: disk-100, disk-200, disk-500, disk-none, resident, memory, neighbour, paper: each takes minutes, keeps its figures and prints its table, so that they
can be measured one by one when a machine is quiet. docs/results/streaming.md tells what the rows mean.
"""
import contextlib
import functools
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import cgroups
import streaming_paper
from report import call, heading, mib, table
from streaming_paper import BOOT_TOKENS, GIB, bytes_of

PROMPT = "Once upon a time"
PART_GOALS = {"throttled": 1.05, "unthrottled": 1.10}  # of the limit
ERROR_GOAL = 0.10  # of a prediction
RESIDENT_GOAL = 0.01  # slower than the pure resident path
REDUCTION_GOAL, REDUCTION_BYTES = 0.80, 2e9  # of peak memory at 0 % resident, runtime included, for models from this size
NEIGHBOUR_GOAL, RECOVERY_GOAL_S = 0.90, 10  # of full streaming's throughput; after the neighbour's end
MOVED = {"throttled": 0.03, "unthrottled": 0.10}  # of the disk's rate, from before to after: more is measured again
TAKEN = 0.25  # of the cores, by others: a row that misses beside that is measured again
REPEATS = 2
BESIDE_WEIGHTS = 320 * 2**20  # of a row's budget: runtime, activations, KV, ring, margin
PAGE = os.sysconf("SC_PAGE_SIZE")
QUIET_S = 60  # how long a repeat waits at most for others to leave the cores


def met(held):
    return "met" if held else "MISSED"


class CpuWatch:
    """The share of all cores that others took while something ran."""

    def __init__(self):
        self.begin = self.now()

    @staticmethod
    def now():
        ticks = [int(field) for field in open("/proc/stat").readline().split()[1:9]]
        own = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        idle = ticks[3] + ticks[4]
        return sum(ticks) / os.sysconf("SC_CLK_TCK"), (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), own

    def others(self):
        whole, busy, own = (after - before for before, after in zip(self.begin, self.now()))
        return max(0.0, busy - own) / whole if whole > 0 else 0.0


class Streaming:
    def __init__(self, bench, models=None):
        self.bench, self.quick, self.lime, self.out = bench, bench.quick, bench.lime, bench.out
        self.report = bench.report.setdefault("streaming", {})
        self.shares = (0, 50) if self.quick else (0, 25, 50, 75, 90)  # percent resident
        self.models = models or {"bf16": bench.bf16(), "4-bit": bench.packed(4)}
        self.compute = {}
        self.repeats = 0 if self.quick else REPEATS
        self.counted_s = 2 if self.quick else 5  # of the tokens that count, about

    # ---- Running

    def run(self, model, flags=(), tokens=8, group=None, prompt=PROMPT, lime=None):
        command = [lime or self.lime, "run", "--model", model, "--prompt", prompt, "--max-tokens", tokens, "--ignore-eos", "--json", "--token-times", *flags]
        if group is None:
            return json.loads(call(command))
        process = group.start(command, stdout=subprocess.PIPE, text=True)
        out, _ = process.communicate()
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, command, out)
        return json.loads(out)

    @staticmethod
    def intervals(run):
        """Milliseconds between the tokens that count."""
        times = run["token_times_s"][BOOT_TOKENS - 1:]
        return [1e3 * (after - before) for before, after in zip(times, times[1:])]

    def disk_rate(self, model, group=None):
        """Bytes per second, 1 MiB reads, 16 in flight: as streaming reads."""
        command = [self.bench.binaries / "disk_bench", "--model", model, "--seconds", "1" if self.quick else "2"]
        if group is None:
            return json.loads(call(command))["bytes_per_second"]
        out, _ = group.start(command, stdout=subprocess.PIPE, text=True).communicate()
        return json.loads(out)["bytes_per_second"]

    def disk_rate_beside(self, model):
        """The same while another process decodes this model from memory: what computing leaves of the disk where both share a memory bus."""
        command = [str(a) for a in (self.lime, "run", "--model", model, "--loader", "read", "--prompt", PROMPT, "--max-tokens", 4000, "--ignore-eos")]
        computing = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            computing.stdout.read(len(PROMPT) + 1)  # loaded, and at work
            return self.disk_rate(model)
        finally:
            computing.terminate()
            computing.stdout.close()
            computing.wait()

    def compute_ms(self, name):
        """One token, all resident: the other limit, so the best median seen. Measured again with every disk limit: others slow it at times."""
        median = statistics.median(self.intervals(self.run(self.models[name], ["--loader", "read"], 12)))
        self.compute[name] = min(median, self.compute.get(name, median))

    def limited(self, megabytes, memory=None):
        """None where nothing is limited, or where memory cannot be."""
        read_bps = (cgroups.disk_of(self.out), int(megabytes * 1e6)) if megabytes else None
        try:
            return cgroups.Group(read_bps=read_bps, memory=memory) if read_bps or memory else None
        except cgroups.Unavailable:
            if read_bps:
                raise
            return None

    def frozen_profile(self, megabytes, group):
        """Everything that predictions of this limit know, measured before the runs."""
        path = self.out / f"streaming-{megabytes or 'none'}{'-quick' if self.quick else ''}.profile.json"
        path.unlink(missing_ok=True)
        for model in self.models.values():
            known = ["--profile", path] if path.exists() else []
            command = [self.lime, "profile", "--model", model, "--out", path, "--seconds", "1" if self.quick else "3", "--json", *known]
            start = group.start if group else subprocess.Popen
            code = start([str(a) for a in command], stdout=subprocess.DEVNULL).wait()
            if code != 0:
                raise subprocess.CalledProcessError(code, command)
        return path

    # ---- Streaming beside the limit

    @staticmethod
    def shared_limit_ms(row, beside):
        """The limit where the disk gives `beside` for as long as a token computes, and its own rate for the rest of it."""
        rate, compute_s = (row["rate_before"] + row["rate_after"]) / 2, row["compute_ms"] / 1e3
        return 1e3 * (compute_s + max(0, row["streamed_bytes"] - min(beside, rate) * compute_s) / rate)

    def at_share(self, name, share, megabytes, group, profile, before):
        weights = bytes_of(self.models[name])
        budget = int(weights * share / 100) + BESIDE_WEIGHTS
        return {"share": share, **self.attempt(name, budget, ["--resident", share / 100], weights * (1 - share / 100), megabytes, group, profile, before)}

    def attempt(self, name, budget, flags, streams, megabytes, group, profile, before):
        """A run with this budget, which streams about so many bytes for each token."""
        model, budget = self.models[name], budget // PAGE * PAGE  # groups round down
        expected_s = max(self.compute[name] / 1e3, streams / before)
        counted = max(1, min(24, round(self.counted_s / expected_s)))
        watch = CpuWatch()
        with contextlib.ExitStack() as ends:
            hard = self.limited(megabytes, budget)  # exactly the budget
            if hard:
                ends.enter_context(hard)
            run = self.run(model, ["--memory", budget, *flags, "--profile", profile], counted + BOOT_TOKENS, hard)
            group_peak = hard.memory_use()["peak"] if hard else None
        others = watch.others()
        figures = self.figures(name, run, megabytes, before, self.disk_rate(model, group))
        return {**figures, "tokens": counted, "others": others, "budget_bytes": budget, "group_peak_bytes": group_peak}

    def figures(self, name, run, megabytes, before, after):
        """Of a run beside its limit. `before` and `after`: the disk's rates."""
        streaming, ms = run["streaming"], statistics.mean(self.intervals(run))
        streamed = streaming["streamed_bytes_per_step"]
        limit_ms = max(self.compute[name], 1e3 * streamed / ((before + after) / 2))
        return {"model": name, "limit_mb": megabytes, "streamed_bytes": streamed, "compute_ms": self.compute[name],
                "rate_before": before, "rate_after": after, "moved": abs(after / before - 1), "limit_ms": limit_ms, "ms": ms, "ratio": ms / limit_ms,
                "goal": PART_GOALS["throttled" if megabytes else "unthrottled"], "predicted_ms": run["predicted_ms_per_token"],
                "error": run["predicted_ms_per_token"] / ms - 1, "cause": run["prediction"]["cause"],
                "waiting": streaming.get("waited_ms", 0) / (run["ttft_ms"] + run["ms_per_token"] * (run["completion_tokens"] - 1)),
                "disk_while_busy": streaming.get("bytes_read", 0) / max(1e-9, streaming.get("disk_busy_ms", 0) / 1e3),
                "resident_blocks": streaming["resident_blocks"], "blocks": streaming["blocks"],
                "peak_rss_bytes": run["peak_rss_bytes"], "ring_bytes": run["memory"]["ring_bytes"]}

    @staticmethod
    def missed(row):
        return row["ratio"] > row["goal"] or (row["limit_mb"] and abs(row["error"]) > ERROR_GOAL)

    @staticmethod
    def await_quiet():
        for _ in range(QUIET_S):
            watch = CpuWatch()
            time.sleep(1)
            if watch.others() < TAKEN / 2:
                return

    def row(self, attempt, megabytes, rate):
        """`attempt` takes the disk's rate before it. Again where the limit moved, or where others took the cores from a row that missed. Keeps the attempt that both disturbed least."""
        attempts, moved = [], MOVED["throttled" if megabytes else "unthrottled"]
        while True:
            attempts.append(attempt(rate))
            rate = attempts[-1]["rate_after"]
            disturbed = attempts[-1]["moved"] > moved or (attempts[-1]["others"] > TAKEN and self.missed(attempts[-1]))
            if not disturbed or len(attempts) > self.repeats:
                break
            self.await_quiet()
        best = min(attempts, key=lambda a: (a["moved"] > moved, a["others"] if a["moved"] <= moved else a["moved"]))
        return {**best, "repeats": len(attempts) - 1}, rate

    def disk(self, megabytes):
        heading(f"Streaming beside its limit, the larger of computation and streamed bytes / disk rate: disk limited to {megabytes} MB/s" if megabytes else
                "Streaming beside its limit, the larger of computation and streamed bytes / disk rate: disk not limited")
        try:
            group = self.limited(megabytes)
        except cgroups.Unavailable as why:
            print(f"  skipped: {why}")
            return
        others = [row for row in self.report.get("disk") or self.bench.kept.get("streaming", {}).get("disk", []) if row["limit_mb"] != megabytes]
        self.report["disk"] = rows = others
        try:
            self.disk_under(megabytes, group, rows)
        finally:
            rows.sort(key=lambda row: (row["limit_mb"] or float("inf"), row["model"] != "bf16", row["share"]))
            if group:
                group.close()

    def disk_under(self, megabytes, group, rows):
        profile = self.frozen_profile(megabytes, group)
        added = []
        print("  (profiled)", file=sys.stderr, flush=True)
        for name in self.models:
            self.compute_ms(name)
            rate = self.disk_rate(self.models[name], group)
            for share in self.shares:
                row, rate = self.row(functools.partial(self.at_share, name, share, megabytes, group, profile), megabytes, rate)
                if not megabytes:
                    row["rate_beside"] = self.disk_rate_beside(self.models[name])
                    row["shared_ratio"] = row["ms"] / self.shared_limit_ms(row, row["rate_beside"])
                added.append(row)
                rows.append(row)
                self.bench.keep()
                print(f"  {name}, {share} % resident: {row['ms']:.0f} ms, {row['ratio']:.3f} of the limit", file=sys.stderr, flush=True)
        table(["limit", "weights", "resident", "ms/token", "limit ms", "ratio", "goal", "", "predicted", "error", "", "disk before, after MB/s", "budget = hard limit", "peak RSS", "group's peak", "", "others", "again"],
              [[f"{megabytes} MB/s" if megabytes else "none", r["model"], f"{r['share']} %", f"{r['ms']:.0f}", f"{r['limit_ms']:.0f}", f"{r['ratio']:.3f}",
                f"<= {r['goal']:.2f}", met(r["ratio"] <= r["goal"]), f"{r['predicted_ms']:.0f}", f"{100 * r['error']:+.1f} %",
                met(abs(r["error"]) <= ERROR_GOAL) if megabytes else r["cause"], f"{r['rate_before'] / 1e6:.1f}, {r['rate_after'] / 1e6:.1f}",
                mib(r["budget_bytes"]), mib(r["peak_rss_bytes"]), mib(r["group_peak_bytes"]) if r["group_peak_bytes"] else "?",
                met(max(r["peak_rss_bytes"], r["group_peak_bytes"] or 0) <= r["budget_bytes"]), f"{100 * r['others']:.0f} %", r["repeats"]] for r in added])
        if not megabytes:
            table(["weights", "resident", "disk beside computing MB/s", "of what it leaves"],
                  [[r["model"], f"{r['share']} %", f"{r['rate_beside'] / 1e6:.0f}", f"{r['shared_ratio']:.3f}"] for r in added])

    # ---- All resident

    def resident(self):
        heading("All resident: planned as if to stream, against the pure resident path (paper: 36 and 68 % slower)")
        baseline = os.environ.get("LIME_BASELINE")  # a program from before streaming, if there is one
        paths = {"resident": (["--loader", "read"], None), "100 % of streaming": (["--loader", "read", "--resident", "1"], None)}
        if baseline:
            paths["before streaming"] = (["--loader", "read"], baseline)
        rows = []
        self.report["resident"] = {}
        for name, model in self.models.items():
            times = {path: [] for path in paths}
            for turn in range(2 if self.quick else 16):
                order = list(paths.items())
                for path, (flags, lime) in order if turn % 2 == 0 else reversed(order):
                    times[path].append(self.token_ms(model, flags, lime))
            reference = "before streaming" if baseline else "resident"
            median = {path: statistics.median(t) for path, t in times.items()}
            slower = median["100 % of streaming"] / median[reference] - 1
            self.report["resident"][name] = {"ms": times, "reference": reference, "slower": slower}
            rows.append([name, *[f"{ms:.2f} ({min(times[path]):.2f}) ms" for path, ms in median.items()], f"{100 * slower:+.1f} %", f"<= {100 * RESIDENT_GOAL:.0f} %",
                         met(slower <= RESIDENT_GOAL)])
        table(["weights", *[f"{path}: median of the turns (fastest)" for path in paths], "slower", "goal", ""], rows)

    def token_ms(self, model, flags, lime):
        """The quarter of tokens that others disturbed least tells two paths apart on a shared machine."""
        if lime is None:
            return statistics.quantiles(self.intervals(self.run(model, flags, 34)), n=4)[0]
        run = json.loads(call([lime, "run", "--model", model, "--prompt", PROMPT, "--max-tokens", 34, "--ignore-eos", "--json", *flags]))
        return run["ms_per_token"]

    # ---- Memory

    def memory(self):
        heading("Peak memory: nothing resident (paper, Table 3: 60 to 88 % less), and a hard limit of exactly the budget")
        self.report["memory"] = {"reduction": [], "budget": []}
        for name, model in self.models.items():
            self.report["memory"]["reduction"].append(self.reduction(name, model))
        table(["weights", "size", "normal", "nothing resident", "less", "goal", "", "less, without the runtime", "runtime"],
              [[r["model"], mib(r["weights"]), mib(r["normal"]), mib(r["streaming"]), f"{100 * r['reduction']:.0f} %",
                f">= {100 * REDUCTION_GOAL:.0f} %" if r["weights"] >= REDUCTION_BYTES else "(under 2 GB)",
                met(r["reduction"] >= REDUCTION_GOAL) if r["weights"] >= REDUCTION_BYTES else "", f"{100 * r['reduction_bare']:.0f} %", mib(r["runtime"])]
               for r in self.report["memory"]["reduction"]])
        budgets = {"bf16": (320, 1024, 2048), "4-bit": (320, 512)} if not self.quick else {"bf16": (320,), "4-bit": (256,)}
        try:
            for name, sizes in budgets.items():
                for size in sizes:
                    self.report["memory"]["budget"].append(self.under_budget(name, self.models[name], size * 2**20))
            if not self.quick:
                self.report["memory"]["budget"].append(self.under_budget("bf16, 3 B", self.bench.larger(), 2048 * 2**20))
        except cgroups.Unavailable as why:
            print(f"  hard limits skipped: {why}")
        table(["weights", "size", "budget = hard limit", "prompt", "peak RSS", "cgroup's peak", "killed", "goal", "", "prompt s", "ms/token"],
              [[r["model"], mib(r["weights"]), mib(r["budget"]), f"{r['prompt_tokens']} tokens", mib(r["peak_rss_bytes"]), mib(r["cgroup_peak"]) if r["cgroup_peak"] else "?",
                r["killed"], "<= budget", met(r["held"]), f"{r['ttft_ms'] / 1e3:.1f}", f"{r['ms']:.0f}"] for r in self.report["memory"]["budget"]])

    def reduction(self, name, model):
        normal, streaming = self.run(model, ["--loader", "read"], 4), self.run(model, ["--resident", "0"], 4)
        runtime = min(r["memory"]["runtime_bytes"] for r in (normal, streaming))
        peaks = [r["peak_rss_bytes"] for r in (normal, streaming)]
        return {"model": name, "weights": bytes_of(model), "normal": peaks[0], "streaming": peaks[1],
                "runtime": runtime, "reduction": 1 - peaks[1] / peaks[0], "reduction_bare": 1 - (peaks[1] - runtime) / (peaks[0] - runtime)}

    def under_budget(self, name, model, budget):
        with cgroups.Group(memory=budget) as group:
            try:
                run = self.run(model, ["--memory", budget], 4, group, prompt="x" * (256 if self.quick else 2000))
            except subprocess.CalledProcessError as failed:
                run = {"prompt_tokens": 0, "peak_rss_bytes": 0, "ttft_ms": 0, "ms_per_token": 0, "failed": failed.returncode}
            use = group.memory_use()
        held = "failed" not in run and use["killed"] == 0 and run["peak_rss_bytes"] <= budget and (use["peak"] or 0) <= budget
        return {"model": name, "weights": bytes_of(model), "budget": budget, "prompt_tokens": run["prompt_tokens"], "peak_rss_bytes": run["peak_rss_bytes"], "cgroup_peak": use["peak"],
                "limit_hits": use["limit_hits"], "killed": use["killed"], "held": held, "ttft_ms": run["ttft_ms"], "ms": run["ms_per_token"]}

    # ---- The neighbour

    def neighbour(self):
        heading("A neighbour in the same memory grabs it in mid-generation and ends (paper: 14 times slower than full streaming)")
        model = self.models["bf16"]
        weights = bytes_of(model)
        limit, grab = int(weights + 0.6 * GIB), int(0.6 * weights + 0.4 * GIB)
        try:
            with cgroups.Group(memory=limit) as group:
                result = self.report["neighbour"] = self.beside_neighbour(model, group, grab)
        except cgroups.Unavailable as why:
            print(f"  skipped: {why}")
            return
        result.update(limit_bytes=limit, grab_bytes=grab)
        table(["figure", "value", "goal", ""],
              [["alone, tokens/s", f"{result['alone_tps']:.2f}", "", ""],
               ["full streaming before, after, tokens/s", f"{result['full_tps_before']:.3f}, {result['full_tps_after']:.3f}", "", ""],
               ["least beside the neighbour, tokens/s", f"{result['least_tps']:.3f}", f">= {NEIGHBOUR_GOAL} of full streaming", met(result["least_ratio"] >= NEIGHBOUR_GOAL)],
               ["least / full streaming", f"{result['least_ratio']:.2f}", "", ""],
               ["recovered after", f"{result['recovery_s']:.1f} s", f"<= {RECOVERY_GOAL_S} s", met(result["recovery_s"] <= RECOVERY_GOAL_S)],
               ["tokens and logits", "same" if result["same"] else "DIFFERENT", "same", met(result["same"])],
               ["killed, weights given back at the end", f"{result['killed']}, {result['given_bytes']}", "0 killed", met(result["killed"] == 0)]])

    def full_streaming_tps(self, model, group):
        return 1e3 / statistics.mean(self.intervals(self.run(model, ["--resident", "0"], BOOT_TOKENS + (1 if self.quick else 3), group)))

    def beside_neighbour(self, model, group, grab):
        hold, wait = (2, 4) if self.quick else (10, RECOVERY_GOAL_S + 2)
        alone = self.run(model, ["--loader", "read", "--hash-logits"], 24, group)
        alone_ms = statistics.median(self.intervals(alone))
        before = self.full_streaming_tps(model, group)
        # Tokens for the time before, beside and after: those beside it come slowly.
        tokens = int((4 + wait + hold) * 1e3 / alone_ms)
        reference = self.run(model, ["--loader", "read", "--hash-logits"], tokens, group)
        run, began, ended = self.with_hog(model, group, tokens, grab, hold)
        after = self.full_streaming_tps(model, group)
        times = run["token_times_s"]
        pace = [(b, 1 / (b - a)) for a, b in zip(times, times[1:])]
        least = min(rate for when, rate in pace if when >= began)
        full = max(before, after)  # what the disk gives moves by itself: the harder one
        return {"alone_tps": 1e3 / alone_ms, "full_tps_before": before, "full_tps_after": after, "least_tps": least, "least_ratio": least / full,
                "recovery_s": self.recovery(pace, began, ended), "same": run["token_ids"] == reference["token_ids"] and run["logits_xxh3"] == reference["logits_xxh3"],
                "killed": group.memory_use()["killed"], "given_bytes": run["streaming"].get("given_bytes", 0),
                "began_s": began - times[0], "ended_s": ended - times[0], "pace": [(when - times[0], rate) for when, rate in pace]}

    @staticmethod
    def recovery(pace, began, ended):
        """Seconds from the neighbour's end to the first of five tokens whose median is within a fifth of the pace before it came."""
        usual = statistics.median(rate for when, rate in pace if when < began)
        later = [(when, rate) for when, rate in pace if when > ended]
        for i in range(len(later) - 4):
            if statistics.median(rate for _, rate in later[i:i + 5]) >= usual / 1.2:
                return later[i][0] - ended
        return float("inf")

    def with_hog(self, model, group, tokens, grab, hold):
        command = [self.lime, "run", "--model", model, "--prompt", PROMPT, "--max-tokens", tokens, "--ignore-eos", "--json", "--token-times", "--loader", "read", "--hash-logits"]
        process = group.start(command, stdout=subprocess.PIPE, text=True)
        begin = time.monotonic()
        while group.memory_now() < 0.95 * bytes_of(model) and time.monotonic() < begin + 120:
            time.sleep(0.05)
        time.sleep(4)  # some tokens alone
        began = time.monotonic()
        hog = group.start([sys.executable, pathlib.Path(__file__).parent / "hog.py", grab, hold])
        hog.wait()
        ended = time.monotonic()
        out, _ = process.communicate()
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, command, out)
        return json.loads(out), began, ended


Streaming.PARTS = {**{f"disk-{limit or 'none'}": functools.partial(Streaming.disk, megabytes=limit) for limit in (100, 200, 500, 0)},
                   "resident": Streaming.resident, "memory": Streaming.memory, "neighbour": Streaming.neighbour, "paper": streaming_paper.paper}
