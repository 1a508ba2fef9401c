"""Tests of pages.py: what is a command of a page, and what a page may not hide."""
import unittest

from pages import Command, File, PageError, steps_of


class PagesTest(unittest.TestCase):
    def test_every_line_of_a_shell_block_is_a_command_and_comments_are_none(self):
        page = "Words.\n\n```sh\n# first\nlime up   # starts\n\nlime down\n```\n"
        self.assertEqual(steps_of(page), [Command(5, "lime up   # starts"), Command(7, "lime down")])

    def test_a_command_goes_on_behind_a_backslash(self):
        self.assertEqual(steps_of("```sh\nlime run \\\n  --prompt x\n```\n"), [Command(2, "lime run \\\n  --prompt x")])

    def test_a_command_goes_on_within_quotes(self):
        page = "```sh\ncurl -d '{\n  \"a\": 1}'   # isn't the end\nlime down\n```\n"
        self.assertEqual([step.line for step in steps_of(page)], [2, 4])
        with self.assertRaises(PageError):
            steps_of("```sh\ncurl -d '{\n```\n")

    def test_a_toml_block_with_a_name_is_a_file(self):
        page = "```toml\n# cluster.toml\n[cluster]\n```\n```toml\nmemory = 1\n```\n"
        self.assertEqual(steps_of(page), [File(2, "cluster.toml", "# cluster.toml\n[cluster]\n")])

    def test_a_program_with_a_name_is_a_file(self):
        page = "```python\n# ask.py\nprint()\n```\n```js\n// ask.mjs\n1;\n```\n"
        self.assertEqual(steps_of(page), [File(2, "ask.py", "# ask.py\nprint()\n"), File(6, "ask.mjs", "// ask.mjs\n1;\n")])

    def test_what_programs_print_is_not_typed(self):
        self.assertEqual(steps_of("```text\nlime down\n```\n"), [])

    def test_no_command_escapes(self):
        for page in ("```\nlime up\n```\n", "```bash\nlime up\n```\n", "Words.\n\n    lime up\n", "```sh\nlime up\n",
                     "```sh\nlime run \\\n```\n", "```python\nprint()\n```\n"):
            with self.subTest(page), self.assertRaises(PageError):
                steps_of(page)

    def test_the_second_line_of_a_list_item_is_text(self):
        self.assertEqual(steps_of("- One\n  goes on\n    and on\n"), [])


if __name__ == "__main__":
    unittest.main()
