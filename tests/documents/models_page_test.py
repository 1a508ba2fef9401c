"""docs/MODELS.md lists every family and golden folder of the code, and its tables are those of the data file."""
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "testbed/models"))
import table  # noqa: E402

FAMILIES = ROOT / "planner/plan/model/families"
GOLDEN_TEST = ROOT / "tests/integration/golden_test.cc"
FAMILY_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", re.M)
FOLDER = re.compile(r"`([\w-]+)`")
# Folders that tests/integration/golden_test.cc finds by walking the shared models.
TRAINED = {"stories260k", "stories260k-bf16", "stories260k-relu", "aidreams260k", "aidreams260k-bf16", "opt-shakespeare",
           "opt-shakespeare-f16"}


def page():
    return table.PAGE.read_text(encoding="utf-8")


def section(heading):
    """The text below a heading, to the next heading."""
    return re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", page(), re.M | re.S)[1]


def sources():
    """The source of each listed family, by the family's name."""
    listed = re.findall(r"&k(\w+)Family", (FAMILIES / "families.h").read_text())
    texts = [path.read_text() for path in FAMILIES.glob("*.cc")]
    found = {}
    for name in listed:
        text = next(text for text in texts if f"constinit const Family k{name}Family" in text)
        own = text[text.index(f"constinit const Family k{name}Family"):]
        found[re.search(r'\.name = "(\w+)"', own)[1]] = text
    return found


def model_types():
    """Each model_type that some family reads."""
    found = set()
    for text in sources().values():
        found |= set(re.findall(r'"([^"]+)"', re.search(r"kModelTypes\[\] = \{([^}]*)\}", text)[1]))
    return found


def seeded_folders():
    """The golden folders that tests/integration/golden_test.cc names."""
    return set(re.findall(r'"([\w-]+)"', re.search(r"SupportedFamilies\(\) \{(.*?)\n\}", GOLDEN_TEST.read_text(), re.S)[1]))


class FamiliesTest(unittest.TestCase):
    def test_the_page_lists_every_family_once(self):
        rows = [name for name, _, _ in FAMILY_ROW.findall(section("What runs, and how it was checked"))]
        self.assertGreater(len(rows), 15)
        self.assertEqual(sorted(rows), sorted(sources()))

    def test_every_golden_folder_stands_in_one_row(self):
        rows = FAMILY_ROW.findall(section("What runs, and how it was checked"))
        folders = [folder for _, _, cell in rows if not cell.startswith("none") for folder in FOLDER.findall(cell)]
        self.assertEqual(sorted(folders), sorted(seeded_folders() | TRAINED))

    def test_no_family_that_runs_is_called_unsupported(self):
        named = set(re.findall(r"`(\w+)`", re.search(r"\*\*Other families\.\*\*(.*?)\n- ", section("What is not supported"), re.S)[1]))
        self.assertIn("llama4", named)
        self.assertEqual(named & model_types(), set())


class TablesTest(unittest.TestCase):
    maxDiff = None

    def test_the_page_has_the_tables_of_the_data_file(self):
        self.assertEqual(page(), table.filled(page(), table.tables(table.read_cells())), "run testbed/models/table.py")

    def test_every_checkpoint_has_a_line_for_every_board(self):
        expected = [(entry["file"], board) for entry in table.checkpoints() for board in table.BOARDS]
        self.assertEqual(list(table.read_cells()), expected)
        self.assertEqual(len(table.checkpoints()), 15)

    def test_sizes_are_within_one_percent_of_the_published_ones(self):
        cells = table.read_cells()
        for entry in table.checkpoints():
            sizes = {int(cells[entry["file"], board]["weight_bytes"] or 0) for board in table.BOARDS} - {0}
            self.assertEqual(len(sizes), 1, entry["file"])
            self.assertLess(abs(sizes.pop() / entry["published_bytes"] - 1), 0.01, entry["file"])

    def test_files_of_checkpoints_are_of_families_that_run(self):
        for entry in table.checkpoints():
            self.assertIn(table.text_config(entry["file"])["model_type"], model_types(), entry["file"])
            self.assertIn(entry["page"], (table.FOLDER / "README.md").read_text(encoding="utf-8"))

    def test_every_file_of_the_folder_is_listed(self):
        listed = {entry["file"] for entry in table.checkpoints()}
        for path in table.FOLDER.glob("*.json"):
            if path.name != "checkpoints.json" and not path.name.startswith("board-"):
                self.assertIn(f"testbed/models/{path.name}", listed)


class BoardsTest(unittest.TestCase):
    def test_boards_are_devices_of_the_paper(self):
        known = {}
        for path in (ROOT / "testbed/clusters").glob("setting-*.json"):
            known[path.name] = {device["name"]: device for device in json.loads(path.read_text())["devices"]}
        for board in table.BOARDS:
            text = json.loads((table.FOLDER / f"board-{board}.json").read_text())
            device, source = re.search(r"device ([\w-]+) of testbed/clusters/([\w.-]+json)", text["_note"]).groups()
            self.assertEqual([known[source][device] | {"name": f"board-{board}"}], text["devices"])


