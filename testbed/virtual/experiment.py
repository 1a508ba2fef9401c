"""A setting of the paper as a scale model: plans of every strategy, alternating turns, limits checked before and after. Resumable: every turn
is kept in a file of JSON lines, and is not run again for the same plan.
"""
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from virtual import planning, probes, report
from virtual.cluster import VirtualCluster
from virtual.runtime_memory import measure_runtime
from virtual.scaling import MIB, Factors, Overheads, device_profiles, pace_profile, scale_device, scale_model
from virtual.turns import Turn

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = ROOT / "testbed" / "clusters"
MODEL_CONFIG = CLUSTERS / "llama-3.3-70b.json"
LATENCY_MS = 0.3  # of a message, one way; planned with, not imposed: what the links really have is measured
STRATEGIES = ("lime", "lime-paper", "pp", "pp-offload", "pp-offload-batched", "edgeshard")
ACTIVATIONS = 16 * MIB
WHOLE_BLOCK_RING = 24 * MIB  # what a ring of whole blocks loses at its end: the largest block but the head


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


class Experiment:
    """`flags`: of testbed/run."""

    def __init__(self, flags):
        self.flags = flags
        self.factors = Factors(flags.width)
        described = json.loads((CLUSTERS / f"{flags.setting}.json").read_text())["devices"]
        self.shape = scale_model(json.loads(MODEL_CONFIG.read_text()), self.factors)
        self.devices = [scale_device(device, self.factors, self.shape) for device in described]
        self.work = Path(flags.work)
        self.model = self.work / f"model-{flags.width}"
        self.name = f"{flags.setting}-{flags.mbit}mbit-{flags.requests}"
        self.folder = self.work / self.name
        self.kept = self.folder / "turns.jsonl"
        self.bin = Path(flags.bin)

    def run(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.make_model()
        self.overheads = self.measure_overheads()
        plans = self.make_plans()
        turns = self.schedule(plans)
        seconds = sum(self.turn_seconds(plans[s]) for s, _ in turns)
        say(f"{self.name}: {len(turns)} turns to run, about {seconds / 60:.0f} minutes")
        if turns:
            with self.make_cluster(self.devices, self.folder, self.model) as cluster:
                self.run_turns(cluster, plans, turns)
        return self.result(plans)

    def make_cluster(self, devices, folder, model):
        return VirtualCluster(devices, folder, model, self.bin)

    def make_model(self):
        if (self.model / "config.json").exists():
            return
        say(f"makes a model of {self.shape.weight_bytes() / 1e9:.2f} GB in {self.model}")
        free = shutil.disk_usage(self.work).free
        if free < 2 * self.shape.weight_bytes():
            raise RuntimeError(f"{self.work} has {free / 1e9:.1f} GB free, too little for a model of {self.shape.weight_bytes() / 1e9:.1f} GB")
        subprocess.run([str(self.bin / "make_model"), "--out", str(self.model), "--positions", "4096", "--seed", "70"]
                       + self.shape.make_model_flags(), check=True, stdout=subprocess.DEVNULL)

    def measure_overheads(self):
        kept = self.work / "runtime.json"
        if not kept.exists():
            small = ROOT / "models" / "lime-fables"
            kept.write_text(json.dumps({"bytes": measure_runtime(self.make_cluster, small, self.work)}))
        runtime = json.loads(kept.read_text())["bytes"]
        say(f"a limed takes {runtime / MIB:.0f} MiB beside what plans count; each device's budget has that and "
            f"{(ACTIVATIONS + Overheads.margin) / MIB:.0f} MiB for activations and margin beside the scaled memory")
        return Overheads(runtime=-(-runtime // MIB) * MIB, activations=ACTIVATIONS)

    def make_plans(self):
        """{strategy: plan or {"reason"}}"""
        plans = {}
        for strategy in self.flags.strategies:
            plans[strategy] = self.make_plan(strategy)
            plan, full = plans[strategy], self.full_size_ms(strategy)
            say(f"{strategy}:", plan.get("reason") or f"{plan['predicted']['ms_per_token']:.0f} ms/token ({full:.0f} at full size), "
                f"{planning.summary_of(plan)}")
        return plans

    def make_plan(self, strategy):
        pieces = strategy == "lime"
        overheads = self.overheads if pieces else Overheads(self.overheads.runtime, ACTIVATIONS + WHOLE_BLOCK_RING)
        profiles = device_profiles(self.devices, overheads, self.flags.mbit / self.factors.width, LATENCY_MS)
        return planning.make_plan(self.bin / "lime", ["--model", self.model], profiles, self.request(strategy, self.factors), self.folder)

    def request(self, strategy, factors):
        return {"strategy": strategy, "piece": factors.piece() if strategy == "lime" else planning.WHOLE_BLOCKS,
                "tokens": self.flags.context // factors.width, "sequences": self.flags.requests, "prompt_tokens": self.flags.prompt_tokens,
                "time_limit_ms": self.flags.plan_ms}

    def full_size_ms(self, strategy):
        """What the same strategy is predicted to take on the devices as they are; None where it has no plan."""
        profiles = json.loads((CLUSTERS / f"{self.flags.setting}.json").read_text())
        profiles["link"] = {"bytes_per_second": self.flags.mbit * 1e6 / 8, "latency_ms": LATENCY_MS}
        plan = planning.make_plan(self.bin / "lime", ["--model-spec", MODEL_CONFIG], profiles, self.request(strategy, Factors(1)), self.folder)
        return plan["predicted"]["ms_per_token"] if "predicted" in plan else None

    def turn_seconds(self, plan):
        step = plan["predicted"]["ms_per_step"] / 1000
        return 10 + (self.flags.tokens + 2) * step

    def runs(self, plan):
        return "reason" not in plan and self.turn_seconds(plan) <= self.flags.max_seconds

    def schedule(self, plans):
        """(strategy, round) that are still to run, alternating."""
        done = {(turn["strategy"], turn["round"]) for turn in self.kept_turns(plans)}
        return [(s, r) for r in range(self.flags.rounds) for s in plans if self.runs(plans[s]) and (s, r) not in done]

    def kept_turns(self, plans):
        """Those of the plans at hand that did not fail."""
        if not self.kept.exists():
            return []
        turns = [json.loads(line) for line in self.kept.read_text().splitlines()]
        return [t for t in turns if t["plan"] == plans.get(t["strategy"], {}).get("path") and "failed" not in t and t["tokens"] == self.flags.tokens]

    def run_turns(self, cluster, plans, turns):
        budgets = [max(plans[s]["devices"][i]["budget"] for s, _ in turns) for i in range(len(self.devices))]
        cluster.shape_links(self.flags.mbit / self.factors.width)
        limits = {}
        for number, (strategy, turn_round) in enumerate(turns):
            plan = plans[strategy]
            if number % self.flags.probe_every == 0:
                limits = self.probe(cluster)
            cluster.start_daemons([pace_profile(d) for d in self.devices], [d["budget"] for d in plan["devices"]])
            options = {"cluster_toml": cluster.cluster_toml(budgets), "tokens": self.flags.tokens, "warm_up": self.flags.warm_up,
                       "install_s": 180, "patience_s": 60 + 3 * self.turn_seconds(plan)}
            try:
                found = Turn(cluster, plan, options).run()
            finally:
                cluster.stop_daemons()
            self.keep({"strategy": strategy, "round": turn_round, "plan": plan["path"], "tokens": self.flags.tokens, "limits": limits} | found)
            measured = found.get("failed") or f"{found['ms_per_token']:.0f} ms/token (predicted {plan['predicted']['ms_per_token']:.0f})"
            say(f"turn {number + 1} of {len(turns)}, {strategy}: {measured}")
        self.keep({"strategy": "", "round": -1, "plan": "", "tokens": 0, "limits": self.probe(cluster)})

    def probe(self, cluster):
        cluster.limit_reads(True)
        return probes.measure_limits(cluster)

    def keep(self, turn):
        with open(self.kept, "a", encoding="utf-8") as file:
            file.write(json.dumps(turn) + "\n")

    def result(self, plans):
        every = [json.loads(line) for line in self.kept.read_text().splitlines()] if self.kept.exists() else []
        result = report.summarise(self, plans, self.kept_turns(plans), [t["limits"] for t in every if t["limits"]])
        (self.folder / "result.json").write_text(json.dumps(result, indent=1))
        return result
