"""Measures the cost of a pipeline besides computing: two daemons with everything resident against
one process, and bytes per token against the bytes of the hidden state. There is no pacing and no
limit except the requested ones; a bridge joins two namespaces.
"""
import json
import os
import statistics
import subprocess
from pathlib import Path

from virtual import network, planning
from virtual.scaling import MIB, Overheads, ModelShape, ScaledDevice, device_profiles

SHAPE = ModelShape(layers=8, hidden=2048, heads=32, kv_heads=8, head_dim=64, intermediate=8192, vocab=32000, rope_theta=10000.0)
CONTEXT = 128  # positions, at least
PROMPT = 8  # tokens, at most
MORE = 64  # additional tokens of the second run, to count the bytes of each token
WARM_UP = 4
OVERHEADS = Overheads(runtime=256 * MIB, activations=32 * MIB)


def devices(shape):
    """Two devices that are both too small for the model. Their disks have rate 0, so nothing
    streams.
    """
    most = int(shape.weight_bytes() * 0.7)
    return [ScaledDevice(name, most, 1e10, 1e11, 0.0, 1.0, 0.1) for name in ("a", "b")]


class Overhead:
    def __init__(self, make_cluster, model, shape, folder, mbit=None, core_each=False, compute_core=None):
        """`mbit`: the rate of both devices' links; None: as fast as the machine. `core_each`: each
        daemon, and the single process, has one core. `compute_core`: the core of the
        daemons' compute threads, which no other thread of a daemon uses, and of the single process;
        only one device computes at a time.
        """
        self.make_cluster, self.model, self.shape, self.folder = make_cluster, Path(model), shape, Path(folder)
        self.mbit, self.core_each, self.compute_core = mbit, core_each, compute_core

    def run(self, rounds, tokens):
        self.context = max(CONTEXT, PROMPT + tokens + MORE)
        with self.make_cluster(devices(self.shape), self.folder, self.model) as cluster:
            self.cluster = cluster
            cluster.core_each = self.core_each
            for device in cluster.devices if self.mbit else []:
                cluster.network.shape_device(device.index, self.mbit)
            cluster.limed_flags = ["--no-link-probes"]  # only tokens count in bytes per token
            if self.compute_core is not None:
                cluster.limed_flags += ["--compute-cores", str(self.compute_core)]
            profiles = device_profiles(cluster.specs, OVERHEADS, 10000, 0.05)
            self.toml = cluster.cluster_toml([d["memory_bytes"] for d in profiles["devices"]])
            request = {"strategy": "pp", "piece": planning.WHOLE_BLOCKS, "tokens": self.context, "sequences": 1, "prompt_tokens": PROMPT, "time_limit_ms": 1000}
            self.plan = planning.make_plan(cluster.bin / "lime", ["--model", self.model], profiles, request, self.folder)
            first, second = (cluster.devices[stage["device"]] for stage in self.plan["stages"])
            network.count_sent(first.namespace, second.address)
            alone, together, same = [], [], True
            for _ in range(rounds):
                one, two = self.alone(tokens), self.together(tokens)
                alone.append(interval_ms(one))
                together.append(interval_ms(two))
                same = same and one["logits_xxh3"] == two["logits_xxh3"]
            return {"model_bytes": self.shape.weight_bytes(), "mbit": self.mbit, "core_each": self.core_each, "compute_core": self.compute_core, "alone_ms": alone, "together_ms": together, "same_logits": same,
                    "overhead": statistics.median(t / a for a, t in zip(alone, together)) - 1} | self.bytes_per_token(tokens)

    def alone(self, tokens):
        return self.answer(["--threads", "1"], tokens, self.on_cores(0))

    def on_cores(self, number):
        """The words that keep a program on the core for computing, or on the core that the cluster
        gives it.
        """
        return self.cluster.on_core(number) if self.compute_core is None else ["taskset", "--cpu-list", str(self.compute_core)]

    def on_others(self):
        """The words that keep a program on all other cores, if there is a core for computing."""
        if self.compute_core is None:
            return []
        return ["taskset", "--cpu-list", ",".join(str(core) for core in sorted(os.sched_getaffinity(0) - {self.compute_core}))]

    def together(self, tokens):
        self.cluster.start_daemons([None, None], [None, None])
        try:
            first = self.cluster.devices[self.plan["stages"][0]["device"]].namespace
            before = network.counted(first)
            answer = self.answer(["--cluster", str(self.toml), "--plan", self.plan["path"], "--insecure"], tokens, self.on_others())
            sent = network.counted(first) - before
        finally:
            self.cluster.stop_daemons()
        return answer | {"wire_bytes": sent}

    def answer(self, flags, tokens, where=()):
        words = network.inside(self.cluster.network.hub) + list(where) + [
            str(self.cluster.bin / "lime"), "run", "--model", str(self.model), "--context", str(self.context), "--prompt", "A few", "--max-tokens",
            str(tokens), "--ignore-eos", "--hash-logits", "--token-times", "--json"] + flags
        process = self.cluster.start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, errors = process.communicate(timeout=600)
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {errors.strip()}")
        return json.loads(out)

    def bytes_per_token(self, tokens):
        """Compares two runs, one of them with more tokens, so that the bytes of the installation
        and the prompt do not count.
        """
        more = tokens + MORE
        few, many = self.together(tokens), self.together(more)
        first = self.plan["stages"][0]["device"]
        name = self.plan["devices"][first]["name"]
        sent = [next(d for d in run["devices"] if d["name"] == name)["sent_bytes"] for run in (few, many)]
        state = 2 * self.shape.hidden
        return {"state_bytes": state, "application_bytes": (sent[1] - sent[0]) / (more - tokens),
                "interface_bytes": (many["wire_bytes"] - few["wire_bytes"]) / (more - tokens)}


def interval_ms(answer):
    """Median time between two tokens."""
    times = answer["token_times_s"][WARM_UP:]
    return 1000 * statistics.median(b - a for a, b in zip(times, times[1:]))


def describe(found):
    """The result as text for people."""
    median = statistics.median
    limits = (", a core for each daemon" if found["core_each"] else ", a core for computing" if found["compute_core"] is not None else "") + (f", links of {found['mbit']:g} Mbit/s" if found["mbit"] else "")
    return (f"model of {found['model_bytes'] / 1e9:.2f} GB, one thread{limits}, {len(found['alone_ms'])} alternating rounds, medians: one process "
            f"{median(found['alone_ms']):.2f} ms a token, two daemons {median(found['together_ms']):.2f}; the pipeline adds {found['overhead']:.1%} "
            f"(median of the rounds' ratios), {min(found['together_ms']) / min(found['alone_ms']) - 1:.1%} in the rounds that others disturbed least; logits {'the same' if found['same_logits'] else 'DIFFER'}\n"
            f"per token, from the first device to the second: hidden state {found['state_bytes']} bytes, application "
            f"{found['application_bytes']:.0f} ({found['application_bytes'] / found['state_bytes'] - 1:+.1%}), on the wire with all headers "
            f"{found['interface_bytes']:.0f} ({found['interface_bytes'] / found['state_bytes'] - 1:+.1%})")
