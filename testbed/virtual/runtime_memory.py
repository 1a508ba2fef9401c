"""Measures the memory of a limed that a plan does not count."""
import json
import subprocess

from virtual import network, planning
from virtual.scaling import MIB, Overheads, ScaledDevice, device_profiles, pace_profile

PROBE = ScaledDevice("probe", 256 * MIB, 1e10, 1e11, 0.0, 1e9, 0.1)
SPREAD = 6 * MIB  # difference between two starts of a limed: the system maps more or less of its libraries
ASSUMED = Overheads(runtime=192 * MIB, activations=16 * MIB)


def measure_runtime(make_cluster, model, folder):
    """Peak memory of a limed that runs a small model on one device, minus KV, weights and ring of
    its plan; and the spread.
    """
    with make_cluster([PROBE], folder, model) as cluster:
        request = {"strategy": "lime", "piece": "16MiB", "tokens": 64, "sequences": 1, "prompt_tokens": 8, "time_limit_ms": 500}
        profiles = device_profiles([PROBE], ASSUMED, 1000, 0.1)
        plan = planning.make_plan(cluster.bin / "lime", ["--model", model], profiles, request, folder)
        cluster.start_daemons([pace_profile(PROBE)], [None])
        toml = cluster.cluster_toml([profiles["devices"][0]["memory_bytes"]])
        words = network.inside(cluster.network.hub) + [str(cluster.bin / "lime"), "run", "--model", str(model), "--cluster", str(toml), "--plan",
                                                       plan["path"], "--insecure", "--context", "64", "--prompt", "a", "--max-tokens", "8", "--json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the runtime of limed cannot be measured: {done.stderr.strip()}")
        peak = json.loads(done.stdout)["devices"][0]["peak_rss_bytes"]
    memory = plan["devices"][0]["memory"]
    return peak - memory["kv"] - memory["weights"] - memory["embedding"] - memory["ring"] + SPREAD
