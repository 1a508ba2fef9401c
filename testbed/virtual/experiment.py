"""An experiment of the paper as a scale model: plans of every variant, alternating turns, limits checked before and after. Resumable: every turn
is kept in a file of JSON lines, and is not run again for the same plan.
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
LATENCY_MS = 0.3  # of a message, one way; planned with, not imposed: what the links really have is measured
LEAST_ACTIVATIONS = 16 * MIB
BASE_ACTIVATIONS, POSITION_ACTIVATIONS = 8 * MIB, 5 * 1024  # of the kernels' workspaces; a long context has the room of its pieces
WHOLE_BLOCK_RING = 24 * MIB  # what a ring of whole blocks loses at its end: the largest block but the head
TURN_S = 20  # of a turn beside its tokens: daemons, weights, probes
MOST_FAILURES = 3  # in a row, after which an experiment ends
# Milliseconds per step of a strategy, to state a duration before anything is planned: those of the
# paper's settings.
GUESSED_MS = {"lime": 2000, "lime-paper": 3000, "pp": 0, "edgeshard": 0, "pp-offload": 12000, "pp-offload-batched": 9000}


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


def stories():
    """Prompts as text: one line, a character for each token of a byte tokenizer."""
    return " ".join(STORIES.read_text(encoding="ascii").split())


@dataclass(frozen=True)
class Machine:
    """Where it runs. `work`: models, and what is measured once; `results`: a folder for each experiment, `work` where None."""

    bin: Path
    work: Path
    results: Path | None = None
    plan_ms: int = 20000
    max_seconds: float = math.inf  # of a turn; what would take longer is out of time
    probe_every: int = 6  # turns between two looks at the limits


class Experiment:
    def __init__(self, question, machine, tell=say):
        self.question, self.machine, self.say = question, machine, tell
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
        """What turns need: the model, plans. `planned` is told of every plan, with the seconds that it was to take."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.make_model()
        self.overheads = self.measure_overheads()
        self.plans = self.make_plans(planned)
        for mbit in self.oracle_rates():
            missing = self.oracle_seconds([mbit])
            self.oracle_plan(mbit)
            planned(missing)
        if self.planned_variants():
            self.load()  # fits, or says why not

    def look(self):
        """Takes the plans up where all are made already; nothing is measured or searched. Whether they are."""
        made = self.plan_seconds(self.question.variants) + self.oracle_seconds(self.oracle_rates()) == 0
        if made and not self.plans:
            self.plans = self.make_plans()
        return made

    def planned_variants(self):
        return [v for v in self.question.variants if "reason" not in self.plans.get(v.name, {"reason": ""})]

    def run_scheduled(self, ran=lambda seconds: None):
        """The turns that are still to run. `ran` is told of every one, with the seconds that it was to take."""
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
        """None before they were measured."""
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

    # ---- Of links that change: what is best at each rate

    def oracle_rates(self):
        return sorted({*oracle.PLANNED_MBIT, self.question.mbit}) if self.question.pause else []

    def oracle_plan(self, mbit):
        return planning.make_plan(self.bin / "lime", *self.scaled_question(LIME, mbit))

    def oracle_seconds(self, rates):
        """At most, for those that are still to be planned."""
        if self.overheads is None:
            return len(rates) * self.machine.plan_ms / 1000
        return sum(not planning.is_made(*self.scaled_question(LIME, mbit)) for mbit in rates) * self.machine.plan_ms / 1000

    def beside_oracle(self, turns):
        """Of the turns of `lime` with redraws: milliseconds per token measured, of its plan simulated, and of the oracle; None where none ran."""
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
        """Model, devices, request and folder of a plan; for links of the question's rate, or another one at full size."""
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
        """The same on the devices as they are."""
        profiles = json.loads((CLUSTERS / f"{self.question.setting}.json").read_text())
        profiles["link"] = {"bytes_per_second": self.question.mbit * 1e6 / 8, "latency_ms": LATENCY_MS}
        return ["--model-spec", self.config], profiles, self.request(variant, Factors(1)), self.folder

    def full_size_ms(self, variant):
        """What the variant is predicted to take at full size, where KV grows at the end of the context; None where it has no plan, where that is not
        what is measured, or where its levels are of another rule than the plan's.
        """
        if self.grows(variant) and (variant.run_flags or not self.question.fill):
            return None
        plan = planning.make_plan(self.bin / "lime", *self.full_size_question(variant))
        levels = plan.get("kv_levels") or [plan.get("predicted", {})]
        return levels[-1].get("ms_per_token")

    def full_size_window_ms(self, window):
        """What the tokens of a window are predicted to take at full size, with all requests there; None where `lime` has no plan."""
        plan = planning.make_plan(self.bin / "lime", *self.full_size_question(LIME))
        return workload.full_size_ms(plan.get("kv_levels"), window, self.question, workload.lead_of(plan))

    def plan_seconds(self, variants):
        """At most, for those that are still to be planned."""
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
        """About; a guess where it is not planned yet."""
        plan = self.plans.get(variant.name)
        if plan is None:
            guess = GUESSED_MS[variant.strategy] * variant.longer / 1000
            return TURN_S + self.question.tokens * guess if guess else 0.0
        load, levels = self.load(), plan["kv_levels"]
        step = max([plan["predicted"]["ms_per_token"]] + [level["ms_per_token"] for level in levels]) * plan["sequences"]
        chunks = load.prompt * plan["sequences"] / max(1, plan["prompt_tokens"])
        return TURN_S + variant.longer * (load.tokens[0] * step + chunks * plan["predicted"]["ttft_ms"]) / 1000

    def same_as(self, variant):
        """The name of another variant, before this one, of the same plan and the same flags; None where there is none."""
        plan_of = lambda v: {key: value for key, value in self.plans[v.name].items() if key != "path"}
        for other in self.question.variants[:self.question.variants.index(variant)]:
            if (other.strategy, other.run_flags) == (variant.strategy, variant.run_flags) and plan_of(other) == plan_of(variant):
                return other.name
        return None

    def runs(self, variant):
        """Neither out of memory nor out of time, nor the same as another one."""
        plan = self.plans[variant.name]
        return (self.same_as(variant) is None and "reason" not in plan and plan["predicted"]["ms_per_token"] <= out_of_time_ms(self.question.requests)
                and self.turn_seconds(variant) <= self.machine.max_seconds)

    def schedule(self):
        """(variant, round) that are still to run, alternating; all where nothing is planned yet."""
        if not self.plans:
            return [(v, r) for r in range(self.question.rounds) for v in self.question.variants if GUESSED_MS[v.strategy]]
        turns = self.kept_turns()
        done, refused = {(t["strategy"], t["round"]) for t in turns}, {t["strategy"] for t in turns if "refused" in t}
        return [(v, r) for r in range(self.question.rounds) for v in self.question.variants
                if self.runs(v) and v.name not in refused and (v.name, r) not in done]

    def every_turn(self):
        """Whatever was kept of any."""
        return [json.loads(line) for line in self.kept.read_text().splitlines()] if self.kept.exists() else []

    def kept_turns(self):
        """Those of the plans and the question at hand that did not fail."""
        return [t for t in self.turns_at_hand() if "failed" not in t]

    def turns_at_hand(self):
        variants = {v.name: v for v in self.planned_variants()}
        return [t for t in self.every_turn() if t["strategy"] in variants and t["plan"] == self.plans[t["strategy"]]["path"]
                and t["tokens"] == self.question.tokens and t.get("asked", []) == self.asked(variants[t["strategy"]], t["round"])]

    def asked(self, variant, turn_round):
        """What a turn has beside plan and tokens, as JSON gives it back; nothing where it is a plain one."""
        question = self.question
        if not (question.fill or question.text or question.start or question.pause or variant.run_flags):
            return []
        load = self.load()
        each = [list(load.tokens)] if len(set(load.tokens)) > 1 else []
        each += ["text"] if question.text else []
        return [load.prompt, list(variant.run_flags), [list(drawn) for drawn in self.redraws(turn_round)], question.warm_up] + each

    def redraws(self, turn_round):
        """The same for every variant of a round."""
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
        """Of what has run so far; also kept."""
        result = report.summarise(self)
        (self.folder / "result.json").write_text(json.dumps(result, indent=1))
        return result
