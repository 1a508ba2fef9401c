"""What bench/flash_experiments.py runs, and which answers go onto its page, without running anything."""
import argparse
import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import flash_experiments  # noqa: E402
from flash_experiments import EXPERIMENTS, LADDERS, TRAINED  # noqa: E402


class Recorded(flash_experiments.FlashExperiments):
    """Notes the programs that would run, and makes the files that later steps look for."""

    def __init__(self, folder, **flags):
        self.calls, self.kept = [], []
        usual = {"binaries": Path("bin"), "folder": folder, "quick": False, "disk": 0, "keep_models": False, "trained": None, "experiments": list(EXPERIMENTS)}
        super().__init__(argparse.Namespace(**usual | flags))

    def say(self, text):
        pass

    def keep(self, answer, out):
        self.kept.append(answer)
        super().keep(answer, out)

    def run(self, command, read_bps=None):
        words = [str(word) for word in command]
        self.calls.append(words)
        if words[0].endswith("make_model"):
            folder = Path(words[words.index("--out") + 1])
            folder.mkdir()
            (folder / "config.json").touch()
            (folder / "model.safetensors").write_bytes(bytes(1000))
        elif words[1] == "prepare":
            store = Path(words[words.index("--out") + 1])
            store.mkdir(exist_ok=True)
        elif words[1] == "calibrate":
            (Path(words[2]) / "calibration.frames").touch()
        elif words[0].endswith("make_corpus"):
            return "once upon a time\n" * 100
        return "{}"


class FlashExperimentsTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_a_model_is_made_once_and_removed_after_its_last_experiment(self):
        run = Recorded(self.folder)
        run.measure()
        made = [words for words in run.calls if words[0].endswith("make_model")]
        self.assertEqual(len(made), len(flash_experiments.GEOMETRIES))
        self.assertEqual(run.kept, ["together", "half", "certified", "fp32", "falcon", "trained-lime-fables-sparse"])
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["answers", "lime-fables-sparse.held-out.txt", "lime-fables-sparse.learned.txt", "lime-fables-sparse.store", "random-1.txt", "random-2.txt"])

    def test_what_has_an_answer_is_not_measured_again(self):
        Recorded(self.folder).measure()
        again = Recorded(self.folder)
        again.measure()
        self.assertEqual(again.calls, [])

    def test_a_store_that_is_made_again_gets_its_copies_again(self):
        Recorded(self.folder).measure()
        limited = Recorded(self.folder, experiments=["certified"], disk=2000.0)
        limited.measure()
        names = [words[1] for words in limited.calls if not words[0].endswith("make_model")]
        self.assertEqual(names, ["prepare", "calibrate", "prepare", "bench"])

    def test_what_is_measured_is_another_text_than_what_is_learned_from(self):
        run = Recorded(self.folder, experiments=["certified"])
        run.measure()
        texts = {words[1]: words[words.index("--text-file") + 1] for words in run.calls if "--text-file" in words}
        self.assertNotEqual(Path(texts["calibrate"]).read_text(), Path(texts["bench"]).read_text())

    def test_a_ladder_has_its_share_of_the_memory(self):
        run = Recorded(self.folder, experiments=["certified"])
        run.measure()
        words = next(words for words in run.calls if words[1:3] == ["bench", "flash"])
        self.assertEqual(words[words.index("--memory") + 1], "600")

    def test_answers_of_a_limited_disk_are_kept_beside_the_others(self):
        Recorded(self.folder, experiments=["half"]).measure()
        limited = Recorded(self.folder, experiments=["half"], disk=2000.0)
        limited.path_of("half-2000").write_text(json.dumps({"is": "limited"}))
        self.assertEqual(limited.ladders_at_hand(), {LADDERS["half"].name: {}, LADDERS["half"].name + ", disk limited to 2000 MB/s": {"is": "limited"}})
        self.assertFalse(limited.missing("half"))

    def test_a_trained_model_learns_from_another_part_of_its_text_than_the_choices_ask(self):
        (self.folder / "model").mkdir()
        (self.folder / "model" / "config.json").write_text('{"hidden_size": 96}')
        (self.folder / "text").write_text("".join(f"{i} " for i in range(4000)))
        run = Recorded(self.folder, experiments=[TRAINED], trained=[self.folder / "model", self.folder / "text"])
        run.measure()
        learned, asked = ((self.folder / name).read_text() for name in ("model.learned.txt", "model.held-out.txt"))
        self.assertEqual(learned + asked, (self.folder / "text").read_text())
        calibrate = next(words for words in run.calls if words[1] == "calibrate")
        self.assertIn(str(self.folder / "model.learned.txt"), calibrate)
        self.assertEqual(calibrate[calibrate.index("--predictor") + 1], "24")

    def test_the_random_text_has_characters_of_every_length(self):
        text = Recorded(self.folder).text(1).read_text(encoding="utf-8")
        self.assertEqual({len(letter.encode()) for letter in text}, {1, 2, 3, 4})


if __name__ == "__main__":
    unittest.main(verbosity=2)
