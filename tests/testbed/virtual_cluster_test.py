"""Virtual devices for real: the shipped model over three of them, under every limit; and that nothing is left, whatever way they end. As root, in
LIME_BIN the folder of lime and limed.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "testbed"), str(ROOT / "tests")]
import skips  # noqa: E402
from virtual import ledger, planning  # noqa: E402
from virtual.cluster import VirtualCluster  # noqa: E402
from virtual.scaling import MIB, Overheads, ScaledDevice, device_profiles, pace_profile  # noqa: E402
from virtual.turns import Turn  # noqa: E402

MODEL = ROOT / "models" / "lime-fables"
BIN = Path(os.environ.get("LIME_BIN", ROOT / "build" / "release" / "bin"))
OVERHEADS = Overheads(runtime=224 * MIB, activations=16 * MIB)


def devices(disk_bytes_per_second=5e6):
    """Three that hold the shipped model only together, slow enough that pacing is seen."""
    return [ScaledDevice(f"dev{i}", int(MODEL_BYTES * 0.5), 2e8, 1e10, 0.1, disk_bytes_per_second, 0.2) for i in range(3)]


MODEL_BYTES = sum(path.stat().st_size for path in MODEL.glob("*.safetensors"))


def left_behind(tag):
    """Namespaces and groups of a run."""
    groups = [str(path) for kind in ("memory", "blkio", ".") for path in Path("/sys/fs/cgroup", kind).glob(f"{tag}-d*")]
    return groups + [path.name for path in Path("/run/netns").glob(f"{tag}*")]


def make_cluster(folder, specs=None):
    return VirtualCluster(specs or devices(), folder, MODEL, BIN)


class VirtualClusterTest(unittest.TestCase):
    def setUp(self):
        skips.need(self, may_run(), skips.NAMESPACES)
        self.held = tempfile.TemporaryDirectory(dir=ROOT / "build")
        self.folder = Path(self.held.name)

    def tearDown(self):
        self.held.cleanup()

    def test_three_limited_devices_have_the_logits_of_one_process(self):
        request = {"strategy": "lime-paper", "piece": "none", "tokens": 64, "sequences": 1, "prompt_tokens": 16, "time_limit_ms": 1000}
        specs = devices(2.5e6)  # at this rate all steps take about as long: a limit lets bursts through
        profiles = device_profiles(specs, OVERHEADS, 100, 0.3)
        plan = planning.make_plan(BIN / "lime", ["--model", MODEL], profiles, request, self.folder)
        self.assertNotIn("reason", plan)
        self.assertGreater(len(plan["stages"]), 1)
        with make_cluster(self.folder, specs) as cluster:
            cluster.shape_links(100)
            budgets = [device["budget"] for device in plan["devices"]]
            cluster.start_daemons([pace_profile(d) for d in specs], budgets)
            options = {"cluster_toml": cluster.cluster_toml(budgets), "tokens": (8,), "warm_up": 3, "install_s": 60, "patience_s": 120}
            turn = Turn(cluster, plan, options)
            found = turn.run()
            words = [BIN / "lime", "run", "--model", MODEL, "--context", "64", "--max-tokens", "8", "--ignore-eos", "--hash-logits", "--json"]
            alone = json.loads(subprocess.run(words + turn.words()[turn.words().index("--prompt"):], capture_output=True, check=True).stdout)
            cluster.stop_daemons()
            tag = cluster.tag
        self.assertNotIn("failed", found)
        self.assertEqual(found["logits_xxh3"], [alone["logits_xxh3"]])
        self.assertEqual(sum(found["oom_kills"].values()), 0)
        for device in plan["devices"]:
            self.assertLess(found["cgroup_peak_bytes"][device["name"]], device["budget"])
        self.assertGreater(found["ms_per_step"], 0.8 * planning.limits_of(plan)["bound_ms"])  # as slow as the profiles say
        self.assertEqual(left_behind(tag), [])

    def test_a_plan_is_changed_as_kv_outgrows_it(self):
        """Devices and links are what was planned, and KV grows: the change takes as long as was stated, and no bit is another one."""
        words = [ROOT / "testbed" / "outgrow", "--as-planned", "--change-only", "--prompt", "900", "--tokens", "350", "--bin", BIN, "--work", self.folder]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("same tokens and logits", done.stdout)
        self.assertIn("changes to another plan", done.stdout)
        self.assertNotIn("longer than stated", done.stdout)

    def test_what_a_killed_run_leaves_is_cleaned(self):
        script = ("import sys\n"
                  f"sys.path[:0] = [{str(ROOT / 'testbed')!r}, {str(Path(__file__).parent)!r}]\n"
                  "import virtual_cluster_test as test\n"
                  f"with test.make_cluster(test.Path({str(self.folder)!r})) as cluster:\n"
                  "    cluster.start_daemons([None] * 3, [None] * 3)\n"
                  "    print(cluster.tag, *[d.process.pid for d in cluster.devices], flush=True)\n"
                  "    test.signal.pause()\n")
        run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        tag, *pids = run.stdout.readline().split()
        self.assertGreaterEqual(len(left_behind(tag)), 7)  # it was all there: a hub, and of each device a namespace and groups
        run.send_signal(signal.SIGKILL)
        run.wait()
        run.stdout.close()
        self.assertIsNotNone(ledger.start_time(int(pids[0])))  # the daemons do not notice
        cleaned = subprocess.run([ROOT / "testbed" / "clean"], check=False)
        self.assertEqual(cleaned.returncode, 0)
        self.assertEqual(left_behind(tag), [])
        self.assertEqual([pid for pid in pids if ledger.start_time(int(pid)) is not None], [])

    def test_an_interrupt_leaves_nothing(self):
        began = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            with make_cluster(self.folder) as cluster:
                tag = cluster.tag
                signal.raise_signal(signal.SIGTERM)
                self.fail("nothing interrupts it")
        self.assertLess(time.monotonic() - began, 25)
        self.assertEqual(left_behind(tag), [])


def may_run():
    if os.geteuid() != 0:
        return False
    probe = f"ltprobe{os.getpid()}"
    try:
        if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode != 0:
            return False
    except FileNotFoundError:
        return False
    subprocess.run(["ip", "netns", "delete", probe], check=False)
    return os.access("/sys/fs/cgroup/blkio" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup/cgroup.subtree_control", os.W_OK)


if __name__ == "__main__":
    unittest.main()
