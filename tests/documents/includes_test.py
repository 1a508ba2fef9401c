"""The source tree keeps to the table of docs/ARCHITECTURE.md; and what does not keep to it is found."""
import tempfile
import unittest
from pathlib import Path

import includes

ROOT = Path(__file__).resolve().parents[2]


class SourceTreeTest(unittest.TestCase):
    maxDiff = None

    def test_folders_include_what_the_table_allows(self):
        self.assertEqual(includes.faults(ROOT), [])

    def test_commands_do_not_see_headers_that_need_seconds_to_compile(self):
        """gRPC, its messages and CLI11: who calls them includes them, and nobody gets them with another header."""
        tree = includes.Tree(ROOT)
        for folder in ("coordinator/commands", "coordinator/sessions", "coordinator/planning", "coordinator/devices", "coordinator/cli",
                       "coordinator/reports", "coordinator/cluster", "coordinator/serving", "coordinator/local", "daemon/limed", "daemon/stage"):
            for name in tree.files[folder]:
                heavy = [seen for seen in tree.seen_by(f"{folder}/{name}") if seen.startswith(("grpcpp/", "CLI/")) or seen.endswith(".pb.h")]
                self.assertEqual(heavy, ["CLI/CLI.hpp"] if name == "main.cc" else [], f"{folder}/{name}")

    def test_the_whole_tree_is_read(self):
        tree = includes.Tree(ROOT)
        for folder in ("planner/base", "common", "proto/lime/v1", "kernels", "daemon/rpc", "coordinator/commands", "bench"):
            self.assertIn(folder, tree.files)
        self.assertIn("lime_plan", tree.targets["lime_coordinator_logic"].needs)


# A tree in which nothing is wrong: `high` includes `low`, and `wire` has a message.
TABLE = """# Architecture

| Folder | May include |
|---|---|
| `low` | nothing |
| `proto/v1` | nothing |
| `high` | `low`, `proto/v1` |

Words behind it.
"""
FILES = {
    "docs/ARCHITECTURE.md": TABLE,
    "low/CMakeLists.txt": "lime_library(lime_low SRCS low.cc DEPS absl::strings)\n",
    "low/low.h": "#include <string>\n",
    "low/low.cc": '#include "low/low.h"\n\n#include "absl/strings/str_cat.h"\n',
    "proto/CMakeLists.txt": "lime_proto(lime_message_proto v1/message.proto)\n",
    "proto/v1/message.proto": "",
    "high/CMakeLists.txt": "lime_library(lime_high\n  SRCS high.cc\n  DEPS lime_low lime_message_proto)\n",
    "high/high.h": '#include "low/low.h"\n',
    "high/high.cc": '#include "high/high.h"\n\n#include "v1/message.pb.h"\n',
    "tests/high/CMakeLists.txt": "lime_test(high_test SRCS high_test.cc DEPS lime_high)\n",
    "tests/high/high_test.cc": '#include "high/high.h"\n#include "low/low.h"\n',
}