class PlanTest(unittest.TestCase):
    """`table.plan` with a program in the place of lime."""
    FILE = "testbed/models/gpt-oss-20b.json"
    MEMORY = {"kv_bytes": 7, "state_bytes": 2, "weight_bytes": 100, "free_bytes": 50}

    def planned(self, code, output):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "lime"
            program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n")
            program.chmod(0o755)
            return table.plan(str(program), self.FILE, 16)

    def test_a_line_has_what_the_report_says(self):
        device = {"memory": self.MEMORY, "streamed_bytes_per_step": 30,
                  "experts": {"kept": 12, "of": 32, "expected_hit_share": 0.81666, "expected_bytes_per_step": 12.4}}
        report = {"ms_per_token": 75.812, "devices": [device], "plan": {"model_key": "X bytes=10+20+0+40+500 experts=2"}}
        self.assertEqual(self.planned(0, json.dumps(report)),
                         {"file": self.FILE, "board_gb": 16, "weight_bytes": 570, "kv_bytes": 7, "state_bytes": 2,
                          "used_bytes": 109, "read_bytes_per_token": 42, "experts_kept": 12, "experts": 32,
                          "expected_hit_share": "0.817", "ms_per_token": "75.81"})

    def test_only_a_plan_that_does_not_fit_is_no_error(self):
        self.assertEqual(self.planned(1, "lime: no plan fits: ..."), {"file": self.FILE, "board_gb": 16, "ms_per_token": "none"})
        with self.assertRaises(RuntimeError):
            self.planned(1, "lime: gpt-oss-20b.json: names no dtype")


class MadeTablesTest(unittest.TestCase):
    KEY = "X layers=2 window=0 BF16 bytes=10+20+30+40"

    def test_weights_are_the_sum_over_all_kinds_of_blocks(self):
        self.assertEqual(table.weight_bytes(self.KEY, tied=False), 100)
        self.assertEqual(table.weight_bytes(self.KEY, tied=True), 90)
        self.assertEqual(table.weight_bytes(self.KEY + "+5 experts=2:1/4x8+0", tied=False), 105)
        self.assertEqual(table.weight_bytes(self.KEY + "+7 linear=3:16x128/32x128/4", tied=False), 107)
        self.assertEqual(table.weight_bytes(self.KEY + "+7 linear=3:16x128/32x128/4+5 experts=2:1/4x8+0", tied=False), 112)

    def test_cells_have_three_digits_or_say_that_nothing_fits(self):
        self.assertEqual(table.time_cell({"ms_per_token": "132800"}), "133,000")
        self.assertEqual(table.time_cell({"ms_per_token": "24.46"}), "24.5")
        self.assertEqual(table.time_cell({"ms_per_token": "none"}), "does not fit")
        self.assertEqual(table.memory_cell({"ms_per_token": ""}), "not planned")
        self.assertEqual(table.expert_cell({"ms_per_token": "1", "experts": "", "read_bytes_per_token": "5"}), "all stream")
        self.assertEqual(table.expert_cell({"ms_per_token": "1", "experts": "128", "experts_kept": "54",
                                            "expected_hit_share": "0.830"}), "54 of 128, 83 % hits")

    def test_tables_list_only_what_was_planned(self):
        line = dict.fromkeys(table.COLUMNS, "") | {"weight_bytes": "1", "kv_bytes": "1", "state_bytes": "0"}
        cells = {case: line | {"file": case[0], "board_gb": str(case[1])} for case in table.all_cases()}
        first = table.checkpoints()[0]
        cells[first["file"], 8] |= {"ms_per_token": "5"} | dict.fromkeys(("used_bytes", "read_bytes_per_token"), "0")
        made = table.tables(cells)
        self.assertEqual(made["times"].splitlines()[2:],
                         [f"| {table.link(first)} | 5 | not planned | not planned | not planned |"])
        self.assertEqual(made["experts"], table.NO_EXPERTS)
        cells[first["file"], 8] |= {"experts": "4", "experts_kept": "2", "expected_hit_share": "0.5"}
        self.assertIn("| 2 of 4, 50 % hits |", table.tables(cells)["experts"])

    def test_a_page_needs_a_place_for_every_table(self):
        placed = "a\n<!-- models.csv: times -->\nold\n<!-- end -->\nb\n"
        self.assertEqual(table.filled(placed, {"times": "T"}), "a\n<!-- models.csv: times -->\n\nT\n<!-- end -->\nb\n")
        for made in ({}, {"times": "T", "memory": "M"}):
            with self.assertRaises(ValueError):
                table.filled(placed, made)


if __name__ == "__main__":
    unittest.main()
