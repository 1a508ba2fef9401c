"""Plans of every strategy by `lime plan`, kept beside what they were made from; and what a plan says of its own limits."""
import hashlib
import json
import subprocess
from pathlib import Path

WHOLE_BLOCKS = "none"


def plan_words(model_words, request):
    """Of a `lime plan`, without the devices and where its answer goes. With `kv_tokens` KV begins with so many and grows."""
    words = ["plan"] + [str(word) for word in model_words] + ["--strategy", request["strategy"], "--piece", str(request["piece"]), "--tokens", str(request["tokens"]),
             "--sequences", str(request["sequences"]), "--prompt-tokens", str(request["prompt_tokens"]), "--time-limit",
             str(request["time_limit_ms"]), "--seed", "1"]
    return words + (["--kv-tokens", str(request["kv_tokens"])] if request.get("kv_tokens") else []) + list(request.get("flags", []))


def files_of(words, profiles, request, folder):
    """Where the plan of this question is, and where the reason that there is none."""
    key = hashlib.sha256(json.dumps([words, profiles], sort_keys=True).encode()).hexdigest()[:12]
    stem = f"{request['strategy']}-{request['sequences']}-{key}"
    return folder / f"{stem}.plan.json", folder / f"{stem}.refused.json"


def is_made(model_words, profiles, request, folder):
    return any(path.exists() for path in files_of(plan_words(model_words, request), profiles, request, folder))


def make_plan(lime, model_words, profiles, request, folder):
    """The plan of `request` as an object, or {"reason": ...} where no plan fits. Made once for the same question. `model_words`: --model FOLDER,
    or --model-spec CONFIG.json. `kv_levels` of the object: what streams as KV grows, empty where it does not.
    """
    words = plan_words(model_words, request)
    plan, refusal = files_of(words, profiles, request, folder)
    levels = plan.with_suffix(".levels.json")
    if not plan.exists() and not refusal.exists():
        inputs = plan.with_suffix(".devices.json")
        inputs.write_text(json.dumps(profiles, indent=1))
        partial = plan.with_suffix(".partial")
        done = subprocess.run([str(lime)] + words + ["--device-profiles", str(inputs), "--out", str(partial), "--json"], capture_output=True,
                              text=True, check=False)
        answer = json.loads(done.stdout) if done.stdout.strip() else {}
        if done.returncode == 0:
            levels.write_text(json.dumps(answer.get("kv_levels", [])))
            partial.rename(plan)
        elif answer.get("feasible") is False:
            refusal.write_text(json.dumps({"reason": answer["reason"]}))
        else:
            raise RuntimeError(f"lime {' '.join(words)}: {done.stderr.strip()}")
    if refusal.exists():
        return json.loads(refusal.read_text())
    grown = json.loads(levels.read_text()) if levels.exists() else []
    return json.loads(plan.read_text()) | {"path": str(plan), "kv_levels": grown}


def used_devices(plan):
    """Indices, ascending: of those with a stage, and of those with KV of others."""
    stages = {stage["device"] for stage in plan["stages"]}
    return sorted(stages | {plan["devices"][d]["kv_host"] for d in stages if plan["devices"][d].get("max_layer_pages") and "kv_host" in plan["devices"][d]})


def hops(plan):
    """Messages on a token's way, the sampled token's included."""
    devices = [stage["device"] for stage in plan["stages"]]
    ring = sum(a != b for a, b in zip(devices, devices[1:]))
    return ring, int(devices[0] != devices[-1])


def limits_of(plan, link=1.0):
    """Milliseconds per step that no run of this plan can beat: its reading, by device; its computing, by device; one micro-batch's way. `link`: how
    many times the links are as fast as planned.
    """
    reads, computes = {}, {}
    times = plan["microbatches"] if plan.get("reads") == "per_microbatch" else 1
    for stage in plan["stages"]:
        for part in plan["parts"][stage["lo"]:stage["hi"]]:
            name = plan["devices"][stage["device"]]["name"]
            computes[name] = computes.get(name, 0) + part["decode_ms"] * plan["microbatches"]
            if part.get("streamed"):
                rate = plan["devices"][stage["device"]]["disk_mb_per_ms"]
                reads[name] = reads.get(name, 0) + times * part["bytes"] / 1e6 / rate
    states, tokens = hops(plan)
    wire = plan["decode"]
    by_rows = wire.get("embed_rows_ms", 0) if plan.get("embedding") == "by_rows" else 0
    path = sum(computes.values()) / plan["microbatches"] + states * (wire["tx_ms"] / link + wire["lat_ms"]) + tokens * wire["lat_ms"] + by_rows
    return {"reads_ms": reads, "computes_ms": computes, "path_ms": path,
            "bound_ms": max([path] + list(reads.values()) + list(computes.values()))}


def step_ms(plan, link):
    """Predicted milliseconds per step over links `link` times as fast as planned: as far above the bound there as it is above the plan's."""
    return plan["predicted"]["ms_per_step"] * limits_of(plan, link)["bound_ms"] / limits_of(plan)["bound_ms"]


def summary_of(plan):
    """A few words for progress and reports."""
    streamed = sum(p["bytes"] for p in plan["parts"] if p.get("streamed"))
    return (f"{len(plan['stages'])} stages, {plan['microbatches']} x {plan['batch']}, {streamed / 1e6:.0f} MB streamed a step, "
            f"embedding {plan.get('embedding', 'resident')}")