class MadeTreeTest(unittest.TestCase):
    def faults_with(self, changes):
        """Of the tree above with other files: {path: text}, None for a file that is not there."""
        with tempfile.TemporaryDirectory(prefix="lime-includes.") as folder:
            for path, text in (FILES | changes).items():
                if text is not None:
                    (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                    (Path(folder) / path).write_text(text)
            return includes.faults(folder)

    def expect_fault(self, changes, *parts):
        """One fault, with all of these parts."""
        faults = self.faults_with(changes)
        self.assertEqual(len(faults), 1, faults)
        for part in parts:
            self.assertIn(part, faults[0])

    def with_rows(self, *rows):
        return {"docs/ARCHITECTURE.md": TABLE.replace("| `high` |", "".join(row + "\n" for row in rows) + "| `high` |")}

    def test_a_tree_that_keeps_to_its_table_has_no_faults(self):
        self.assertEqual(self.faults_with({}), [])

    def test_an_include_that_its_row_does_not_allow_is_found(self):
        faults = self.faults_with({"low/low.h": '#pragma once\n\n#include "high/high.h"\n'})
        self.assertIn("low/low.h:3: includes high/high.h; the row of `low` (docs/ARCHITECTURE.md:5) does not allow `high`", faults)

    def test_so_are_angle_brackets_spaces_and_paths_from_the_file(self):
        for include in ("#include <high/high.h>", '  #  include "high/high.h"', '#include "../high/high.h"'):
            with self.subTest(include):
                self.assertTrue(self.faults_with({"low/low.h": include + "\n"}))

    def test_a_generated_header_belongs_to_the_folder_of_its_proto(self):
        for header in ("v1/message.pb.h", "v1/message.grpc.pb.h"):
            with self.subTest(header):
                faults = self.faults_with({"low/low.h": f'#include "{header}"\n'})
                self.assertIn(f"low/low.h:1: includes {header}; the row of `low` (docs/ARCHITECTURE.md:5) does not allow `proto/v1`", faults)

    def test_no_folder_includes_tests(self):
        self.expect_fault({"high/high.h": '#include "tests/high/fake.h"\n'}, "high/high.h:1:", "does not allow `tests/high`")

    def test_but_the_one_whose_row_says_so(self):
        table = TABLE.replace("`low`, `proto/v1` |", "`low`, `proto/v1`, `tests/high` |")
        self.assertEqual(self.faults_with({"docs/ARCHITECTURE.md": table, "high/high.h": '#include "tests/high/fake.h"\n'}), [])

    def test_a_folder_without_a_row_is_found(self):
        self.expect_fault({"high/new/new.h": ""}, "high/new/new.h:1: the folder `high/new` has no row")

    def test_a_row_without_a_folder_is_found(self):
        self.expect_fault(self.with_rows("| `gone` | nothing |"), "docs/ARCHITECTURE.md:7: `gone` has a row and no source files")

    def test_a_row_names_folders_of_rows_alone(self):
        table = TABLE.replace("| `low` | nothing |", "| `low` | `lower` |")
        self.expect_fault({"docs/ARCHITECTURE.md": table}, "docs/ARCHITECTURE.md:5:", "`lower`, which has no row")

    def test_a_circle_in_the_table_is_found(self):
        table = TABLE.replace("| `low` | nothing |", "| `low` | `high` |")
        self.expect_fault({"docs/ARCHITECTURE.md": table}, "docs/ARCHITECTURE.md:5: a circle: low -> high -> low")

    def test_a_pure_folder_has_no_file_clock_or_thread(self):
        pure = {"docs/ARCHITECTURE.md": TABLE.replace("`low`", "`common`"), "low/CMakeLists.txt": None, "low/low.h": None, "low/low.cc": None,
                "high/high.h": '#include "common/low.h"\n', "common/low.h": "", "common/CMakeLists.txt": "lime_library(lime_low SRCS low.cc)\n"}
        self.assertEqual(self.faults_with(pure | {"common/low.cc": '#include <map>\n#include "absl/time/time.h"\n#include <atomic>\n'}), [])
        for header in ("<thread>", "<fstream>", "<chrono>", "<sys/stat.h>", '"absl/synchronization/mutex.h"', '"absl/time/clock.h"',
                       '"common/steady_clock.h"'):
            with self.subTest(header):
                self.expect_fault(pure | {"common/low.cc": f"\n#include {header}\n"}, f"common/low.cc:2: includes {header[1:-1]}", "pure")
        self.assertEqual(self.faults_with(pure | {"common/steady_clock.h": "#include <chrono>\n"}), [])

    def test_a_target_that_its_row_does_not_allow_is_found(self):
        faults = self.faults_with({"low/CMakeLists.txt": "\nlime_library(lime_low SRCS low.cc DEPS lime_high)\n"})
        self.assertEqual(faults, ["low/CMakeLists.txt:2: lime_low links lime_high; "
                                  "the row of `low` (docs/ARCHITECTURE.md:5) does not allow `high`"])

    def test_a_target_that_is_included_and_not_linked_is_found(self):
        alone = "lime_library(lime_high SRCS high.cc DEPS lime_message_proto)\n"
        self.expect_fault({"high/CMakeLists.txt": alone}, "high/CMakeLists.txt:1: lime_high links no target of `low`",
                          "high/high.h:1 includes low/low.h")
        self.assertEqual(self.faults_with({"high/CMakeLists.txt": alone + "target_link_libraries(lime_high PUBLIC lime_low)\n"}), [])
        self.assertEqual(self.faults_with({"high/CMakeLists.txt": "add_library(lime_high MODULE high.cc)\n"}), [])

    def test_a_header_without_code_needs_no_target(self):
        self.assertEqual(self.faults_with({"high/CMakeLists.txt": "lime_library(lime_high SRCS high.cc DEPS lime_message_proto)\n",
                                           "low/CMakeLists.txt": "lime_library(lime_low SRCS other.cc)\n", "low/other.cc": ""}), [])

    def test_a_table_that_cannot_be_read_is_an_error(self):
        for table in ("no table", TABLE + TABLE, TABLE.replace("`low` |", "low |"), TABLE.replace("| nothing |", "| low |"),
                      TABLE.replace("| `proto/v1` |", "| `low` |")):
            with self.subTest(table), self.assertRaises(includes.TableError):
                self.faults_with({"docs/ARCHITECTURE.md": table})


if __name__ == "__main__":
    unittest.main()
