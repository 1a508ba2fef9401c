"""What holds for the packages of npm whether they are here or not: lock files that fit any registry, and tests that are skipped and counted without them."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = [HERE, HERE.parents[1] / "scripts/tokenizers"]


class NpmTest(unittest.TestCase):
    def test_lock_files_have_checksums_and_no_registry(self):
        for folder in FOLDERS:
            packages = json.loads((folder / "package-lock.json").read_text())["packages"]
            self.assertGreater(len(packages), 1)
            for name, package in packages.items():
                self.assertNotIn("resolved", package, f"{folder}: {name}")
                if name:
                    self.assertRegex(package["integrity"], "^sha512-", f"{folder}: {name}")

    def test_lock_files_are_those_of_their_packages(self):
        for folder in FOLDERS:
            wanted = json.loads((folder / "package.json").read_text())
            locked = json.loads((folder / "package-lock.json").read_text())["packages"]
            for kind in ("dependencies", "optionalDependencies"):
                self.assertEqual(locked[""].get(kind), wanted.get(kind), folder)
                for name, version in wanted.get(kind, {}).items():
                    self.assertEqual(locked[f"node_modules/{name}"]["version"], version)

    def test_without_packages_tests_are_skipped_and_counted(self):
        with tempfile.TemporaryDirectory(prefix="lime-npm.") as folder:
            notes = Path(folder) / "notes"
            environment = os.environ | {"LIME_NODE_MODULES": folder, "LIME_CHROMIUM": sys.executable, "LIME_SKIPPED_TESTS": str(notes)}
            done = subprocess.run([sys.executable, "-B", HERE.parent / "page/browser_test.py"], env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("OK (skipped=2)", done.stderr)
            counted = subprocess.run([sys.executable, "-B", HERE.parent / "skips.py", "count", notes], capture_output=True, text=True, check=True).stdout
            self.assertIn("2 tests skipped for want of packages of tests/npm/package.json", counted)


if __name__ == "__main__":
    unittest.main(verbosity=2)
