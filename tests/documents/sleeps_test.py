"""No test sleeps, but for the list of sleeps.py; and what sleeps is found."""
import tempfile
import unittest
from pathlib import Path

import sleeps

ROOT = Path(__file__).resolve().parents[2]


class SourceTreeTest(unittest.TestCase):
    maxDiff = None

    def test_nothing_sleeps_but_what_the_list_allows(self):
        self.assertEqual(list(sleeps.faults(ROOT)), [])

    def test_every_entry_has_a_reason(self):
        for entry in sleeps.ALLOWED:
            self.assertTrue(entry.why, entry)


class MadeTreeTest(unittest.TestCase):
    def faults_of(self, line, allowed=(), path="tests/daemon/some_test.cc"):
        with tempfile.TemporaryDirectory(prefix="lime-sleeps.") as folder:
            (Path(folder) / path).parent.mkdir(parents=True)
            (Path(folder) / path).write_text(f"first line\n  {line}\n")
            return list(sleeps.faults(folder, allowed))

    def test_a_new_sleep_is_found(self):
        for line in ("std::this_thread::sleep_for(1s);", "std::this_thread::sleep_until(then);", "absl::SleepFor(absl::Seconds(1));", "usleep(10);",
                     "sleep(1);", "nanosleep(&time, nullptr);", "time.sleep(0.1)", "await asyncio.sleep(1)", "sleep 5", "sleep $pause; true",
                     'run(["sleep", "5"])', "EXPECT_FALSE(left.WaitForNotificationWithTimeout(absl::Milliseconds(100)));"):
            with self.subTest(line):
                faults = self.faults_of(line)
                self.assertEqual(len(faults), 1, faults)
                self.assertIn("tests/daemon/some_test.cc:2: ", faults[0])

    def test_so_is_one_in_a_program_of_testbed(self):
        self.assertEqual(len(self.faults_of("time.sleep(3)", path="testbed/some")), 1)

    def test_words_that_only_begin_so_are_none(self):
        for line in ("// its thread falls asleep once", "SleepsSoFar(thread)", "EXPECT_TRUE(sampled.WaitForNotificationWithTimeout(time));",
                     "SYS_clock_nanosleep, SYS_sched_yield"):
            with self.subTest(line):
                self.assertEqual(self.faults_of(line), [])

    def test_an_entry_allows_as_many_as_it_says(self):
        entry = sleeps.Allowed("tests/daemon/some_test.cc", "Seconds(1)", "for this test")
        line = "absl::SleepFor(absl::Seconds(1));"
        self.assertEqual(self.faults_of(line, [entry]), [])
        self.assertEqual(len(self.faults_of(f"{line}\n{line}", [entry])), 1)
        self.assertEqual(len(self.faults_of("absl::SleepFor(absl::Seconds(2));", [entry])), 2)

    def test_an_entry_that_nothing_needs_is_found(self):
        entry = sleeps.Allowed("tests/daemon/some_test.cc", "Seconds(1)", "for this test")
        self.assertIn("1 fewer", self.faults_of("nothing", [entry])[0])


if __name__ == "__main__":
    unittest.main()
