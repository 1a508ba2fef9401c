"""The pages of docs/reference that list fields and calls list those of the sources: cluster.toml, limed.toml, the
HTTP API, metrics, the services; and the paths of serve.toml."""
import json
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

READ = re.compile(r'\b(?:fields\.\w+(?:<\w+>)?|ReadAddress|one_of)\((?:fields, )?"([\w-]+)"')
ROW = re.compile(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", re.M)
FIELD = re.compile(r'\b(?:fields|inner|call)\.\w+\("([a-z_]+)"|\bk\w+ = "([a-z_]+)"')
CODE = re.compile(r'"((?:[a-z]+_)+[a-z]+|loading|draining)"')
WORDS = re.compile(r"`([^`\n]+)`")
HELP = re.compile(r"^# HELP (\w+) ", re.M)
CALL = re.compile(r"\brpc (\w+)\(")


def fields_read_in(source):
    """The fields of TOML that a parser reads."""
    return set(READ.findall((ROOT / source).read_text()))


def rows_of(page):
    """The names in the first column of a page's tables."""
    return {name for cell in ROW.findall((ROOT / page).read_text()) for name in re.findall(r"`([\w-]+)`", cell)}


def words_of(page):
    """All words between backticks."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.S | re.M)
    return {word for code in WORDS.findall(text) for word in re.findall(r"\w+", code)}


def keys_of(value):
    """Of all objects in a value of JSON."""
    if isinstance(value, list):
        return {key for item in value for key in keys_of(item)}
    return {key for name, item in value.items() for key in {name} | keys_of(item)} if isinstance(value, dict) else set()


class SourcesPagesTest(unittest.TestCase):
    def test_the_fields_of_cluster_toml(self):
        fields = fields_read_in("coordinator/cluster/cluster_config.cc")
        self.assertLessEqual({"name", "address", "bandwidth", "ssh", "listen"}, fields)
        self.assertEqual(rows_of("docs/reference/cluster-toml.md"), fields)

    def test_the_fields_of_limed_toml(self):
        fields = fields_read_in("daemon/limed/limed_flags.cc")
        self.assertLessEqual({"name", "kv-dir", "follow-memory"}, fields)
        self.assertEqual(rows_of("docs/reference/limed-toml.md"), fields)

    def test_the_paths_of_serve_toml(self):
        source = (ROOT / "coordinator/commands/commands.cc").read_text()
        fields = re.findall(r'(?<!", )\{"([\w-]+)"', re.search(r"kPathFields\[\] = (\{.*?\});", source, re.S).group(1))
        self.assertLessEqual({"model", "api-key-file"}, set(fields))
        listed = re.search(r"^- A relative path of (.*?) is relative to", (ROOT / "docs/reference/serve-toml.md").read_text(), re.S | re.M).group(1)
        self.assertEqual(sorted(WORDS.findall(listed)), sorted(fields))

    def test_the_fields_of_the_http_api(self):
        sources = sorted((ROOT / "coordinator/api/requests").glob("*.cc"))
        fields = {name for source in sources for names in FIELD.findall(source.read_text()) for name in names if name}
        self.assertLessEqual({"messages", "stop", "logit_bias", "max_output_tokens", "num_predict"}, fields)
        self.assertEqual(sorted(fields - words_of("docs/reference/http-api.md")), [])

    def test_the_error_codes_of_the_http_api(self):
        codes = set(CODE.findall((ROOT / "coordinator/api/api_error.cc").read_text()))
        self.assertLessEqual({"invalid_type", "queue_timeout", "draining"}, codes)
        self.assertEqual(sorted(codes - words_of("docs/reference/http-api.md")), [])

    def test_the_fields_of_the_cluster(self):
        fields = keys_of(json.loads((ROOT / "tests/golden/cluster.json").read_text()))
        self.assertLessEqual({"rss_bytes", "streamed_blocks", "age_ms", "predicted"}, fields)
        self.assertEqual(sorted(fields - words_of("docs/reference/http-api.md")), [])

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
