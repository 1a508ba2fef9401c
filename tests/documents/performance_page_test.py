"""The tables of docs/results/performance.md are those that bench/performance_page.py makes of performance.csv."""
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import data_files  # noqa: E402
import performance_page  # noqa: E402

PAGE, CELLS = (ROOT / "docs/results" / name for name in ("performance.md", "performance.csv"))


class PerformancePageTest(unittest.TestCase):
    maxDiff = None

    def test_the_page_has_the_tables_of_the_data_file(self):
        page = PAGE.read_text(encoding="utf-8")
        self.assertEqual(page, performance_page.filled(page, performance_page.tables_of(data_files.read(CELLS))),
                         "run bench/performance_page.py")

    def test_no_table_of_the_page_is_written_by_hand(self):
        by_hand = performance_page.PLACE.sub("", PAGE.read_text(encoding="utf-8"))
        self.assertEqual(re.findall(r"^\|.*", by_hand, re.M), [])


CELL = {"table": "load", "row": "1", "column": "ms", "value": "2.5"}
PLACED = "a\n<!-- performance.csv: load -->\nold\n<!-- end -->\nb\n"


class MadePageTest(unittest.TestCase):
    def test_a_table_replaces_the_one_before(self):
        cells = [CELL, CELL | {"column": "weights", "value": "bf16"}, CELL | {"row": "2"}, CELL | {"row": "2", "column": "weights", "value": ""}]
        table = "| ms | weights |\n| --: | --- |\n| 2.5 | bf16 |\n| 2.5 | |\n"
        page = performance_page.filled(PLACED, performance_page.tables_of(cells))
        self.assertEqual(page, f"a\n<!-- performance.csv: load -->\n\n{table}\n<!-- end -->\nb\n")
        self.assertEqual(performance_page.filled(page, performance_page.tables_of(cells)), page)

    def test_a_table_without_a_place_and_a_place_without_a_table_are_refused(self):
        for page, cells in (("a\n", [CELL]), (PLACED, []), (PLACED + PLACED, [CELL])):
            with self.assertRaisesRegex(ValueError, "has places for"):
                performance_page.filled(page, performance_page.tables_of(cells))

    def test_two_values_of_a_cell_and_a_missing_cell_are_refused(self):
        with self.assertRaisesRegex(ValueError, "two values"):
            performance_page.tables_of([CELL, CELL])
        with self.assertRaisesRegex(ValueError, "columns"):
            performance_page.markdown([{"ms": "1", "s": "2"}, {"ms": "1"}])

    def test_a_line_with_another_number_of_values_is_refused(self):
        for line in ("load,1,ms", "load,1,ms,2,5"):
            with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
                file.write(f"table,row,column,value\n{line}\n")
                file.flush()
                with self.assertRaisesRegex(ValueError, "number of values"):
                    data_files.read(file.name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
