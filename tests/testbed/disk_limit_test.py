"""A run under a limit on its disk that nothing told it of: what it predicts once its weights are loaded is what a token takes. As root, in
LIME_BIN the folder of lime and make_model. Exit code 77 where control groups may not be made.

By hand, with a larger model: LIME_DISK_LIMIT_TEST="MODEL=3e9 RATE=200e6" python3 tests/testbed/disk_limit_test.py
"""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import cgroups  # noqa: E402

BIN = Path(os.environ.get("LIME_BIN", ROOT / "build" / "release" / "bin"))
SIZES = {"MODEL": 500e6, "RATE": 100e6}
SIZES.update((name, float(value)) for name, value in (word.split("=") for word in os.environ.get("LIME_DISK_LIMIT_TEST", "").split()))
MOST_APART = 0.10


def make_model(folder, size):
    """Random weights of about `size` bytes."""
    hidden = 1024 if size < 1e9 else 2048
    layers = max(4, round(size / (2 * (4 * hidden * hidden + 3 * hidden * 4 * hidden))))
    subprocess.run([BIN / "make_model", "--out", folder, "--layers", str(layers), "--hidden", str(hidden), "--heads", "16", "--kv-heads", "16",
                    "--intermediate", str(4 * hidden), "--vocab", "2048"], check=True, stdout=subprocess.DEVNULL)
    files = list(Path(folder).glob("*.safetensors"))
    for file in files:  # what the page cache holds is not read from the disk
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sum(file.stat().st_size for file in files)


class DiskLimitTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.held = tempfile.TemporaryDirectory(dir=ROOT / "build")
        cls.model = Path(cls.held.name) / "model"
        cls.bytes = make_model(cls.model, SIZES["MODEL"])

    @classmethod
    def tearDownClass(cls):
        cls.held.cleanup()

    def run_limited(self, share):
        """What `lime run --json` says with that share of the model's bytes as memory, and its sentences."""
        with cgroups.Group(read_bps=(cgroups.disk_of(self.model), int(SIZES["RATE"]))) as group:
            process = group.start([BIN / "lime", "run", "--model", self.model, "--memory", str(int(share * self.bytes)), "-p", "Once", "-n", "6",
                                   "--ignore-eos", "--json"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "XDG_CACHE_HOME": self.held.name})
            out, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        return json.loads(out), err

    def disk_rate(self):
        """Bytes per second that a reader of its own gets under the same limit, past the page cache."""
        file = max(self.model.glob("*.safetensors"), key=lambda file: file.stat().st_size)
        count = max(1, min(file.stat().st_size, int(2 * SIZES["RATE"])) // (4 << 20))
        with cgroups.Group(read_bps=(cgroups.disk_of(self.model), int(SIZES["RATE"]))) as group:
            start = time.monotonic()
            process = group.start(["dd", f"if={file}", "of=/dev/null", "bs=4M", f"count={count}", "iflag=direct"], stderr=subprocess.PIPE, text=True)
            _, err = process.communicate()
            elapsed = time.monotonic() - start
        self.assertEqual(process.returncode, 0, err)
        return count * (4 << 20) / elapsed

    def check(self, share):
        rate = self.disk_rate()
        answer, said = self.run_limited(share)
        predicted, measured, planned = answer["predicted_ms_per_token"], answer["ms_per_token"], answer["prediction"]["planned_ms"]
        bound = answer["streaming"]["streamed_bytes_per_step"] / SIZES["RATE"] * 1000
        print(f"{share:.0%} of {self.bytes / 1e9:.2f} GB at {SIZES['RATE'] / 1e6:.0f} MB/s, of which a reader alone gets {rate / 1e6:.0f}: planned {planned:.0f} ms a token, predicted {predicted:.0f}, "
              f"measured {measured:.0f} ({predicted / measured:.3f}), the limit alone {bound:.0f}", flush=True)
        self.assertLess(abs(predicted / measured - 1), MOST_APART)
        self.assertLess(planned, 0.7 * measured, "the limit is felt, or nothing is shown")
        self.assertIn("MB/s (1.00 GB/s was assumed)", said)

    def test_most_of_the_model_in_memory(self):
        self.check(0.9)

    def test_more_than_half_of_the_model_in_memory(self):
        self.check(0.6)


if __name__ == "__main__":
    try:
        with cgroups.Group(read_bps=(cgroups.disk_of(ROOT), 1 << 40)):
            pass
    except (cgroups.Unavailable, OSError) as missing:
        print(missing)
        sys.exit(77)
    unittest.main()
