"""docs/reference/json.md and file-formats.md name every field that commands print with --json."""
import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/lime-fables"
RELU = ROOT / "models/lime-fables-relu"
CLUSTERS = ROOT / "testbed/clusters"
ELSEWHERE = {"plan": "file-formats.md", "error": "exit-codes.md"}  # objects of which another page tells


def names_of(page):
    """All words between backticks outside of code blocks."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.S | re.M)
    return {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", code)}


def fields_of(value, below=""):
    """The fields of an answer, with the field that they are in; those of which another page tells are left out."""
    if isinstance(value, list):
        return {field for item in value for field in fields_of(item, below)}
    if not isinstance(value, dict):
        return set()
    found = {(below, name) for name in value}
    for name, inner in value.items():
        elsewhere = name in ELSEWHERE and isinstance(inner, dict) and inner.keys() & {"version", "exit_code"}
        found |= set() if elsewhere else fields_of(inner, name)
    return found


@unittest.skipUnless("LIME_BIN" in os.environ, "LIME_BIN names no folder of built programs")
class JsonPageTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lime-json.")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def answer(self, *words, text=""):
        call = [Path(os.environ["LIME_BIN"]) / "lime", *words, "--json"]
        environment = os.environ | {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder)}
        done = subprocess.run(call, input=text, capture_output=True, text=True, cwd=self.folder, env=environment)
        self.assertIn(done.returncode, (0, 1), f"{words}: {done.stderr}")
        return json.loads(done.stdout)

    def calibrate(self):
        return self.answer("calibrate", RELU, "--text-file", ROOT / "README.md", "--tokens", "96", "--context", "24", "--out", "calibration.json")

    def expect_all_on(self, page, answers):
        names = names_of((ROOT / page).read_text())
        missing = {f"{command}: {below}{'.' if below else ''}{name}" for command, answer in answers.items()
                   for below, name in fields_of(answer) if name not in names}
        self.assertEqual(sorted(missing), [], page)

    def test_the_page_names_the_fields_of_answers(self):
        run = ("run", "--model", MODEL, "--max-tokens", "3")
        plan = ("plan", "--model-spec", CLUSTERS / "llama-2-13b.json", "--device-profiles", CLUSTERS / "e1.json", "--time-limit", "200")
        answers = {
            "run": self.answer(*run, "--prompt", "Once", "--hash-logits", "--token-times"),
            "run of two": self.answer(*run, "--prompt", "Once", "--prompt", "Two"),
            "run that streams": self.answer(*run, "--prompt", "Once", "--resident", "50%"),
            "trace": self.answer("trace", "--model", MODEL, "--max-tokens", "3", "--prompt", "Once"),
            "score": self.answer("score", "--model", MODEL, "--ids", "1,2,3"),
            "tokenize": self.answer("tokenize", "--model", MODEL, text="Once"),
            "plan": self.answer(*plan, "--out", "plan.json"),
            "plan of levels": self.answer(*plan, "--tokens", "19712", "--strategy", "edgeshard"),
            "plan of nothing": self.answer(*plan, "--strategy", "pp", "--tokens", "4096", "--sequences", "512"),
            "simulate": self.answer("simulate", "--plan", "plan.json"),
            "prepare": self.answer("prepare", MODEL, "--out", "store", "--verify"),
            "calibrate": self.calibrate(),
            "prepare with bundles": self.answer("prepare", RELU, "--out", "relu", "--bundles", "--calibration", "calibration.json"),
            "quantize": self.answer("quantize", "--model", MODEL, "--out", "packed"),
            "keys": self.answer("keys", "--name", "a", "--out", "keys"),
            "version": self.answer("version"),
        }
        self.assertIn("results", answers["run of two"])
        self.assertIn("given_bytes", answers["run that streams"]["streaming"])
        self.assertIn("kv_levels", answers["plan of levels"])
        self.assertEqual(answers["calibrate"]["layers"][0]["batches"], [1, 2, 4])
        self.assertEqual((self.folder / "relu/calibration.json").read_text(), (self.folder / "calibration.json").read_text())
        self.expect_all_on("docs/reference/json.md", answers)

    def test_the_page_of_formats_names_the_fields_of_files(self):
        self.answer("plan", "--model", MODEL, "--device-profiles", CLUSTERS / "e1.json", "--time-limit", "200", "--out", "plan.json")
        self.answer("prepare", MODEL, "--out", "store")
        self.answer("quantize", "--model", MODEL, "--out", "packed")
        self.calibrate()
        files = {name: json.loads((self.folder / name).read_text())
                 for name in ("plan.json", "store/lime_store.json", "packed/lime_quantized.json", "calibration.json")}
        files["profile"] = self.answer("profile", "--model", MODEL, "--seconds", "0.1")
        self.expect_all_on("docs/reference/file-formats.md", files)


class FieldsTest(unittest.TestCase):
    def test_fields_are_found_at_any_depth_except_those_of_another_page(self):
        answer = {"a": [{"b": 1}, {"c": {"d": 2}}], "plan": {"version": 1, "e": 3}, "error": {"exit_code": 1}}
        self.assertEqual(fields_of(answer), {("", "a"), ("a", "b"), ("a", "c"), ("c", "d"), ("", "plan"), ("", "error")})

    def test_names_are_between_backticks_and_not_in_code_blocks(self):
        self.assertEqual(names_of("`a.b` c `d[]`\n```json\n{`e`}\n```\n"), {"a", "b", "d"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
