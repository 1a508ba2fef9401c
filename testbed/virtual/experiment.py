"""Runs an experiment of the paper as a scale model: plans of every variant, alternating turns,
limits checked before and after. Resumable: every turn is stored in a file of JSON lines, and is not
run again for the same plan.
"""
import json
import math
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from virtual import oracle, planning, probes, report, workload
from virtual.catalogue import LARGEST, LIME, out_of_time_ms
from virtual.cluster import VirtualCluster
from virtual.runtime_memory import measure_runtime
from virtual.scaling import MIB, Factors, Overheads, device_profiles, pace_profile, scale_device, scale_model
from virtual.turns import Turn

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = ROOT / "testbed" / "clusters"
STORIES = ROOT / "models" / "lime-fables" / "heldout.txt"
LATENCY_MS = 0.3  # of a message, one way; used for planning; the links' real latency is measured
LEAST_ACTIVATIONS = 16 * MIB
BASE_ACTIVATIONS, POSITION_ACTIVATIONS = 8 * MIB, 5 * 1024  # of the kernels' workspaces; and of each position of the context
WHOLE_BLOCK_RING = 24 * MIB  # space that a ring of whole blocks loses at its end: the largest block except the head
TURN_S = 20  # seconds of a turn besides its tokens: daemons, weights, probes
MOST_FAILURES = 3  # failures in a row that end an experiment
# Milliseconds per step of a strategy, to estimate a duration before there are plans: times of the
# paper's settings.
GUESSED_MS = {"lime": 2000, "lime-paper": 3000, "pp": 0, "edgeshard": 0, "pp-offload": 12000, "pp-offload-batched": 9000}


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


def stories():
    """Prompts as text in one line. To a byte tokenizer, each character is a token."""
    return " ".join(STORIES.read_text(encoding="ascii").split())


@dataclass(frozen=True)
class Machine:
    """The machine's folders and limits. `work`: models, and values that are measured once.
    `results`: a folder for each experiment; None: `work`.
    """

    bin: Path
    work: Path
    results: Path | None = None
    plan_ms: int = 20000
    max_seconds: float = math.inf  # of a turn; a longer turn counts as out of time
    probe_every: int = 6  # turns between two looks at the limits


