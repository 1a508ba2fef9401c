"""One turn: installs a strategy's plan, runs it once, and measures meanwhile."""
import json
import statistics
import subprocess
import threading
import time

from virtual import network, planning, probes, workload

PROMPT = "A small model of a large one "  # each character is a token of a byte tokenizer


def prompts(count, tokens, stories=""):
    """Different texts of `tokens` - 1 characters; the tokenizer puts a BOS before them. With
    `stories` (ASCII), each is a part of the stories that begins at another place and continues from
    their beginning at their end.
    """
    if not stories:
        return [(f"{index} " + PROMPT * (tokens // len(PROMPT) + 1))[:tokens - 1] for index in range(count)]
    begins = [index * len(stories) // count for index in range(count)]
    return [(stories[begin:] + stories * (tokens // len(stories) + 1))[:tokens - 1] for begin in begins]


REFUSED = "the request needs"  # in the error of `lime run` if KV can never fit


class Redrawing:
    """Changes the rate of the links at given moments while something runs. A context manager.
    Thread: its own; no other thread shapes links meanwhile.
    """

    def __init__(self, shape, moments):
        """`moments`: [(time.monotonic() of the change, Mbit/s)]"""
        self.shape, self.moments, self.done, self.error = shape, moments, [], None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.redraw)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        self.thread.join()
        if self.error is not None and kind is None:
            raise self.error

    def redraw(self):
        try:
            for moment, mbit in self.moments:
                if self.over.wait(max(0.0, moment - time.monotonic())):
                    return
                self.shape(mbit)
                self.done.append((time.monotonic(), mbit))
        except (RuntimeError, OSError) as error:
            self.error = error


class Turn:
    """Runs `lime run --cluster` in the hub. Resident weights are loaded at the full speed of the
    disk; limits are set before the first token.

    `options`: cluster_toml, tokens, warm_up, install_s, patience_s. Optional, instead of the plan's
    values: prompt (tokens of each), stories (text of the prompts), run_flags; and redraws, [(token,
    Mbit/s)] of the scaled links, with planned_mbit.
    """

    def __init__(self, cluster, plan, options):
        self.cluster, self.plan = cluster, plan
        self.options = {"prompt": plan["prompt_tokens"] // plan["sequences"], "stories": "", "run_flags": [], "redraws": []} | options
        self.used = [cluster.devices[i] for i in planning.used_devices(plan)]

    def run(self):
        cluster = self.cluster
        cluster.limit_reads(False)
        offsets = [device.log_size() for device in self.used]
        self.before = [network.interface_bytes(device.namespace) for device in self.used]
        if self.options["redraws"]:
            cluster.shape_links(self.options["redraws"][0][1])
        process = cluster.start(self.words(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            installed = cluster.await_log(self.used, offsets, "is installed after", self.options["install_s"], lambda: process.poll() is None)
            cluster.limit_reads(True)
            limited, cpu = time.monotonic(), self.cpu()
            with Redrawing(cluster.shape_links, [(limited + at, mbit) for at, mbit in self.moments()]) as self.redrawing:
                out, errors = process.communicate(timeout=self.options["patience_s"])
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode != 0 or not installed:
            return self.not_measured(errors.strip()[-800:] or f"exit code {process.returncode}")
        return self.measured(json.loads(out), limited, cpu)

    def not_measured(self, why):
        """A turn that was refused because of memory, or failed."""
        return {"refused" if REFUSED in why else "failed": why, "oom_kills": {d.spec.name: d.groups.oom_kills() for d in self.cluster.devices}}

    def step_s(self, mbit):
        return planning.step_ms(self.plan, mbit / self.options["planned_mbit"]) / 1000

    def moments(self):
        """The changes of the links' rate except the first, in seconds after the limits are set."""
        drawn = self.options["redraws"]
        return workload.moments(drawn, self.plan["predicted"]["ttft_ms"] / 1000, self.step_s)[1:] if drawn else []

    def words(self):
        options = self.options
        words = network.inside(self.cluster.network.hub) + [
            str(self.cluster.bin / "lime"), "run", "--model", str(self.cluster.model), "--cluster", str(options["cluster_toml"]), "--plan",
            self.plan["path"], "--insecure", "--context", str(self.plan["context"]), "--max-tokens", ",".join(map(str, options["tokens"])), "--ignore-eos",
            "--hash-logits", "--token-times", "--json"] + list(options["run_flags"])
        # Short prompts share one chunk, so all requests begin in one step.
        for text in prompts(self.plan["sequences"], options["prompt"], options["stories"]):
            words += ["--prompt", text]
        return words

    def cpu(self):
        return sum(device.cpu_seconds() for device in self.cluster.devices)

    def measured(self, answer, limited, cpu):
        results = answer.get("results", [answer])
        warm_up = self.options["warm_up"]
        times = [result["token_times_s"] for result in results]
        early = sum(t <= limited for of in times for t in of[:warm_up])
        if min(t for of in times for t in of[warm_up:]) <= limited:
            return self.not_measured(f"tokens came before the disks were limited; raise --warm-up above {warm_up}")
        levels = answer.get("plan", {}).get("kv_levels", [])
        if not workload.all_fit(levels, self.options["prompt"], self.options["tokens"]):
            return self.not_measured(f"{REFUSED} more KV than the devices can have for all {len(times)} requests at once")
        wall = time.monotonic() - limited
        step = step_ms(times, warm_up)
        found = self.predictions(levels, times, warm_up) | {
            "ms_per_step": step,
            "ms_per_token": step / self.plan["sequences"],
            "tokens_before_limits": early,
            "intervals_ms": [round(1000 * (b - a), 1) for a, b in zip(results[0]["token_times_s"], results[0]["token_times_s"][1:])],
            "ttft_ms": results[0]["ttft_ms"],
            "token_ids": [result["token_ids"] for result in results],
            "logits_xxh3": [result["logits_xxh3"] for result in results],
            "real_compute_share": (self.cpu() - cpu) / (wall * probes.cores()),
            "install_seconds": answer["load"]["seconds"],
            "devices": answer["devices"],
        }
        found["kv_levels"] = levels
        found["cgroup_peak_bytes"] = {d.spec.name: d.groups.peak() for d in self.cluster.devices}
        found["oom_kills"] = {d.spec.name: d.groups.oom_kills() for d in self.cluster.devices}
        found["paced"] = {d.spec.name: pace_sentence(d) for d in self.used}
        after = [network.interface_bytes(device.namespace) for device in self.used]
        found["interface_bytes"] = {d.spec.name: [a - b for a, b in zip(x, y)] for d, x, y in zip(self.used, after, self.before)}
        return found

    def predictions(self, levels, times, warm_up):
        """Predictions for the measured tokens if the plan's own prediction does not apply to them,
        because KV grew or links changed.
        """
        prompt, inside = self.options["prompt"], workload.settled(times, warm_up)[1:]
        if self.options["redraws"]:
            done = [(workload.token_at(times, at), mbit) for at, mbit in self.redrawing.done]
            drawn = [self.options["redraws"][0]] + [(max(1, token), mbit) for token, mbit in done]
            steps = [1000 * self.step_s(workload.rate_at(drawn, index)) for index in inside]
            return {"predicted_ms": statistics.mean(steps) / len(times), "redrawn": drawn}
        if len(levels) < 2:
            return {}
        lead = workload.lead_of(self.plan)
        return {"predicted_ms": statistics.mean(workload.predicted_ms(levels, times, prompt, index, lead) for index in inside),
                "windows": workload.windows(levels, times, prompt, warm_up, lead=lead)}


def step_ms(requests, warm_up):
    """Milliseconds between two tokens of a request, while all requests run and have passed the
    warm-up: the median of their means. `requests`: the times of each request's tokens, in seconds.
    """
    begin, end = max(times[warm_up] for times in requests), min(times[-1] for times in requests)
    inside = [[t for t in times if begin <= t <= end] for times in requests]
    means = [(times[-1] - times[0]) / (len(times) - 1) for times in inside if len(times) > 1]
    if not means:
        raise RuntimeError("the requests did not run long enough at the same time; raise --tokens")
    return 1000 * statistics.median(means)


def pace_sentence(device):
    lines = [line for line in device.log_since(0).splitlines() if " paced " in line]
    return lines[-1].split(" paced ", 1)[1] if lines else ""
