"""The page that bench/flash_page.py makes of answers of `lime bench flash --json`."""
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import flash_page  # noqa: E402


def rung(name, io_ms, paper=None, **other):
    return {"name": name, "rows": 7, "streamed_bytes": 0, "held_gb": 1.5, "read_mb": 20, "gb_per_s": 0.5, "neurons": 3, "reads": 1234, "io_ms": io_ms,
            "predicted_ms": io_ms / 2, "ratio": 2, "manage_ms": 0.5, "moves": 4, "whole_ms": None, "paper": paper, **other}


NAIVE = {"memory_gb": 0, "read_gb": 13.4, "gb_per_s": 6.1, "io_ms": 2130}
BUNDLES = {"memory_gb": 6.5, "read_gb": 0.2, "gb_per_s": 2.25, "io_ms": 87}
ANSWER = {
    "disk": "O_DIRECT", "layers": 8, "neurons": 16384, "weight_bytes": 3_650_000_000, "mlp_bytes": 2_150_000_000, "bundle_bytes": 16384,
    "masks": {"rank": 128, "active": 0.031, "predicted": 0.095, "missed": 0.05, "false_positives": 0.07, "unions": [0.095, 0.14, 0.17, 0.2, 0.225, 0.247]},
    "burst": {"burst_ms": 0.1, "read_ms": 0.0084, "bytes_per_ms": 1.33e6, "mean_error": 0.04}, "sequential_gb_per_s": 1.3,
    "bursts": [], "rates": [{"bytes": 4096, "depth": 1, "gb_per_s": 0.05}, {"bytes": 16384, "depth": 1, "gb_per_s": 0.2}],
    "ladder": [rung("naive", 2800, NAIVE), rung("+ bundling", 70, BUNDLES, whole_ms=123.4), rung("exact", 50)],
    "engine": [{"name": "off", "memory_bytes": 0, "read_mb": 3650, "reads": 0, "neurons": 0, "io_ms": 2900, "predicted_ms": 2800, "whole_ms": 3000},
               {"name": "exact", "memory_bytes": 10**9, "why_not": "needs more memory"}],
    "memory": [{"share": 0.35, **rung("p", 90)}, {"share": 0.8, **rung("p", 10)}],
    "placements": [{"placement": "stable", "manage_ms": 0.5, "io_ms": 50, "moves": 0}],
}


class FlashPageTest(unittest.TestCase):
    def rows(self, table):
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]

    def test_the_papers_figures_stand_beside_ours(self):
        rows = self.rows(flash_page.ladder(ANSWER))
        self.assertEqual(len(rows[2]), len(flash_page.COLUMNS))
        self.assertEqual(rows[3], ["+ bundling", "1.500", "20.0", "0.50", "1,234", "70.0", "35.0", "2.00", "40.0", "123.4", "6.5", "0.2", "2.25", "87", "24.5"])
        self.assertEqual(rows[4][-6:], [""] * 6)

    def test_masks_without_a_predictor_have_no_figures_of_one(self):
        active = {**ANSWER, "masks": {**ANSWER["masks"], "rank": 0}}
        self.assertEqual([row[0] for row in self.rows(flash_page.masks(active))[2:]], ["active", "in 5 tokens", "new after 5 tokens"])
        self.assertEqual(self.rows(flash_page.masks(ANSWER))[-1], ["new after 5 tokens", "2.2 %", "2.4 %"])

    def test_the_fit_is_the_last_row_of_the_rates(self):
        self.assertEqual(self.rows(flash_page.rates(ANSWER))[-1], ["fit", "0.36", "0.79"])

    def test_a_run_that_had_no_memory_says_why(self):
        self.assertIn("needs more memory", flash_page.engine(ANSWER))

    def test_each_answer_has_a_section_and_what_was_left_out_has_no_table(self):
        short = {**ANSWER, "engine": [], "rates": [], "memory": []}
        text = flash_page.page({"one": ANSWER, "two": short}, "a machine")
        self.assertEqual(text.count("\n## "), 2)
        self.assertEqual(text.count("reads in flight"), 1)
        self.assertIn("Machine: a machine", text)
        self.assertTrue(text.endswith("|\n"))

    def test_what_a_person_wrote_stays_when_the_tables_are_written_again(self):
        for machine in ("a machine", ""):
            for note in ("The goal is missed.\n\nThe disk is slow.", ""):
                text = flash_page.page({"one": ANSWER}, machine, note=note)
                self.assertEqual(flash_page.machine_and_note_of(text), (machine, note))
        self.assertEqual(flash_page.machine_and_note_of(""), ("", ""))

    def test_copies_have_the_share_that_they_leave(self):
        with_copies = {**ANSWER, "copy_bytes": 1000, "masks": {**ANSWER["masks"], "unproven": 0.045}}
        self.assertIn(["left without a proof by copies of the deciders", "4.5 %", ""], self.rows(flash_page.masks(with_copies)))

    def test_predictors_and_choices_have_sections_of_their_own(self):
        layer = {"layer": 1, "rank": 24, "active": 0.055, "predicted": 0.11, "false_negatives": 0.04, "false_positives": 0.06}
        trained = {"tokens": 65536, "context": 128, "predictor": {"held_out": 4096, "perplexity": 22.2, "exact_perplexity": 22, "layers": [layer]}}
        mode = {"items": 500, "accuracy": 0.5, "error": 0.0224, "other_choices": 3, "lost": 2, "won": 1}
        asked = {"text": "t.txt", "seed": 1, "context": 64, "tokens": 16, "modes": {"off": mode, "predicted": mode}}
        text = flash_page.page({}, predictors={"one": trained}, tasks={"two": asked})
        self.assertEqual(text.count("\n## "), 2)
        self.assertIn("22.200 with the predictor, 22.000 without: +0.91 %", text)
        self.assertIn("| 1 | 24 | 5.5 % | 11.0 % | 4.0 % | 6.0 % |", text)
        self.assertIn("| predicted | 50.0 % | 2.2 % | 3 | 2 | 1 |", text)
        self.assertIn("cannot be had here", text)

    def test_friends_have_a_section_and_figures_are_shown(self):
        of = {"neuron": 3, "with_neuron": [1, 0.5], "closest_friends": 40, "of_most_active": 0.8, "new_neurons": 20, "bundles_with_friends": 18, "friends_used": 0.1,
              "friends_already_there": 0.7, "friends_not_needed": 0.2, "friends": [{"rank": rank, "mean": 1 / rank, "neurons": [0] * 101} for rank in (1, 4, 8)]}
        layer = {"layer": 2, "neurons": 384, "active": [0.05], "unions": [0.05, 0.09], "fresh": 0.02, "coactivation": of}
        answer = {"tokens": 4096, "context": 128, "masks": 2, "layers": [layer]}
        text = flash_page.page({}, calibrations={"one": answer}, figures=[("flash-use-one.svg", "what it shows")])
        self.assertIn("| 2 | 5.0 % | 9.0 % | 2.0 % |", text)
        self.assertIn("| 2 | 100.0 % | 25.0 % | 12.5 % | 40 | 80.0 % | 90.0 % | 10.0 % | 70.0 % | 20.0 % |", text)
        self.assertIn("![what it shows](flash-use-one.svg)", text)

    def test_a_bar_has_load_management_and_the_computing_that_hides_behind_neither(self):
        parts = flash_page.token_parts({"ladder": [rung("a", 100, whole_ms=130), rung("b", 100, whole_ms=100)]})
        self.assertEqual(parts, {"a": (100, 0.5, 29.5), "b": (100, 0.5, 0)})


if __name__ == "__main__":
    unittest.main(verbosity=2)
