"""Tests of the pure parts of testbed/virtual, and of what has to be removed again."""
import csv
import dataclasses
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "testbed"))
from virtual import (catalogue, data_files, experiment, ledger, oracle, planning, progress, report, reproduction, scaling,  # noqa: E402
                     turns, workload)
from virtual.experiment import Experiment, Machine  # noqa: E402

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

    def test_every_model_of_the_catalogue_can_be_made(self):
        for question in catalogue.catalogue():
            config = json.loads((CLUSTERS / f"{question.model()}.json").read_text())
            shape = scaling.scale_model(config, scaling.Factors(question.width))
            self.assertEqual(shape.family, config["model_type"])
            self.assertEqual(shape.heads * shape.head_dim * question.width, config["num_attention_heads"] * config.get("head_dim", 128))
            self.assertTrue((CLUSTERS / f"{question.setting}.json").exists())

    def test_budgets_are_the_scaled_memory_and_that_of_a_process(self):
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
    def test_a_token_lasts_its_computing_and_its_hops(self):
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


def levels(*pages_and_ms):
    return [{"layer_pages": pages, "ms_per_token": ms} for pages, ms in pages_and_ms]


class WorkloadTest(unittest.TestCase):
    def test_redraws_are_seeded_begin_at_once_and_stay_in_their_bounds(self):
        seen = set()
        for seed in range(50):
            drawn = workload.redraws(seed, 200, (3, 10))
            self.assertEqual(drawn, workload.redraws(seed, 200, (3, 10)))
            self.assertEqual(drawn[0][0], 0)
            pauses = [b - a for (a, _), (b, _) in zip(drawn, drawn[1:])]
            self.assertTrue(all(3 <= pause <= 10 for pause in pauses))
            self.assertTrue(all(50 <= mbit <= 250 for _, mbit in drawn))
            self.assertLess(drawn[-1][0], 200)
            seen |= {mbit for _, mbit in drawn}
        self.assertGreater(len(seen), 150)

    def test_a_rate_holds_until_the_next_one(self):
        drawn = [(0, 50), (4, 250), (9, 100)]
        self.assertEqual([workload.rate_at(drawn, token) for token in (0, 3, 4, 8, 9, 50)], [50, 50, 250, 250, 100, 100])

    def test_moments_are_when_the_tokens_are_expected(self):
        step = {50: 4.0, 250: 1.0, 100: 2.0}
        # Token 1 comes after 10 s; 2, 3 and 4 after 4 s each; 5 to 9 after 1 s each.
        found = workload.moments([(0, 50), (4, 250), (9, 100)], 10.0, step.get)
        self.assertEqual(found, [(0.0, 50), (22.0, 250), (27.0, 100)])

    def test_short_prompts_are_one_chunk_together(self):
        plan = {"prompt_tokens": 16, "sequences": 5, "context": 256, "prefill_chunk": 16}
        self.assertEqual(workload.load_of(catalogue.Question("setting-1", requests=5, tokens=9), [plan]), workload.Load(3, (9,) * 5))

    def test_prompts_that_fill_the_context_end_with_it_and_outlast_those_of_the_others(self):
        question = catalogue.Question("setting-2", requests=5, tokens=20, fill=True, context=8192)
        plan = {"prompt_tokens": 128, "sequences": 5, "context": 1024, "prefill_chunk": 64}
        load = workload.load_of(question, [plan])
        self.assertEqual(load.prompt + load.tokens[0], 1024)
        self.assertEqual(load.tokens, tuple(20 + behind * 1024 // 64 for behind in (4, 3, 2, 1, 0)))  # all end together
        alone = workload.load_of(catalogue.Question("setting-2", tokens=20, fill=True, context=8192), [plan | {"sequences": 1}])
        self.assertEqual(alone, workload.Load(1004, (20,)))
        grows = workload.load_of(question, [plan | {"kv_levels": levels((4, 10.0), (6, 20.0), (8, 30.0))}])
        self.assertEqual(grows, workload.Load(load.prompt - workload.LEAD, tuple(of + workload.LEAD for of in load.tokens)))  # the level is waited for
        evicts = plan | {"kept_positions": 64, "kv_levels": levels((4, 10.0), (6, 20.0), (8, 30.0))}
        self.assertEqual(workload.load_of(question, [evicts]), load)  # nothing is
        longer = plan | {"prefill_chunk": 32}
        self.assertEqual(workload.load_of(question, [plan, longer]), workload.load_of(question, [longer]))  # all variants have the same prompts
        self.assertNotEqual(workload.load_of(question, [longer]), load)

    def test_a_prompt_that_leaves_no_room_is_refused(self):
        plan = {"prompt_tokens": 16, "sequences": 5, "context": 64, "prefill_chunk": 4}
        with self.assertRaisesRegex(ValueError, "do not fit in a context of 64"):
            workload.load_of(catalogue.Question("setting-2", requests=5, tokens=20, fill=True), [plan])
        with self.assertRaisesRegex(ValueError, "do not fit in a context of 64"):
            workload.load_of(catalogue.Question("setting-2", tokens=20, start=8 * 60), [plan | {"sequences": 1}])

    def test_a_level_begins_before_its_pages_are_written(self):
        grows = levels((4, 10.0), (6, 20.0), (8, 30.0))
        at = lambda position, end=128: workload.level_of(grows, [position], [end])["ms_per_token"]
        self.assertEqual([at(40), at(41), at(72), at(73)], [10.0, 20.0, 20.0, 30.0])  # 64, 96 and 128 positions, 24 ahead
        self.assertEqual(at(60, end=64), 10.0)  # ends before it would need more
        self.assertEqual(workload.level_of(grows, [20, 20], [30, 30])["layer_pages"], 4)  # all requests together
        self.assertEqual(workload.level_of(grows, [20, 20], [40, 40])["layer_pages"], 6)
        self.assertEqual(workload.level_of(grows, [4000], [5000])["layer_pages"], 8)
        self.assertEqual([workload.level_of(grows, [p], [128], 0)["ms_per_token"] for p in (64, 65)], [10.0, 20.0])  # where nothing is ahead

    def test_requests_that_never_fit_together_are_seen(self):
        self.assertTrue(workload.all_fit(levels((4, 1.0), (10, 2.0)), 70, (10, 10)))
        self.assertFalse(workload.all_fit(levels((4, 1.0), (9, 2.0)), 70, (10, 10)))
        self.assertTrue(workload.all_fit(levels((4, 1.0), (9, 2.0)), 60, (10, 4)))
        self.assertTrue(workload.all_fit([], 70, (10, 10)))

    def test_windows_begin_when_all_requests_run(self):
        """Two requests; the second begins 20 tokens later, until when steps take 3 s, then 1 s, and 2 s from the first's position 100 + 90 on."""
        first, t = [], 0.0
        for token in range(130):
            t += 3.0 if token < 20 else 1.0 if token < 90 else 2.0
            first.append(t)
        times = [first, first[20:] + [first[-1] + 2.0 * (i + 1) for i in range(20)]]
        grows = levels((1, 7.0), (1000, 500.0))
        found = workload.windows(grows, times, 100, 2, size=50)
        self.assertEqual([(w["from"], w["to"]) for w in found], [(123, 172), (173, 222)])
        self.assertAlmostEqual(found[0]["measured_ms"], 1000 / 2)
        self.assertAlmostEqual(found[1]["measured_ms"], 1000 * (17 * 1.0 + 33 * 2.0) / 50 / 2)
        self.assertAlmostEqual(found[0]["predicted_ms"], 500.0)

    def test_the_prediction_of_a_window_follows_the_levels(self):
        times = [[float(token) for token in range(1, 91)]]
        # Position p of token i is i + 1: from p = 41 on (24 ahead of 64) the second level. A window
        # from token 3 to 52 (positions 4 to 53).
        found = workload.windows(levels((4, 100.0), (8, 200.0)), times, 0, 2)
        self.assertEqual(len(found), 1)
        self.assertAlmostEqual(found[0]["predicted_ms"], (37 * 100 + 13 * 200) / 50)


class PlanningTest(unittest.TestCase):
    def test_slower_links_slow_a_plan_that_waits_for_them(self):
        plan = a_plan()  # bound by its way: 12 + 2 hops of 0.5 + 0.25, predicted 14
        self.assertAlmostEqual(planning.step_ms(plan, 1.0), 14.0)
        self.assertAlmostEqual(planning.step_ms(plan, 0.5), 14.0 * 14.5 / 13.5)
        plan["devices"][1]["disk_mb_per_ms"] = 0.1  # 40 ms of reading: hops do not matter
        self.assertAlmostEqual(planning.step_ms(plan, 0.5), 14.0)

    def test_kv_that_grows_is_another_question(self):
        request = {"strategy": "lime", "piece": 1, "tokens": 64, "sequences": 1, "prompt_tokens": 8, "time_limit_ms": 5}
        self.assertNotIn("--kv-tokens", planning.plan_words([], request))
        self.assertEqual(planning.plan_words([], request | {"kv_tokens": 16})[-2:], ["--kv-tokens", "16"])


class CatalogueTest(unittest.TestCase):
    def test_names_are_unique_and_select(self):
        every = catalogue.catalogue()
        names = [q.name() for q in every]
        self.assertEqual(len(set(names)), len(names))
        self.assertEqual({q.group for q in every}, set(catalogue.GROUPS))
        self.assertEqual(catalogue.select(every, []), every)
        self.assertEqual({q.name() for q in catalogue.select(every, ["windows", "setting-2-200mbit-1"])},
                         {"windows-setting-2-1", "windows-setting-2-5", "setting-2-200mbit-1"})
        with self.assertRaisesRegex(ValueError, "no-such"):
            catalogue.select(every, ["no-such"])

    def test_the_paper_s_experiments_are_there(self):
        asked = {(q.setting, q.mbit, q.requests) for q in catalogue.catalogue() if q.group in ("clusters", "settings")}
        self.assertEqual(len(asked), 24)
        self.assertIn(("e3", 100, 4), asked)  # bursty: as many requests as devices
        for question in catalogue.settings():
            expected = [s for s in catalogue.STRATEGIES if question.requests > 1 or s != "pp-offload-batched"]
            self.assertEqual([v.name for v in question.variants], expected)
        self.assertEqual({(q.context, q.requests) for q in catalogue.ablation()}, {(c, r) for c in (2048, 8192, 32768) for r in (1, 5)})

    def test_every_question_can_be_planned_and_run(self):
        for question in catalogue.catalogue() + [catalogue.quick(q) for q in catalogue.catalogue()]:
            self.assertGreaterEqual(question.tokens, question.warm_up + 2)
            self.assertLessEqual(question.context // question.width, 4096)  # positions that the models have
            if question.kv_tokens:
                self.assertLessEqual(question.prompt_tokens, question.kv_tokens // question.width)


class ExperimentTest(unittest.TestCase):
    def setUp(self):
        self.held = tempfile.TemporaryDirectory()
        self.folder = Path(self.held.name)

    def tearDown(self):
        self.held.cleanup()

    def experiment(self, **changes):
        """With plans as if they were made, and one that is out of memory."""
        variants = (catalogue.Variant("lime", "lime"), catalogue.Variant("slow", "pp-offload"), catalogue.Variant("pp", "pp"))
        question = catalogue.Question("setting-1", variants=variants, rounds=2, **changes)
        made = Experiment(question, Machine(bin=self.folder, work=self.folder), lambda *_: None)
        plan = a_plan(prompt_tokens=16, prefill_chunk=16, context=256, kv_levels=[])
        plan["predicted"] = plan["predicted"] | {"ttft_ms": 100.0}
        made.plans = {"lime": plan | {"path": "a"}, "slow": plan | {"path": "b"}, "pp": {"reason": "no memory"}}
        made.folder.mkdir()
        return made

    def keep(self, made, strategy, turn_round, **what):
        variant = next(v for v in made.question.variants if v.name == strategy)
        made.keep({"strategy": strategy, "round": turn_round, "plan": made.plans[strategy]["path"], "tokens": made.question.tokens,
                   "asked": made.asked(variant, turn_round), "limits": {}} | what)

    def left(self, made):
        return [(variant.name, turn_round) for variant, turn_round in made.schedule()]

    def test_turns_alternate_and_are_not_run_again(self):
        made = self.experiment()
        self.assertEqual(self.left(made), [("lime", 0), ("slow", 0), ("lime", 1), ("slow", 1)])
        self.keep(made, "lime", 0, ms_per_token=1.0)
        self.keep(made, "slow", 0, failed="the machine went down")
        self.assertEqual(self.left(made), [("slow", 0), ("lime", 1), ("slow", 1)])
        made.plans["lime"] = made.plans["lime"] | {"path": "another"}
        self.assertEqual(self.left(made)[0], ("lime", 0))

    def test_flags_that_change_no_plan_are_not_run(self):
        made = self.experiment()
        flagged = catalogue.Variant("lime --no-kv-lending", "lime", plan_flags=("--no-kv-lending",))
        made.question = dataclasses.replace(made.question, variants=made.question.variants + (flagged,))
        made.plans[flagged.name] = made.plans["lime"] | {"path": "c"}
        self.assertEqual(made.same_as(flagged), "lime")
        self.assertNotIn(flagged.name, [name for name, _ in self.left(made)])
        self.assertEqual(report.summarise_strategy(flagged.name, made.plans[flagged.name], [], made.runs(flagged), "lime")["outcome"], "same plan as lime")
        made.plans[flagged.name] |= {"prefill_chunk": 8}
        self.assertIsNone(made.same_as(flagged))
        self.assertIn(flagged.name, [name for name, _ in self.left(made)])

    def test_what_is_refused_once_is_not_asked_again(self):
        made = self.experiment()
        self.keep(made, "slow", 0, refused="the request needs KV")
        self.assertEqual(self.left(made), [("lime", 0), ("lime", 1)])

    def test_turns_of_another_question_do_not_count(self):
        made = self.experiment(pause=(3, 10), tokens=40)
        self.keep(made, "lime", 0, ms_per_token=1.0)
        self.assertNotIn(("lime", 0), self.left(made))
        self.keep(made, "lime", 1, ms_per_token=1.0, asked=[3, [], [[0, 77]], 3])
        self.assertIn(("lime", 1), self.left(made))
        self.assertEqual(made.redraws(0), made.redraws(0))
        self.assertNotEqual(made.redraws(0), made.redraws(1))

    def test_the_paper_s_limits_of_time_hold(self):
        made = self.experiment()
        made.plans["slow"]["predicted"] = {"ms_per_token": 40001.0, "ms_per_step": 40001.0, "ttft_ms": 1.0}
        self.assertEqual({name for name, _ in self.left(made)}, {"lime"})
        self.assertEqual(catalogue.out_of_time_ms(5), 15000)

    def test_without_plans_a_duration_is_guessed(self):
        made = self.experiment()
        made.plans = {}
        self.assertEqual({name for name, _ in self.left(made)}, {"lime", "slow"})
        self.assertGreater(sum(made.turn_seconds(variant) for variant, _ in made.schedule()), 60)


def a_result(**changes):
    """Of Setting 2, sporadic."""
    rows = [report.summarise_strategy("lime", a_plan(), [a_turn(10.0)], True),
            report.summarise_strategy("lime-paper", a_plan(), [a_turn(12.0)], True),
            report.summarise_strategy("pp-offload", a_plan(), [a_turn(25.0)], True),
            report.summarise_strategy("pp", {"reason": "no memory"}, [], False)]
    return {"name": "x", "group": "settings", "setting": "setting-2", "mbit": 200, "requests": 1, "context": 2048, "strategies": rows,
            "model": {"bytes": 2e9}, "link": {"asked_mbit": 25.0, "measured_mbit": None, "round_trip_ms": None}, "real_compute_share": 0.1,
            "oom_kills": 0, "same_tokens_and_logits": True, "devices": [], "factors": []} | changes


class ReproductionTest(unittest.TestCase):
    def test_the_page_says_what_has_not_run(self):
        page = reproduction.page([], scaling.Factors().table())
        for group in catalogue.GROUPS:
            self.assertIn(f"testbed/reproduce --only {group}", page)
        self.assertEqual(page.count("not run yet"), len(catalogue.CLAIMS))

    def test_the_paper_s_factors_stand_beside_ours_over_its_baselines_alone(self):
        one, two = a_result(group="clusters", setting="e1"), a_result(group="clusters", setting="e2")
        two["strategies"][2] = report.summarise_strategy("pp-offload", a_plan(), [a_turn(40.0)], True)
        lines = reproduction.beside_claims([one, two]).splitlines()
        self.assertIn("| 12 to 14 | sporadic | 200 | 1.4 to 6.5 | 2.5 to 4.0 | 2.5 to 4.0 |", lines)  # lime-paper, 1.2, is no baseline
        self.assertIn("| 12 to 14 | sporadic | 100 | 2.5 to 7.6 | not run yet |  |", lines)

    def test_settings_name_who_has_no_figure(self):
        self.assertIn("| 16 | setting-2 | sporadic | 200 | 2.50 (pp-offload) | pp | none |", reproduction.settings_beside([a_result()]))

    def test_the_ablation_is_in_shares_of_full_speed(self):
        grown = {"predicted_ms": 9.0, "kv_levels": levels((1, 5.0), (2, 9.0))}
        rows = [report.summarise_strategy("lime", a_plan(), [a_turn(10.0, **grown)], True),
                report.summarise_strategy("lime --no-memory-planner", a_plan(), [a_turn(16.0, **grown)], True),
                report.summarise_strategy("lime --online paper", a_plan(), [{"refused": "the request needs KV", "oom_kills": {}}], True)]
        self.assertEqual((rows[0]["predicted_ms"], rows[0]["bound_ms"]), (9.0, None))  # of the level, not of the plan; whose bound is another's
        lines = reproduction.ablation_table([a_result(group="ablation", context=8192, strategies=rows)]).splitlines()
        self.assertIn("| 8192 | sporadic | `lime --no-memory-planner` |  | 9 | 16 | 0.62 | 2251.7 | 0.67 |", lines)
        self.assertIn("| 8192 | sporadic | `lime --online paper` |  |  | out of memory |  |  |  |", lines)

    def test_predictions_at_full_size_stand_beside_those_of_the_scale(self):
        question = catalogue.Question("setting-2", requests=2, context=8192)
        grows = levels((256, 100.0), (512, 200.0), (1024, 400.0))
        # 2 requests at 8 x 200 = 1600 positions: 2 x 102 pages with what the next 24 steps write; 2
        # x 252 at 8 x 500.
        self.assertEqual([workload.full_size_ms(grows, {"from": p, "to": p}, question, 24) for p in (200, 500)], [100.0, 200.0])
        self.assertIsNone(workload.full_size_ms([], {"from": 1, "to": 50}, question, 24))
        row = report.summarise_strategy("lime", a_plan(), [a_turn(10.0)], True) | {"full_size_ms": 7.4}
        self.assertIn("| 8192 | sporadic | `lime` | 7 | ", reproduction.ablation_table([a_result(group="ablation", context=8192, strategies=[row])]))
        self.assertIn("| 8192 | `lime` | 7 | ", reproduction.lending_table([a_result(group="lending", context=8192, strategies=[row])]))
        window = {"from": 1, "to": 50, "measured_ms": 100.0, "predicted_ms": 105.0, "full_size_ms": 99.0}
        grown = a_result(strategies=[report.summarise_strategy("lime", a_plan(), [a_turn(10.0, windows=[window])], True)])
        self.assertIn("| 1 to 50 | 99 | 105 | 100 |", reproduction.window_table([grown]))

    def test_windows_that_are_off_are_marked(self):
        turn = a_turn(10.0, windows=[{"from": 1, "to": 50, "measured_ms": 100.0, "predicted_ms": 105.0},
                                     {"from": 51, "to": 100, "measured_ms": 100.0, "predicted_ms": 120.0}])
        result = a_result(strategies=[report.summarise_strategy("lime", a_plan(), [turn], True)])
        lines = reproduction.window_table([result]).splitlines()[2:]
        self.assertEqual([("off by more" in line) for line in lines], [False, True])

    def test_failures_and_other_bits_are_reported(self):
        row = report.summarise_strategy("lime", a_plan(), [{"failed": "device a\nhas gone"}], True)
        self.assertEqual((row["outcome"], row["reason"]), ("failed", "device a\nhas gone"))
        said = reproduction.troubles([a_result(strategies=[row], same_tokens_and_logits=False)])
        self.assertIn("device a has gone", said)
        self.assertIn("DIFFER", said)
        self.assertEqual(reproduction.troubles([a_result()]), "")

    def test_a_page_of_every_group_has_its_tables(self):
        results = [a_result(group=group, setting="setting-2") for group in catalogue.GROUPS]
        page = reproduction.page(results, scaling.Factors().table())
        self.assertIn("| setting-2 | 1 | 200 | 10 | 12 | 25 | out of memory |", page)
        self.assertIn("the same tokens and logits", page)
        self.assertIn("reproduction-settings.svg", page)
        self.assertNotIn("reproduction-windows.svg", page)  # nothing was seen over windows

    def test_a_variant_with_the_plan_of_lime_has_no_row(self):
        rows = [report.summarise_strategy("lime", a_plan(), [a_turn(10.0)], True),
                report.summarise_strategy("lime --no-kv-spill", a_plan(), [], False, "lime")]
        ran = [rows[0], report.summarise_strategy("lime --no-kv-spill", a_plan(), [a_turn(11.0)], True)]
        table = reproduction.ablation_table([a_result(group="ablation", context=2048, strategies=rows),
                                             a_result(group="ablation", context=8192, strategies=ran)])
        self.assertEqual(table.count("| `lime --no-kv-spill`"), 1)
        self.assertIn("\n- 2048 sporadic, as `lime`: `lime --no-kv-spill`\n", table)
        self.assertNotIn("- 8192", table)

    def test_lines_of_prose_end_within_100_characters(self):
        results = [a_result(group=group, setting="setting-2") for group in catalogue.GROUPS]
        prose = [line for line in reproduction.page(results, scaling.Factors().table()).splitlines() if not line.startswith("|")]
        self.assertEqual([line for line in prose if len(line) > 100], [])

    def test_data_files_have_a_row_for_each_strategy_and_each_device(self):
        device = {"name": "a", "weights_memory": 220e6, "runtime": 183.5e6, "disk_asked": 15.6e6, "disk_measured": [15.5e6, 15.7e6]}
        result = a_result(devices=[device])
        rows = list(csv.DictReader(io.StringIO(data_files.as_csv(data_files.STRATEGY_COLUMNS, data_files.strategy_rows([result])))))
        self.assertEqual([(r["strategy"], r["outcome"], r["measured_ms"], r["lime_faster_by"]) for r in rows],
                         [("lime", "ran", "10.000", ""), ("lime-paper", "ran", "12.000", "1.200000"), ("pp-offload", "ran", "25.000", "2.500000"),
                          ("pp", "OOM", "", "")])
        self.assertEqual(rows[3]["reason"], "no memory")
        row, = csv.DictReader(io.StringIO(data_files.as_csv(data_files.CONDITION_COLUMNS, data_files.condition_rows([result]))))
        self.assertEqual([row[c] for c in ("device", "disk_asked_mb_s", "disk_least_mb_s", "disk_most_mb_s", "link_least_mbit")], ["a", "15.6", "15.5", "15.7", ""])
        self.assertEqual((row["peak_mb"], row["same_tokens_and_logits"]), (f"{rows_peak(result):.1f}", "yes"))


def rows_peak(result):
    return report.closest(result, "a")["peak"] / 1e6


class FullKvTest(unittest.TestCase):
    def test_prompts_fill_the_context_but_for_what_is_generated(self):
        question = catalogue.full_kv(next(q for q in catalogue.catalogue() if q.group == "clusters"))
        plan = {"context": question.context // question.width, "sequences": 1, "prefill_chunk": 64, "prompt_tokens": 64}
        load = workload.load_of_plan(question, plan)
        self.assertEqual((load.prompt + load.tokens[0], load.tokens), (256, (20,)))

    def test_prompts_are_different_parts_of_a_text(self):
        story = experiment.stories()
        texts = turns.prompts(4, 4096, story)
        self.assertEqual({len(text) for text in texts}, {4095})
        self.assertEqual(len(set(texts)), 4)
        self.assertTrue(texts[0].startswith(story[:100]) and story.isascii())

    def test_turns_of_other_prompts_do_not_count(self):
        window = next(q for q in catalogue.catalogue() if q.group == "windows")
        self.assertEqual((catalogue.full_kv(window).text, catalogue.full_kv(window).fill), (True, False))


class FakeTerminal(io.StringIO):
    def isatty(self):
        return True


class ProgressTest(unittest.TestCase):
    def test_the_rest_is_as_much_longer_as_the_work_done(self):
        now = [0.0]
        shown = progress.Progress("turn", 4, 400.0, FakeTerminal(), lambda: now[0])
        self.assertEqual(shown.line(), "turn 0 of 4, 7 min left")
        now[0] = 200.0
        shown.piece_done(100.0)
        self.assertEqual(shown.line(), "turn 1 of 4, 0.3 a minute, 10 min left")
        self.assertIn("turn 1 of 4", shown.stream.getvalue())

    def test_a_pipe_sees_nothing(self):
        pipe = io.StringIO()
        shown = progress.Progress("turn", 2, 10.0, pipe)
        shown.say("words")
        shown.piece_done(5.0)
        shown.end()
        self.assertEqual(pipe.getvalue(), "")

    def test_hours_are_said_as_hours(self):
        self.assertEqual([progress.span(s) for s in (3, 90 * 60, 2.5 * 3600)], ["1 min", "90 min", "2 h 30 min"])


class OracleTest(unittest.TestCase):
    def test_it_uses_the_best_plan_at_every_token(self):
        asked = []

        def simulate(plan, link_speed):
            asked.append((plan, link_speed))
            return plan["compute"] + plan["wire"] / link_speed

        plans = {50: {"compute": 200, "wire": 10}, 100: {"compute": 100, "wire": 60}}
        known = oracle.Oracle(plans, 100, lambda plan, speed: simulate(plan, speed))
        # At 100: 100 + 60 beside 200 + 5. At 25: 100 + 240 beside 200 + 20.
        self.assertEqual(known.beside([100, 100, 25]), ((160 + 160 + 340) / 3, (160 + 160 + 220) / 3))
        self.assertEqual(len(asked), 4)

    def test_questions_without_redraws_need_none(self):
        question = catalogue.Question("setting-1")
        made = Experiment(question, Machine(bin=Path("."), work=Path(".")), lambda *_: None)
        self.assertEqual(made.oracle_rates(), [])
        self.assertIsNone(made.beside_oracle([]))
        varying = next(q for q in catalogue.catalogue() if q.group == "varying")
        made = Experiment(varying, Machine(bin=Path("."), work=Path(".")), lambda *_: None)
        self.assertIn(varying.mbit, made.oracle_rates())
        self.assertEqual(made.oracle_seconds(made.oracle_rates()), 20 * len(made.oracle_rates()))


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
        stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; echo ignores it; while :; do sleep 0.05; done"], stdout=subprocess.PIPE)
        stubborn.stdout.readline()
        ledger.end_processes([(stubborn.pid, ledger.start_time(stubborn.pid))], patience_s=0.3)
        self.assertEqual(stubborn.wait(timeout=10), -9)
        stubborn.stdout.close()

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
