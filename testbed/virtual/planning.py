"""Makes plans of every strategy with `lime plan` and stores them beside their inputs; and reads a
plan's own limits.
"""
import hashlib
import json
import subprocess
from pathlib import Path

WHOLE_BLOCKS = "none"


def plan_words(model_words, request):
    """The words of a `lime plan`, without the devices and without the file for its answer. With
    `kv_tokens`, KV begins with so many positions and grows.
    """
    words = ["plan"] + [str(word) for word in model_words] + ["--strategy", request["strategy"], "--piece", str(request["piece"]), "--tokens", str(request["tokens"]),
             "--sequences", str(request["sequences"]), "--prompt-tokens", str(request["prompt_tokens"]), "--time-limit",
             str(request["time_limit_ms"]), "--seed", "1"]
    return words + (["--kv-tokens", str(request["kv_tokens"])] if request.get("kv_tokens") else []) + list(request.get("flags", []))


def files_of(words, profiles, request, folder):
    """The file of the plan for this question, and the file of the reason if there is no plan."""
    key = hashlib.sha256(json.dumps([words, profiles], sort_keys=True).encode()).hexdigest()[:12]
    stem = f"{request['strategy']}-{request['sequences']}-{key}"
    return folder / f"{stem}.plan.json", folder / f"{stem}.refused.json"


def is_made(model_words, profiles, request, folder):
    return any(path.exists() for path in files_of(plan_words(model_words, request), profiles, request, folder))


def make_plan(lime, model_words, profiles, request, folder):
    """The plan of `request` as an object, or {"reason": ...} if no plan fits. Makes each plan once.
    `model_words`: --model FOLDER, or --model-spec CONFIG.json. `kv_levels` of the object: the parts
    that stream as KV grows; empty if KV does not grow.
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
    """Indices of the devices with a stage or with KV of other devices, ascending."""
    stages = {stage["device"] for stage in plan["stages"]}
    return sorted(stages | {plan["devices"][d]["kv_host"] for d in stages if plan["devices"][d].get("max_layer_pages") and "kv_host" in plan["devices"][d]})


def hops(plan):
    """The number of messages for a token, with the message of the sampled token."""
    devices = [stage["device"] for stage in plan["stages"]]
    ring = sum(a != b for a, b in zip(devices, devices[1:]))
    return ring, int(devices[0] != devices[-1])


def limits_of(plan, link=1.0):
    """Milliseconds per step that no run of this plan can beat: reading, by device; computing, by
    device; the way of one micro-batch. `link`: factor on the planned speed of the links.
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
    """Predicted milliseconds per step over links `link` times as fast as planned. The prediction
    has the same ratio to the bound as in the plan.
    """
    return plan["predicted"]["ms_per_step"] * limits_of(plan, link)["bound_ms"] / limits_of(plan)["bound_ms"]


def summary_of(plan):
    """A few words for progress and reports."""
    streamed = sum(p["bytes"] for p in plan["parts"] if p.get("streamed"))
    return (f"{len(plan['stages'])} stages, {plan['microbatches']} x {plan['batch']}, {streamed / 1e6:.0f} MB streamed a step, "
            f"embedding {plan.get('embedding', 'resident')}")
