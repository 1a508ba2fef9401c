"""The pages of docs/reference that list fields and calls list those of the sources: cluster.toml, limed.toml, metrics, the
services."""
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

READ = re.compile(r'\b(?:fields\.\w+(?:<\w+>)?|ReadAddress|one_of)\((?:fields, )?"([\w-]+)"')
ROW = re.compile(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", re.M)
HELP = re.compile(r"^# HELP (\w+) ", re.M)
CALL = re.compile(r"\brpc (\w+)\(")


def fields_read_in(source):
    """The fields of TOML that a parser reads."""
    return set(READ.findall((ROOT / source).read_text()))


def rows_of(page):
    """The names in the first column of a page's tables."""
    return {name for cell in ROW.findall((ROOT / page).read_text()) for name in re.findall(r"`([\w-]+)`", cell)}


class SourcesPagesTest(unittest.TestCase):
    def test_the_fields_of_cluster_toml(self):
        fields = fields_read_in("coordinator/cluster/cluster_config.cc")
        self.assertLessEqual({"name", "address", "bandwidth", "ssh", "listen"}, fields)
        self.assertEqual(rows_of("docs/reference/cluster-toml.md"), fields)

    def test_the_fields_of_limed_toml(self):
        fields = fields_read_in("daemon/limed/limed_flags.cc")
        self.assertLessEqual({"name", "kv-dir", "follow-memory"}, fields)
        self.assertEqual(rows_of("docs/reference/limed-toml.md"), fields)

    def test_the_names_of_metrics(self):
        texts = [(ROOT / f"tests/golden/metrics_{program}.txt").read_text() for program in ("serve", "limed")]
        names = {name for text in texts for name in HELP.findall(text)}
        self.assertLessEqual({"lime_kv_pages", "limed_steps_total", "process_open_fds"}, names)
        self.assertEqual(rows_of("docs/reference/metrics.md"), names)

    def test_the_calls_of_the_services(self):
        calls = {call for proto in ("control", "bulk") for call in CALL.findall((ROOT / f"proto/lime/v1/{proto}.proto").read_text())}
        self.assertIn("Install", calls)
        self.assertLessEqual(calls, rows_of("docs/reference/protocol.md"))

    def test_the_version_of_the_protocol(self):
        version = re.search(r"kProtocol = (\d+);", (ROOT / "proto/convert/convert.h").read_text()).group(1)
        self.assertIn(f"| Protocol | {version} |", (ROOT / "docs/reference/protocol.md").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
