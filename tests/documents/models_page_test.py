"""docs/MODELS.md lists every family and golden folder of the code, and checkpoints have families that run."""
import json
import re
import sys
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


class CheckpointsTest(unittest.TestCase):
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
        self.assertEqual(table.time_cell({"ms_per_token": ""}), "does not fit")
        self.assertEqual(table.expert_cell({"ms_per_token": "1", "experts": "", "read_bytes_per_token": "5"}), "all stream")
        self.assertEqual(table.expert_cell({"ms_per_token": "1", "experts": "128", "experts_kept": "54",
                                            "expected_hit_share": "0.830"}), "54 of 128, 83 % hits")

    def test_a_page_needs_a_place_for_every_table(self):
        placed = "a\n<!-- models.csv: times -->\nold\n<!-- end -->\nb\n"
        self.assertEqual(table.filled(placed, {"times": "T"}), "a\n<!-- models.csv: times -->\n\nT\n<!-- end -->\nb\n")
        for made in ({}, {"times": "T", "memory": "M"}):
            with self.assertRaises(ValueError):
                table.filled(placed, made)


if __name__ == "__main__":
    unittest.main()
