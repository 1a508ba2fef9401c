"""Tests of testbed/mutated: the same number makes the same case, and what a case changes is seen."""
import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "testbed"))
sys.dont_write_bytecode = True
from mutated import cases, sandbox  # noqa: E402


class InputsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lime-inputs-test-")
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)
        self.base = self.path / "base"
        cases.write_base(self.base, lambda base: (base / cases.PLAN).write_text('{"version": 1, "stages": [{"device": 0}]}'))

    def box(self, name):
        box = self.path / name
        box.mkdir()
        return box

    def test_a_number_makes_the_same_case_again(self):
        differ = 0
        for number in range(60):
            first, second, other = (self.box(f"{name}{number}") for name in ("a", "b", "c"))
            one, two = cases.Case(3, number).prepare(self.base, first), cases.Case(3, number).prepare(self.base, second)
            self.assertEqual((one.program, one.words, one.stdin), (two.program, two.words, two.stdin))
            relative = [{os.path.relpath(p, box): v for p, v in sandbox.snapshot(box).items()} for box in (first, second)]
            self.assertEqual(*[{p: v for p, v in found.items() if v[-1] != 1 << 40 and len(v) < 4} for found in relative])
            differ += cases.Case(4, number).prepare(self.base, other).words != one.words
            for box in (first, second, other):
                sandbox.clean(box)
        self.assertGreater(differ, 20)

    def test_every_kind_of_case_comes_up(self):
        self.assertEqual({cases.Case(1, number).kind for number in range(200)}, {"model", "cluster", "daemon", "plan", "figures", "problem", "command"})

    def test_changes_of_a_program_are_seen_and_its_end_is_reported(self):
        box = self.box("box")
        (box / "home").mkdir()
        (box / "tmp").mkdir()
        (box / "kept").write_text("as it was")
        (box / "gone").write_text("")
        before = sandbox.snapshot(box)
        end = sandbox.run(["sh", "-c", "cat; echo new > made; rm gone; chmod 600 kept; exit 3"], box, b"words")
        self.assertEqual((end.code, end.out, end.hangs), (3, "words", False))
        self.assertEqual(sandbox.changes(before, sandbox.snapshot(box)), [str(box / name) for name in ("gone", "kept", "made")])
        self.assertEqual(sandbox.run(["sh", "-c", "kill -SEGV $$"], box).code, -11)

    def test_a_program_that_does_nothing_for_ever_hangs(self):
        box = self.box("box")
        still, hang = sandbox.STILL_S, sandbox.HANG_S
        sandbox.STILL_S, sandbox.HANG_S = 0.2, 0.4
        try:
            self.assertTrue(sandbox.run(["sleep", "1000"], box).hangs)
        finally:
            sandbox.STILL_S, sandbox.HANG_S = still, hang
        self.assertEqual(sandbox.run(["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"], box, serves=True).code, 0)


if __name__ == "__main__":
    unittest.main()
