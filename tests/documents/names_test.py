"""No name of a class, struct or enum is defined twice in one namespace; and one that is, is found."""
import tempfile
import unittest
from pathlib import Path

import names

ROOT = Path(__file__).resolve().parents[2]


class SourceTreeTest(unittest.TestCase):
    maxDiff = None

    def test_no_name_is_defined_twice_in_a_namespace(self):
        self.assertEqual(list(names.faults(ROOT)), [])

    def test_twins_on_purpose_are_still_there(self):
        twins, names.TWINS = names.TWINS, set()
        try:
            all_faults = "\n".join(names.faults(ROOT))
        finally:
            names.TWINS = twins
        for namespace, name in twins:
            self.assertIn(f"{namespace} has a {name} already", all_faults)


def source(body, own=False):
    inner = f"namespace {{\n{body}\n}}  // namespace\n" if own else f"{body}\n"
    return f"namespace lime {{\n{inner}}}  // namespace lime\n"


class MadeTreeTest(unittest.TestCase):
    def faults_with(self, files):
        made = {"a/CMakeLists.txt": "lime_library(lime_a SRCS one.cc two.cc)\n", "b/CMakeLists.txt": "lime_library(lime_b SRCS three.cc)\n"}
        with tempfile.TemporaryDirectory(prefix="lime-names.") as folder:
            for path, text in (made | files).items():
                (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / path).write_text(text)
            return list(names.faults(folder))

    def test_two_of_one_library_are_found_in_anonymous_namespaces_too(self):
        self.assertEqual(self.faults_with({"a/one.cc": source("class Draft {", own=True), "a/two.cc": source("struct Draft {\n};", own=True)}),
                         ["a/two.cc:3: lime has a Draft already, at a/one.cc:3"])

    def test_so_is_one_that_hides_the_namespaces_own(self):
        for kind in ("class Draft {", "class Draft final : public Plan {", "enum class Draft : uint8_t { kOne };", "template <typename T>\nclass Draft {"):
            with self.subTest(kind):
                self.assertEqual(len(self.faults_with({"a/one.h": source("struct Draft {"), "b/three.cc": source(kind, own=True)})), 1)

    def test_libraries_may_have_their_own(self):
        self.assertEqual(self.faults_with({"a/one.cc": source("class Draft {", own=True), "b/three.cc": source("class Draft {", own=True)}), [])

    def test_a_declaration_a_nested_class_and_another_namespace_are_no_second_definition(self):
        self.assertEqual(self.faults_with({"a/one.h": source("class Draft;\nclass Plan {\n  struct Draft {\n  };\n};"), "a/one.cc": source("struct Draft {"),
                                           "a/two.cc": "namespace lime::cli {\nclass Draft {\n};\n}  // namespace lime::cli\n"}), [])


if __name__ == "__main__":
    unittest.main()