class Experiment:
    def __init__(self, question, machine, printer=say):
        self.question, self.machine, self.say = question, machine, printer
        self.factors = Factors(question.width)
        described = json.loads((CLUSTERS / f"{question.setting}.json").read_text())["devices"]
        self.config = CLUSTERS / f"{question.model()}.json"
        self.shape = scale_model(json.loads(self.config.read_text()), self.factors)
        self.devices = [scale_device(device, self.factors, self.shape) for device in described]
        self.work = Path(machine.work)
        self.model = self.work / (f"model-{question.width}" if question.model() == LARGEST else f"{question.model()}-{question.width}")
        self.name = question.name()
        self.folder = Path(machine.results or machine.work) / self.name
        self.kept = self.folder / "turns.jsonl"
        self.bin = Path(machine.bin)
        self.plans, self.overheads = {}, None

    def run(self):
        self.prepare()
        self.run_scheduled()
        return self.result()

    def prepare(self, planned=lambda seconds: None):
        """Makes what turns need: the model and the plans. Calls `planned` for every plan, with the
        seconds estimated for it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.make_model()
        self.overheads = self.measure_overheads()
        self.plans = self.make_plans(planned)
        for mbit in self.oracle_rates():
            missing = self.oracle_seconds([mbit])
            self.oracle_plan(mbit)
            planned(missing)
        if self.planned_variants():
            self.load()  # raises an error if the prompts do not fit

    def look(self):
        """Reads the plans if all of them are made already. Measures nothing and searches nothing.
        Returns whether all are made.
        """
        made = self.plan_seconds(self.question.variants) + self.oracle_seconds(self.oracle_rates()) == 0
        if made and not self.plans:
            self.plans = self.make_plans()
        return made

    def planned_variants(self):
        return [v for v in self.question.variants if "reason" not in self.plans.get(v.name, {"reason": ""})]

    def run_scheduled(self, ran=lambda seconds: None):
        """Runs the remaining turns. Calls `ran` for every turn, with the seconds estimated for it.
        """
        turns = self.schedule()
        if not turns:
            return
        self.say(f"{self.name}: {len(turns)} turns to run, about {sum(self.turn_seconds(variant) for variant, _ in turns) / 60:.0f} minutes")
        with self.make_cluster(self.devices, self.folder, self.model) as cluster:
            self.run_turns(cluster, turns, ran)

    def make_cluster(self, devices, folder, model):
        return VirtualCluster(devices, folder, model, self.bin)

    def make_model(self):
        if (self.model / "config.json").exists():
            return
        self.say(f"makes a model of {self.shape.weight_bytes() / 1e9:.2f} GB in {self.model}")
        free = shutil.disk_usage(self.work).free
        if free < 2 * self.shape.weight_bytes():
            raise RuntimeError(f"{self.work} has {free / 1e9:.1f} GB free, too little for a model of {self.shape.weight_bytes() / 1e9:.1f} GB")
        subprocess.run([str(self.bin / "make_model"), "--out", str(self.model), "--positions", "4096", "--seed", "70"]
                       + self.shape.make_model_flags(), check=True, stdout=subprocess.DEVNULL)

    def measure_overheads(self):
        kept = self.kept_runtime()
        if not kept.exists():
            small = ROOT / "models" / "lime-fables"
            kept.write_text(json.dumps({"bytes": measure_runtime(self.make_cluster, small, self.work)}))
        overheads = self.known_overheads()
        self.say(f"a limed needs {overheads.runtime / MIB:.0f} MiB more than plans count; each device's budget has these and "
                 f"{(self.activations() + Overheads.margin) / MIB:.0f} MiB for activations and margin in addition to the scaled memory")
        return overheads

    def kept_runtime(self):
        return self.work / "runtime.json"

    def known_overheads(self):
        """None if they were not measured yet."""
        if not self.kept_runtime().exists():
            return None
        runtime = json.loads(self.kept_runtime().read_text())["bytes"]
        return Overheads(runtime=-(-runtime // MIB) * MIB, activations=self.activations())

    def activations(self):
        return max(LEAST_ACTIVATIONS, BASE_ACTIVATIONS + POSITION_ACTIVATIONS * self.question.context // self.factors.width)

    def make_plans(self, planned=lambda seconds: None):
        """{variant: plan or {"reason"}}"""
        plans = {}
        for variant in self.question.variants:
            missing = self.plan_seconds([variant])
            plans[variant.name] = plan = self.make_plan(variant)
            full = self.full_size_ms(variant)
            at_full_size = f" ({full:.0f} at full size)" if full else ""
            self.say(f"{self.name}, {variant.name}:", plan.get("reason") or f"{plan['predicted']['ms_per_token']:.0f} ms/token{at_full_size}, "
                     f"{planning.summary_of(plan)}")
            planned(missing)
        return plans

    # ---- For links whose rate changes: the best plan for each rate

    def oracle_rates(self):
        return sorted({*oracle.PLANNED_MBIT, self.question.mbit}) if self.question.pause else []

    def oracle_plan(self, mbit):
        return planning.make_plan(self.bin / "lime", *self.scaled_question(LIME, mbit))

    def oracle_seconds(self, rates):
        """Upper bound on the time to make the plans of `rates` that are not made yet."""
        if self.overheads is None:
            return len(rates) * self.machine.plan_ms / 1000
        return sum(not planning.is_made(*self.scaled_question(LIME, mbit)) for mbit in rates) * self.machine.plan_ms / 1000

    def beside_oracle(self, turns):
        """Milliseconds per token of the turns of `lime` with changing rates: measured, simulated
        with its plan, and of the oracle. None if there are no such turns.
        """
        turns = [t for t in turns if t["strategy"] == "lime" and "redrawn" in t]
        if not turns or not self.oracle_rates():
            return None
        plans = {mbit: plan for mbit in self.oracle_rates() if "reason" not in (plan := self.oracle_plan(mbit))}
        known = oracle.Oracle(plans, self.question.mbit, lambda plan, speed: oracle.simulated_ms(self.bin / "lime", plan, speed))
        rates = [workload.rate_at(t["redrawn"], token) * self.factors.width for t in turns for token in range(1, self.question.tokens)]
        fixed, best = known.beside(rates)
        measured = sum(t["ms_per_token"] for t in turns) / len(turns)
        return {"measured_ms": measured, "plan_ms": fixed / self.question.requests, "oracle_ms": best / self.question.requests}

    def make_plan(self, variant):
        return planning.make_plan(self.bin / "lime", *self.scaled_question(variant))

    def scaled_question(self, variant, mbit=None):
        """Model, devices, request and folder of a plan. The links have the question's rate, or
        `mbit` (at full size).
        """
        overheads = self.overheads if variant.strategy == "lime" else Overheads(self.overheads.runtime, self.activations() + WHOLE_BLOCK_RING)
        profiles = device_profiles(self.devices, overheads, (mbit or self.question.mbit) / self.factors.width, LATENCY_MS)
        return ["--model", self.model], profiles, self.request(variant, self.factors), self.folder

    def request(self, variant, factors):
        asked = {"strategy": variant.strategy, "piece": factors.piece() if variant.strategy == "lime" else planning.WHOLE_BLOCKS,
                 "tokens": self.question.context // factors.width, "sequences": self.question.requests,
                 "prompt_tokens": self.question.prompt_tokens, "time_limit_ms": self.machine.plan_ms}
        asked |= {"kv_tokens": self.question.kv_tokens // factors.width} if self.grows(variant) else {}
        return asked | ({"flags": list(variant.plan_flags)} if variant.plan_flags else {})

    def grows(self, variant):
        return bool(self.question.kv_tokens) and variant.grows

    def full_size_question(self, variant):
        """The same at full size, on the devices of the cluster's file."""
        profiles = json.loads((CLUSTERS / f"{self.question.setting}.json").read_text())
        profiles["link"] = {"bytes_per_second": self.question.mbit * 1e6 / 8, "latency_ms": LATENCY_MS}
        return ["--model-spec", self.config], profiles, self.request(variant, Factors(1)), self.folder

    def full_size_ms(self, variant):
        """Predicted milliseconds per token at full size, with KV at the end of the context if it
        grows. None if there is no plan, if the turns measure something else, or if the levels of KV
        follow another rule than the plan's.
        """
        if self.grows(variant) and (variant.run_flags or not self.question.fill):
            return None
        plan = planning.make_plan(self.bin / "lime", *self.full_size_question(variant))
        levels = plan.get("kv_levels") or [plan.get("predicted", {})]
        return levels[-1].get("ms_per_token")

    def full_size_window_ms(self, window):
        """Predicted milliseconds per token of a window at full size, while all requests run. None
        if `lime` has no plan.
        """
        plan = planning.make_plan(self.bin / "lime", *self.full_size_question(LIME))
        return workload.full_size_ms(plan.get("kv_levels"), window, self.question, workload.lead_of(plan))

    def plan_seconds(self, variants):
        """Upper bound on the time to make the plans of `variants` that are not made yet."""
        self.overheads = self.overheads or self.known_overheads()
        questions = set()
        for variant in variants:
            plan = (variant.strategy, variant.plan_flags, self.grows(variant))  # variants of one strategy may share it
            if self.overheads is None or not planning.is_made(*self.scaled_question(variant)):
                questions.add((plan, "scaled"))
            if not planning.is_made(*self.full_size_question(variant)):
                questions.add((plan, "full"))
        return len(questions) * self.machine.plan_ms / 1000

    def load(self):
        return workload.load_of(self.question, [self.plans[v.name] for v in self.planned_variants()])

    def turn_seconds(self, variant):
        """Estimated seconds of a turn; a guess if the variant is not planned yet."""
        plan = self.plans.get(variant.name)
        if plan is None:
            guess = GUESSED_MS[variant.strategy] * variant.longer / 1000
            return TURN_S + self.question.tokens * guess if guess else 0.0
        load, levels = self.load(), plan["kv_levels"]
        step = max([plan["predicted"]["ms_per_token"]] + [level["ms_per_token"] for level in levels]) * plan["sequences"]
        chunks = load.prompt * plan["sequences"] / max(1, plan["prompt_tokens"])
        return TURN_S + variant.longer * (load.tokens[0] * step + chunks * plan["predicted"]["ttft_ms"]) / 1000

    def same_as(self, variant):
        """The name of an earlier variant with the same plan and the same flags; None if there is
        none.
        """
        plan_of = lambda v: {key: value for key, value in self.plans[v.name].items() if key != "path"}
        for other in self.question.variants[:self.question.variants.index(variant)]:
            if (other.strategy, other.run_flags) == (variant.strategy, variant.run_flags) and plan_of(other) == plan_of(variant):
                return other.name
        return None

    def runs(self, variant):
        """Whether the variant has a turn: it is neither out of memory nor out of time, and no
        earlier variant is the same.
        """
        plan = self.plans[variant.name]
        return (self.same_as(variant) is None and "reason" not in plan and plan["predicted"]["ms_per_token"] <= out_of_time_ms(self.question.requests)
                and self.turn_seconds(variant) <= self.machine.max_seconds)

    def schedule(self):
        """The remaining (variant, round) pairs, alternating; all pairs if no plan is made yet."""
        if not self.plans:
            return [(v, r) for r in range(self.question.rounds) for v in self.question.variants if GUESSED_MS[v.strategy]]
        turns = self.kept_turns()
        done, refused = {(t["strategy"], t["round"]) for t in turns}, {t["strategy"] for t in turns if "refused" in t}
        return [(v, r) for r in range(self.question.rounds) for v in self.question.variants
                if self.runs(v) and v.name not in refused and (v.name, r) not in done]

    def every_turn(self):
        """All stored turns."""
        return [json.loads(line) for line in self.kept.read_text().splitlines()] if self.kept.exists() else []

    def kept_turns(self):
        """The stored turns of the present plans and question that did not fail."""
        return [t for t in self.turns_at_hand() if "failed" not in t]

    def turns_at_hand(self):
        variants = {v.name: v for v in self.planned_variants()}
        return [t for t in self.every_turn() if t["strategy"] in variants and t["plan"] == self.plans[t["strategy"]]["path"]
                and t["tokens"] == self.question.tokens and t.get("asked", []) == self.asked(variants[t["strategy"]], t["round"])]

    def asked(self, variant, turn_round):
        """The settings of a turn besides plan and tokens, as they come back from JSON; empty for a
        turn without such settings.
        """
        question = self.question
        if not (question.fill or question.text or question.start or question.pause or variant.run_flags):
            return []
        load = self.load()
        each = [list(load.tokens)] if len(set(load.tokens)) > 1 else []
        each += ["text"] if question.text else []
        return [load.prompt, list(variant.run_flags), [list(drawn) for drawn in self.redraws(turn_round)], question.warm_up] + each

    def redraws(self, turn_round):
        """The changes of the links' rate in a round, the same for every variant."""
        return workload.redraws(turn_round + 1, self.question.tokens, self.question.pause) if self.question.pause else []

    def run_turns(self, cluster, turns, ran):
        budgets = [max(self.plans[v.name]["devices"][i]["budget"] for v, _ in turns) for i in range(len(self.devices))]
        limits, failures, refused = {}, 0, set()
        for number, (variant, turn_round) in enumerate(turns):
            if number % self.machine.probe_every == 0:
                limits = self.probe(cluster)
            if variant.name in refused:
                ran(self.turn_seconds(variant))
                continue
            found = self.run_turn(cluster, variant, turn_round, budgets)
            plan = self.plans[variant.name]
            self.keep({"strategy": variant.name, "round": turn_round, "plan": plan["path"], "tokens": self.question.tokens, "limits": limits,
                       "asked": self.asked(variant, turn_round)} | found)
            predicted = found.get("predicted_ms", plan["predicted"]["ms_per_token"])
            not_measured = found.get("failed") or found.get("refused")
            refused |= {variant.name} if "refused" in found else set()
            measured = not_measured or f"{found['ms_per_token']:.0f} ms/token (predicted {predicted:.0f})"
            self.say(f"{self.name}, turn {number + 1} of {len(turns)}, {variant.name}: {measured}")
            ran(self.turn_seconds(variant))
            failures = failures + 1 if "failed" in found else 0
            if failures == MOST_FAILURES:
                raise RuntimeError(f"{self.name}: {failures} turns failed one after the other; the last: {found['failed']}")
        self.keep({"strategy": "", "round": -1, "plan": "", "tokens": 0, "limits": self.probe(cluster)})

    def run_turn(self, cluster, variant, turn_round, budgets):
        plan, load = self.plans[variant.name], self.load()
        scaled = [(token, mbit / self.factors.width) for token, mbit in self.redraws(turn_round)]
        options = {"cluster_toml": cluster.cluster_toml(budgets), "tokens": load.tokens, "warm_up": self.question.warm_up, "install_s": 180,
                   "patience_s": 60 + 3 * self.turn_seconds(variant), "prompt": load.prompt,
                   "stories": stories() if self.question.text else "", "run_flags": variant.run_flags, "redraws": scaled,
                   "planned_mbit": self.question.mbit / self.factors.width}
        cluster.shape_links(self.question.mbit / self.factors.width)
        try:
            cluster.start_daemons([pace_profile(d) for d in self.devices], [d["budget"] for d in plan["devices"]])
            return Turn(cluster, plan, options).run()
        except (RuntimeError, subprocess.SubprocessError) as error:
            return {"failed": str(error)[-800:]}
        finally:
            cluster.stop_daemons()

    def probe(self, cluster):
        cluster.shape_links(self.question.mbit / self.factors.width)
        cluster.limit_reads(True)
        return probes.measure_limits(cluster)

    def keep(self, turn):
        with open(self.kept, "a", encoding="utf-8") as file:
            file.write(json.dumps(turn) + "\n")

    def result(self):
        """The result of all turns so far. Also writes it to the folder."""
        result = report.summarise(self)
        (self.folder / "result.json").write_text(json.dumps(result, indent=1))
        return result
