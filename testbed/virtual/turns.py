"""One turn: one strategy's plan installed and run once, and everything measured while it ran."""
import json
import statistics
import subprocess
import time

from virtual import network, planning, probes

PROMPT = "A small model of a large one "  # as many characters as tokens, to a byte tokenizer


def prompts(count, tokens):
    """Different texts of `tokens` - 1 characters: the tokenizer puts a BOS before them."""
    return [(f"{index} " + PROMPT * (tokens // len(PROMPT) + 1))[:tokens - 1] for index in range(count)]


class Turn:
    """Runs `lime run --cluster` in the hub. Resident weights are loaded at the full speed of the disk; limits are set before the first token."""

    def __init__(self, cluster, plan, options):
        self.cluster, self.plan, self.options = cluster, plan, options
        self.used = [cluster.devices[i] for i in planning.used_devices(plan)]

    def run(self):
        cluster = self.cluster
        cluster.limit_reads(False)
        offsets = [device.log_size() for device in self.used]
        self.before = [network.interface_bytes(device.namespace) for device in self.used]
        process = cluster.start(self.words(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            installed = cluster.await_log(self.used, offsets, "is installed after", self.options["install_s"], lambda: process.poll() is None)
            cluster.limit_reads(True)
            limited, cpu = time.monotonic(), self.cpu()
            out, errors = process.communicate(timeout=self.options["patience_s"])
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode != 0 or not installed:
            return {"failed": errors.strip()[-800:] or f"exit code {process.returncode}"}
        return self.measured(json.loads(out), limited, cpu)

    def words(self):
        options = self.options
        words = network.inside(self.cluster.network.hub) + [
            str(self.cluster.bin / "lime"), "run", "--model", str(self.cluster.model), "--cluster", str(options["cluster_toml"]), "--plan",
            self.plan["path"], "--insecure", "--context", str(self.plan["context"]), "--max-tokens", str(options["tokens"]), "--ignore-eos",
            "--hash-logits", "--token-times", "--json"]
        # Together they are one chunk: all requests begin in one step.
        for text in prompts(self.plan["sequences"], self.plan["prompt_tokens"] // self.plan["sequences"]):
            words += ["--prompt", text]
        return words

    def cpu(self):
        return sum(device.cpu_seconds() for device in self.cluster.devices)

    def measured(self, answer, limited, cpu):
        results = answer.get("results", [answer])
        warm_up = self.options["warm_up"]
        early = sum(t <= limited for result in results for t in result["token_times_s"][:warm_up])
        late = [t for result in results for t in result["token_times_s"][warm_up:]]
        if min(late) <= limited:
            return {"failed": f"tokens came before the disks were limited; raise --warm-up above {warm_up}"}
        wall = time.monotonic() - limited
        step = step_ms([result["token_times_s"] for result in results], warm_up)
        found = {
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
        found["cgroup_peak_bytes"] = {d.spec.name: d.groups.peak() for d in self.cluster.devices}
        found["oom_kills"] = {d.spec.name: d.groups.oom_kills() for d in self.cluster.devices}
        found["paced"] = {d.spec.name: pace_sentence(d) for d in self.used}
        after = [network.interface_bytes(device.namespace) for device in self.used]
        found["interface_bytes"] = {d.spec.name: [a - b for a, b in zip(x, y)] for d, x, y in zip(self.used, after, self.before)}
        return found


def step_ms(requests, warm_up):
    """Milliseconds between two tokens of a request, while all of them run and have left the warm-up behind: the median of their means.
    `requests`: the times of each one's tokens, in seconds.
    """
    begin, end = max(times[warm_up] for times in requests), min(times[-1] for times in requests)
    inside = [[t for t in times if begin <= t <= end] for times in requests]
    means = [(times[-1] - times[0]) / (len(times) - 1) for times in inside if len(times) > 1]
    if not means:
        raise RuntimeError("the requests hardly ran at the same time; raise --tokens")
    return 1000 * statistics.median(means)


def pace_sentence(device):
    lines = [line for line in device.log_since(0).splitlines() if " paced " in line]
    return lines[-1].split(" paced ", 1)[1] if lines else ""
