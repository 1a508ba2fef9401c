"""Tests of the pure parts of testbed/virtual, and of what has to be removed again."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "testbed"))
from virtual import ledger, planning, report, scaling, turns  # noqa: E402

CLUSTERS = ROOT / "testbed" / "clusters"


def full_size():
    config = json.loads((CLUSTERS / "llama-3.3-70b.json").read_text())
    devices = json.loads((CLUSTERS / "setting-1.json").read_text())["devices"]
    return config, devices


class ScalingTest(unittest.TestCase):
    def test_times_are_those_of_the_full_size(self):
        config, devices = full_size()
        for width in (4, 8):
            factors = scaling.Factors(width)
            model, full = scaling.scale_model(config, factors), scaling.scale_model(config, scaling.Factors(1))
            self.assertEqual(model.layers, full.layers)
            self.assertEqual(model.weight_bytes() * factors.weights, full.weight_bytes())
            for device in devices:
                small = scaling.scale_device(device, factors, model)
                # Reading a layer from memory or disk, and the share of the memory that it takes.
                self.assertAlmostEqual(model.weight_bytes() / small.read_bytes_per_second, full.weight_bytes() / device["read_bytes_per_second"])
                self.assertAlmostEqual(model.weight_bytes() / small.disk_bytes_per_second, full.weight_bytes() / device["disk"]["bytes_per_second"])
                planned = model.weight_bytes() + model.read_ends()
                self.assertAlmostEqual(planned / small.weights_memory, full.weight_bytes() / device["memory_bytes"], places=5)
                # KV of a token is 1/width, and so is the context.
                kv = model.kv_heads * model.head_dim / (full.kv_heads * full.head_dim)
                self.assertAlmostEqual(kv / width, 1 / factors.weights)
            self.assertAlmostEqual(model.hidden / (200e6 / width), full.hidden / 200e6)  # a hidden state on the wire

    def test_the_model_has_two_gigabytes_at_the_default_factor(self):
        model = scaling.scale_model(full_size()[0], scaling.Factors())
        self.assertGreaterEqual(model.weight_bytes(), 2_000_000_000)
        self.assertEqual(model.layers, 80)

    def test_a_factor_that_does_not_divide_is_refused(self):
        with self.assertRaisesRegex(ValueError, "num_key_value_heads = 8 cannot be divided by 16"):
            scaling.scale_model(full_size()[0], scaling.Factors(16))

    def test_budgets_are_the_scaled_memory_and_what_a_process_takes(self):
        device = scaling.scale_device(full_size()[1][0], scaling.Factors(), scaling.scale_model(full_size()[0], scaling.Factors()))
        overheads = scaling.Overheads(runtime=100, activations=20, margin=3)
        described = scaling.device_profiles([device], overheads, 25, 0.3)
        self.assertEqual(described["devices"][0]["memory_bytes"], device.weights_memory + 123)
        self.assertEqual(described["link"]["bytes_per_second"], 25e6 / 8)
        self.assertEqual(scaling.pace_profile(device)["read_bytes_per_second"], described["devices"][0]["read_bytes_per_second"])


def a_plan(**changes):
    """Two devices, three stages; the second device streams one part at 2 MB/ms."""
    part = {"bytes": 4_000_000, "decode_ms": 3.0}
    return {"devices": [{"name": "a", "disk_mb_per_ms": 1, "budget": 10}, {"name": "b", "disk_mb_per_ms": 2, "budget": 20}],
            "parts": [part, part | {"streamed": True}, part, part], "sequences": 1, "microbatches": 1, "batch": 1,
            "stages": [{"device": 0, "lo": 0, "hi": 1}, {"device": 1, "lo": 1, "hi": 3}, {"device": 0, "lo": 3, "hi": 4}],
            "decode": {"tx_ms": 0.5, "lat_ms": 0.25, "embed_rows_ms": 1.0}, "predicted": {"ms_per_token": 14.0, "ms_per_step": 14.0}} | changes


class BoundTest(unittest.TestCase):
    def test_a_token_takes_its_computing_and_its_hops(self):
        bounds = planning.limits_of(a_plan())
        self.assertEqual(bounds["path_ms"], 4 * 3.0 + 2 * 0.75)  # ends on the device where it begins: no hop for the token
        self.assertEqual(bounds["reads_ms"], {"b": 2.0})
        self.assertEqual(bounds["bound_ms"], 13.5)

    def test_the_token_goes_back_where_the_last_device_is_another(self):
        plan = a_plan(stages=[{"device": 0, "lo": 0, "hi": 1}, {"device": 1, "lo": 1, "hi": 4}], embedding="by_rows")
        self.assertEqual(planning.limits_of(plan)["path_ms"], 12 + 0.75 + 0.25 + 1.0)

    def test_the_slowest_disk_bounds_where_it_is_slower(self):
        plan = a_plan(sequences=5, microbatches=5, reads="per_microbatch")
        plan["devices"][1]["disk_mb_per_ms"] = 0.1
        bounds = planning.limits_of(plan)
        self.assertAlmostEqual(bounds["reads_ms"]["b"], 5 * 40)  # again for every micro-batch
        self.assertAlmostEqual(bounds["bound_ms"], 200)

    def test_the_busiest_device_bounds_several_microbatches(self):
        self.assertEqual(planning.limits_of(a_plan(sequences=5, microbatches=5))["bound_ms"], 5 * 6.0)


def a_turn(ms, **changes):
    return {"strategy": "lime", "round": 0, "ms_per_token": ms, "token_ids": [[1, 2]], "logits_xxh3": ["ab"], "real_compute_share": 0.1,
            "cgroup_peak_bytes": {"a": 8, "b": 9}, "oom_kills": {"a": 0, "b": 0}} | changes


class ReportTest(unittest.TestCase):
    def test_medians_beside_prediction_and_bound(self):
        row = report.summarise_strategy("lime", a_plan(), [a_turn(14.0), a_turn(20.0), a_turn(15.0)], True)
        self.assertEqual((row["outcome"], row["measured_ms"], row["least_ms"], row["most_ms"], row["turns"]), ("ran", 15.0, 14.0, 20.0, 3))
        self.assertAlmostEqual(row["over_predicted"], 15 / 14)
        self.assertAlmostEqual(row["over_bound"], 15 / 13.5)
        self.assertEqual(row["memory"]["b"], {"limit": 20, "peak": 9})

    def test_what_does_not_run_says_why(self):
        self.assertEqual(report.summarise_strategy("pp", {"reason": "no memory"}, [], False)["outcome"], "OOM")
        self.assertEqual(report.summarise_strategy("pp", a_plan(), [], False)["outcome"], "OOT")

    def test_other_bits_are_seen(self):
        self.assertTrue(report.same_bits([a_turn(1), a_turn(2)]))
        self.assertFalse(report.same_bits([a_turn(1), a_turn(2, logits_xxh3=["ac"])]))

    def test_ratios_are_over_lime(self):
        result = {"strategies": [report.summarise_strategy("lime", a_plan(), [a_turn(10.0)], True),
                                 report.summarise_strategy("pp-offload", a_plan(), [a_turn(25.0)], True),
                                 report.summarise_strategy("pp", {"reason": ""}, [], False)]}
        self.assertEqual(report.ratios(result), {"pp-offload": 2.5})


    def test_tables_replace_those_before(self):
        page = "title\n<!-- a -->\nold\n<!-- z -->\nrest\n"
        self.assertEqual(report.put_between(page, "<!-- a -->", "<!-- z -->", "new\n"), "title\n<!-- a -->\nnew\n<!-- z -->\nrest\n")
        with self.assertRaises(ValueError):
            report.put_between("no marks", "<!-- a -->", "<!-- z -->", "new")


class TurnTest(unittest.TestCase):
    def test_the_time_of_a_step_is_that_after_the_warm_up(self):
        self.assertAlmostEqual(turns.step_ms([[0.0, 9.0, 10.0, 12.0, 14.0]], 2), 2000)

    def test_only_the_time_in_which_all_requests_run_counts(self):
        early, late = [0.0, 10.0, 13.0, 16.0, 18.0], [10.1, 13.1, 16.1, 18.1, 19.1]  # a second less for each step when one has ended
        self.assertAlmostEqual(turns.step_ms([early, late], 1), 2500)
        with self.assertRaises(RuntimeError):
            turns.step_ms([[0.0, 1.0, 2.0], [5.0, 6.0, 7.0]], 1)

    def test_prompts_differ_and_have_the_asked_length(self):
        texts = turns.prompts(5, 40)
        self.assertEqual(len(set(texts)), 5)
        self.assertEqual({len(text) for text in texts}, {39})
        self.assertEqual({len(text) for text in turns.prompts(5, 3)}, {2})


class LedgerTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "run.jsonl")

    def tearDown(self):
        self.folder.cleanup()

    def test_only_the_process_that_was_started_is_ended(self):
        mine, other = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
        book = ledger.Ledger(self.path)
        book.add_process(mine.pid)
        book.write({"pid": other.pid, "began": 1})  # the id has been given to another process since
        self.assertEqual(book.remove_all(lambda _: 0), [])
        self.assertEqual(mine.wait(timeout=10), -15)
        self.assertIsNone(other.poll())
        other.kill()
        other.wait()

    def test_what_ignores_the_request_is_killed(self):
        stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"])
        time.sleep(0.2)
        ledger.end_processes([(stubborn.pid, ledger.start_time(stubborn.pid))], patience_s=0.3)
        self.assertEqual(stubborn.wait(timeout=10), -9)

    def test_a_half_written_line_is_passed_over(self):
        book = ledger.Ledger(self.path)
        book.add_namespace("lt-no-such")
        with open(self.path, "a", encoding="utf-8") as file:
            file.write('{"netns": "lt')
        self.assertEqual(book.entries(), [{"netns": "lt-no-such"}])
        self.assertEqual(book.remove_all(lambda _: 1), [])  # is not there: nothing to remove
        self.assertFalse(self.path.exists())

    def test_a_run_under_way_is_not_abandoned(self):
        book = ledger.Ledger(self.path)
        book.write({"owner": os.getpid(), "began": ledger.start_time(os.getpid())})
        self.assertTrue(book.owner_runs())
        gone = subprocess.Popen(["true"])
        gone.wait()
        other = ledger.Ledger(Path(self.folder.name, "other.jsonl"))
        other.write({"owner": gone.pid, "began": 5})
        self.assertFalse(other.owner_runs())


if __name__ == "__main__":
    unittest.main()
