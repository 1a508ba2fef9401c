#!/usr/bin/python3
"""What dividing the experts of every layer over two disks gains over dividing the layers, on two throttled boards of a scale model.

    bench/divided.py BIN_DIR OUT_DIR [--layers N] [--slower F] [--rounds N] [--tokens N] [--warm-up N] [--read-ahead N] [--out FILE]

The boards have 15 GB of memory, a disk of 2 GB/s and a link of 1 Gbit/s with 0.2 ms; the model is Qwen3-30B-A3B in bf16. In the scale model the width is divided by
8, so experts, memories and rates of disks, memory and arithmetic are divided by 64, and bytes of messages, the vocabulary and the rate of links by 8. It has N of the 48
layers, so memories and the vocabulary are divided by 48 / N, too; the vocabulary has at least 4096 ids. All times are F times as long, because the kernel limits reads in
slices of 20 to 100 ms: a read of one expert, 4.8 ms in full size, must take longer. Routes are planted (testbed/make_model/planted_routes.h), and text is sampled at
temperature 1.

  layers    every expert is on the device of its layer; as many have a place in memory as make a token fastest
  experts   the experts of every layer are divided over both devices, as `lime plan` divides them
  ahead     as `layers`, with --read-ahead N, if asked for

The variants take turns. Each is a run of real daemons in network namespaces, whose memory, reads, links and computation are limited. During the first tokens the disks are
not limited, so that the caches fill; the tokens after them are measured, the same in all variants. All variants sample the same text. A figure is the median of the rounds; predictions are
those of the plans, which know the routes of another text.

Needs root, and a disk that is faster than both boards together. The model, 0.3 GB with 16 layers, stays in OUT_DIR for the next run.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "testbed"))

import planted_a3b  # noqa: E402
from planted_a3b import EXPERT_BYTES, EXPERTS, LAYERS, OTHER_TEXT, TEXT  # noqa: E402
from report import call, heading, mib, table, verdict  # noqa: E402
from virtual import network  # noqa: E402
from virtual.cluster import PORT, VirtualCluster  # noqa: E402
from virtual.scaling import Overheads, ScaledDevice, device_profiles, pace_profile  # noqa: E402

WIDTH = 8
BOARD = {"memory": 15e9, "read_bytes_per_second": 100e9, "flops": 5e12, "block_overhead_ms": 0.02, "disk": 2e9, "disk_latency_ms": 0.1}
LINK_MBIT, LINK_MS = 1000, 0.2
HUB, FIRST_PORT = network.PREFIX + "1", 7101  # of the delays
MIB = 1 << 20
OVERHEADS = Overheads(runtime=96 * MIB, activations=48 * MIB)
GOAL = 1.4
CONTEXT = 1024
PROMPT = "Once upon a time"
LEAST_TOKENS = 8
LEAST_VOCAB = 4096  # for routes like recorded ones


class DividedBench:
    def __init__(self, flags):
        self.flags, self.binaries, self.folder = flags, flags.binaries, flags.folder
        self.lime = flags.binaries / "lime"
        self.model = planted_a3b.make(self.binaries, self.folder, flags.layers, WIDTH, LEAST_VOCAB)
        self.devices = [self.device(name) for name in ("a", "b")]
        self.profiles = device_profiles(self.devices, OVERHEADS, LINK_MBIT / WIDTH / flags.slower, LINK_MS * flags.slower)

    def device(self, name):
        """The share of the layers that is left has the same share of the memory. A disk has a latency beside its rate, which the limit of reads does not imitate: its
        rate is lower instead, by the latency for every expert."""
        by, slower, layers = WIDTH**2, self.flags.slower, self.flags.layers / LAYERS
        read_ms = 1e3 * EXPERT_BYTES / BOARD["disk"] + BOARD["disk_latency_ms"]
        return ScaledDevice(name, int(BOARD["memory"] * layers / by), BOARD["read_bytes_per_second"] / by / slower, BOARD["flops"] / by / slower,
                            BOARD["block_overhead_ms"] * slower, 1e3 * EXPERT_BYTES / by / (read_ms * slower), 0.0)

    # ---- Plans

    def plan(self, name, flags, numerics=("", "")):
        """`numerics`: devices with different orders of sums divide no experts."""
        path = self.folder / f"{name}.plan.json"
        profiles = json.loads(json.dumps(self.profiles))
        for device, order in zip(profiles["devices"], numerics):
            device |= {"numerics_id": order} if order else {}
        inputs = path.with_suffix(".devices.json")
        inputs.write_text(json.dumps(profiles, indent=1))
        call([self.lime, "plan", "--model", self.model, "--device-profiles", inputs, "--tokens", CONTEXT, "--prompt-tokens", 16, "--routes", self.routes(), *flags,
              "--out", path, "--overwrite", "--json"])
        return json.loads(path.read_text()) | {"path": path}

    def routes(self):
        """Those of another text, in memory on this machine alone."""
        path = self.folder / "divided.routes"
        if not path.exists():
            call([self.lime, "trace", "--model", self.model, "--prompt", PROMPT, "--max-tokens", 512, "--temperature", 1, "--seed", OTHER_TEXT, "--ignore-eos", "--experts", EXPERTS // 4, "--routes", path,
                  "--trace", self.folder / "divided.trace.json", "--overwrite"])
        return path

    def plans(self):
        alone = self.plan("alone", [], ("a", "b"))
        places = max(part.get("places", 0) for part in alone["parts"])
        plans = {"layers": self.plan("layers", ["--experts", places]), "experts": self.plan("experts", [])}
        if self.flags.read_ahead:
            plans["ahead"] = self.plan("ahead", ["--experts", places, "--read-ahead", self.flags.read_ahead])
        if not any(part.get("host", -1) >= 0 for part in plans["experts"]["parts"]):
            raise RuntimeError("`lime plan` does not divide the experts of these boards; see the file experts.plan.json")
        return plans

    # ---- Runs

    def run(self, cluster, plan):
        """The times of the tokens after the warm-up, in ms, and the answer of `lime run`. The disks are limited after about half of the warm-up."""
        cluster.limit_reads(False)
        cluster.start_daemons([pace_profile(device) for device in self.devices], [device["budget"] for device in plan["devices"]])
        try:
            toml = self.cluster_toml(cluster)
            words = network.inside(cluster.network.hub) + [self.lime, "run", "--model", self.model, "--cluster", toml, "--plan", plan["path"], "--insecure",
                                                           "--context", CONTEXT, "--prompt", PROMPT, "--max-tokens", self.flags.warm_up + self.flags.tokens,
                                                           "--temperature", 1, "--seed", TEXT, "--ignore-eos", "--hash-logits", "--token-times", "--json"]
            process = cluster.start([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            used = [device for device, planned in zip(cluster.devices, plan["devices"]) if planned["kv_pages"] > 0]
            cluster.await_log(used, [0] * len(used), "is installed after", 300, lambda: process.poll() is None)
            time.sleep(self.flags.warm_up * computing_ms(plan) / 2e3)
            cluster.limit_reads(True)
            limited = time.monotonic()
            out, errors = process.communicate(timeout=3600)
        finally:
            cluster.stop_daemons()
        if process.returncode != 0:
            raise RuntimeError(f"lime run: {errors.strip()[-800:]}")
        answer = json.loads(out)
        times = answer["token_times_s"][-self.flags.tokens - 1:]
        if times[0] <= limited:
            raise RuntimeError("tokens to be measured came before the disks were limited; raise --warm-up")
        return [1e3 * (b - a) for a, b in zip(times, times[1:])], answer

    # Every device is reached over the hub, which delays what it passes on. The rate is limited where a device sends.

    def delay(self, cluster, device):
        words = network.inside(cluster.network.hub) + [sys.executable, str(pathlib.Path(__file__).with_name("delayed.py")), str(LINK_MS * self.flags.slower),
                                                       f"{HUB}:{FIRST_PORT + device.index}", f"{device.address}:{PORT}"]
        if cluster.start(words, stdout=subprocess.PIPE, text=True).stdout.readline().strip() != "ready":
            raise RuntimeError(f"{' '.join(words)} did not begin")

    def cluster_toml(self, cluster):
        lines = ["[cluster]", 'name = "divided"', f'model = "{self.model}"']
        for device, planned in zip(cluster.devices, self.profiles["devices"]):
            lines += ["[[device]]", f'name = "{device.spec.name}"', f'address = "{HUB}:{FIRST_PORT + device.index}"', f'memory = "{planned["memory_bytes"]}"', f'weights = "{self.model}"']
        path = self.folder / "divided.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def measure(self, plans):
        rounds = {name: [] for name in plans}
        with VirtualCluster(self.devices, self.folder, self.model, self.binaries) as cluster:
            for device in cluster.devices:
                network.shape(device.namespace, "eth0", LINK_MBIT / WIDTH / self.flags.slower)
                self.delay(cluster, device)
            for turn in range(self.flags.rounds):
                for name in list(plans) if turn % 2 == 0 else reversed(list(plans)):
                    intervals, answer = self.run(cluster, plans[name])
                    rounds[name].append({"ms": statistics.mean(intervals), "intervals_ms": intervals, "predicted_ms": plans[name]["predicted"]["ms_per_token"],
                                         "token_ids": answer["token_ids"], "logits_xxh3": answer["logits_xxh3"], "devices": answer["devices"]})
                    print(f"  {name}: {rounds[name][-1]['ms']:.0f} ms", file=sys.stderr, flush=True)
        return rounds


def computing_ms(plan):
    """Of a token, without reads and messages."""
    return sum(part["decode_ms"] for part in plan["parts"] if part.get("host", -1) < 0)


def check_text(rounds):
    """Where experts are changes no bit."""
    if len({(tuple(run["token_ids"]), run["logits_xxh3"]) for runs in rounds.values() for run in runs}) > 1:
        raise RuntimeError("the variants computed different logits, so their times cannot be compared")


def print_times(bench, plans, rounds):
    flags = bench.flags
    heading(f"Experts over two disks: {flags.layers} of {LAYERS} layers of Qwen3-30B-A3B, width divided by {WIDTH}, times {flags.slower:g} times as long, "
            f"disks of {bench.devices[0].disk_bytes_per_second / 1e6:.2f} MB/s, links of {LINK_MBIT / WIDTH / flags.slower:.3g} Mbit/s")
    of = {name: statistics.median(run["ms"] for run in runs) for name, runs in rounds.items()}
    rows = []
    for name, plan in plans.items():
        predicted, spread = plan["predicted"]["ms_per_token"], [run["ms"] for run in rounds[name]]
        memory = sum(device["memory"]["weights"] for device in plan["devices"])
        rows.append([name, f"{of[name]:.0f}", f"{min(spread):.0f} to {max(spread):.0f}", f"{1e3 / of[name]:.3f}", f"{predicted:.0f}", f"{of[name] / predicted - 1:+.1%}", mib(memory)])
    table(["", "ms/token", "of the rounds", "tokens/s", "predicted ms", "apart", "weights in memory"], rows)
    ratio, predicted = of["layers"] / of["experts"], plans["layers"]["predicted"]["ms_per_token"] / plans["experts"]["predicted"]["ms_per_token"]
    print(f"  experts divided: {ratio:.2f} times as fast as layers divided, {verdict(ratio, GOAL)}; predicted {predicted:.2f} times")
    return {"ratio": ratio, "predicted_ratio": predicted}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="folder of lime, limed and make_model")
    parser.add_argument("folder", type=pathlib.Path, help="for the model, on the disk to use")
    parser.add_argument("--layers", type=int, default=16, help="of 48; 16: 0.3 GB (%(default)s)")
    parser.add_argument("--slower", type=float, default=20, help="how many times as long everything takes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=40, help="after the warm-up (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=64, help="tokens before, with disks that are not limited at first (%(default)s)")
    parser.add_argument("--read-ahead", type=int, default=0, help="of the variant ahead; 0: leave it out (%(default)s)")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file with all rounds")
    flags = parser.parse_args()
    if not 1 <= flags.layers <= LAYERS or flags.rounds < 1 or flags.tokens < LEAST_TOKENS or flags.warm_up < 1 or flags.slower < 1 or flags.read_ahead < 0:
        parser.error(f"--layers is 1 to {LAYERS}, --slower at least 1, --rounds and --warm-up at least 1, --tokens at least {LEAST_TOKENS}, --read-ahead at least 0")
    if flags.warm_up + flags.tokens > CONTEXT - len(PROMPT) - 1:
        parser.error(f"--warm-up and --tokens are together at most {CONTEXT - len(PROMPT) - 1}")
    return flags


def main():
    flags = parse()
    flags.folder.mkdir(parents=True, exist_ok=True)
    try:
        bench = DividedBench(flags)
        plans = bench.plans()
        rounds = bench.measure(plans)
        check_text(rounds)
    except RuntimeError as why:
        sys.exit(f"bench/divided.py: {why}")
    found = print_times(bench, plans, rounds)
    if flags.out:
        flags.out.write_text(json.dumps({"layers": flags.layers, "of_layers": LAYERS, "width": WIDTH, "slower": flags.slower, **found, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
