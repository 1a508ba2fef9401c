"""Skipped tests are counted, and ctest says how many there were before its last line.

LIME_CMAKE and LIME_CTEST are the programs of that name.
"""
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import skips

ROOT = Path(__file__).resolve().parents[1]

PROJECT = """cmake_minimum_required(VERSION 3.25)
project(small NONE)
enable_testing()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
include({root}/cmake/LimeCtest.cmake)
lime_count_skipped()
lime_ctest(cpp COMMAND sh -c "printf 'A.Reads\\\\t../shared/models\\\\nA.Writes\\\\t../shared/planner/S2.json\\\\n' >> $LIME_SKIPPED_TESTS")
lime_ctest(python COMMAND ${{Python3_EXECUTABLE}} -B {folder}/needs_test.py)
set_tests_properties(python PROPERTIES ENVIRONMENT "PYTHONPATH={root}/tests")
lime_ctest(whole COMMAND true)
"""
NEEDS = """import unittest
import skips

class NeedsTest(unittest.TestCase):
    def test_a_folder(self):
        skips.need(self, False, "../shared/text")

    def test_a_right(self):
        skips.need(self, False, "the right to mount")

    def test_nothing(self):
        skips.need(self, True, "air")

unittest.main()
"""


class NeedTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lime-skips.")
        self.addCleanup(folder.cleanup)
        self.notes = Path(folder.name) / "notes"

    def test_what_is_there_skips_nothing(self):
        with mock.patch.dict(os.environ, LIME_SKIPPED_TESTS=str(self.notes)):
            skips.need(self, True, "../shared/models")
        self.assertFalse(self.notes.exists())

    def test_a_skip_is_noted_with_the_name_of_the_test_or_class(self):
        with mock.patch.dict(os.environ, LIME_SKIPPED_TESTS=str(self.notes)):
            for test in (self, NeedTest):
                with self.assertRaisesRegex(unittest.SkipTest, "^for want of ../shared/models$"):
                    skips.need(test, False, "../shared/models")
        self.assertEqual(self.notes.read_text(), f"{self.id()}\t../shared/models\nNeedTest\t../shared/models\n")

    def test_a_test_run_by_hand_is_skipped_all_the_same(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("LIME_SKIPPED_TESTS", None)
            with self.assertRaises(unittest.SkipTest):
                skips.need(self, False, "../shared/models")


class SentencesTest(unittest.TestCase):
    def test_wants_are_counted_apart(self):
        notes = "A.A\t../shared/models\nA.B\troot\nA.C\t../shared/text/x.txt\nA.D\t../shared-not\n"
        self.assertEqual(list(skips.sentences(notes)), ["2 tests skipped for want of ../shared (put that folder beside the project)",
                                                        "1 test skipped for want of ../shared-not", "1 test skipped for want of root"])

    def test_that_nothing_was_skipped_is_said_too(self):
        self.assertEqual(list(skips.sentences("")), ["no test skipped for want of ../shared"])


@unittest.skipUnless("LIME_CTEST" in os.environ, "LIME_CTEST names no program")
class CtestTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lime-skips.")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        (cls.folder / "CMakeLists.txt").write_text(PROJECT.format(root=ROOT, folder=folder.name))
        (cls.folder / "needs_test.py").write_text(NEEDS)
        subprocess.run([os.environ["LIME_CMAKE"], "-S", cls.folder, "-B", cls.folder / "build"], check=True, stdout=subprocess.DEVNULL)

    def said(self, *words):
        """Lines of ctest with those arguments, from its summary on."""
        done = subprocess.run([os.environ["LIME_CTEST"], "--test-dir", self.folder / "build", *words], check=True, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line]
        return lines[lines.index(next(line for line in lines if line.startswith("100% tests passed"))):]

    def test_counts_stand_between_the_two_lines_of_the_summary(self):
        lines = self.said("--parallel", "4")
        self.assertTrue(lines[-1].startswith("Total Test time"), lines)
        counts = [line.split("  ")[0] for line in lines[1:-1] if " skipped for want of " in line]
        self.assertEqual(counts, ["1 test skipped for want of the right to mount",
                                  "3 tests skipped for want of ../shared (put that folder beside the project)"])

    def test_the_notes_of_an_earlier_run_are_forgotten(self):
        for _ in range(2):
            self.assertIn("2 tests skipped for want of ../shared", "".join(self.said("-R", "^cpp$")))

    def test_a_run_without_skips_says_so(self):
        self.assertIn("no test skipped for want of ../shared", "".join(self.said("-R", "^whole$")))


if __name__ == "__main__":
    unittest.main()
