"""Items of bench/choices.py are made by seed and show nothing twice, and figures count what they say."""
import math
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import choices  # noqa: E402


def encode(texts):
    """A token is a word."""
    return [[hash_of(word) for word in text.split()] for text in texts]


def hash_of(word):
    return sum((i + 1) * ord(letter) for i, letter in enumerate(word))


def text_of(lines):
    return "".join(f"line {i} has w{i * i} and then x{i * 7} to its end\n" + ("\n" if i % 5 == 0 else "") for i in range(lines))


class ItemsTest(unittest.TestCase):
    def items(self, seed=1, count=20, lines=400):
        return choices.make_items(encode, text_of(lines), count, context=12, tokens=4, seed=seed)

    def test_a_seed_gives_the_same_items(self):
        self.assertEqual(self.items(), self.items())
        self.assertNotEqual(self.items(), self.items(seed=2))

    def test_numbers_of_tokens_are_equal_and_one_choice_is_true(self):
        text = encode([text_of(400)])[0]
        for context, ids, true in self.items():
            self.assertEqual(len(context), 12)
            self.assertEqual([len(choice) for choice in ids], [4] * choices.CHOICES)
            self.assertEqual(len({tuple(choice) for choice in ids}), choices.CHOICES)
            follows = [text[at + 12:at + 16] for at in range(len(text)) if text[at:at + 12] == context]
            self.assertEqual([ids.index(one) for one in follows if one in ids], [true])

    def test_truth_has_every_place(self):
        self.assertEqual({true for _, _, true in self.items(count=60)}, set(range(choices.CHOICES)))

    def test_choices_lie_outside_of_what_the_item_shows(self):
        text = encode([text_of(400)])[0]
        for context, ids, true in self.items():
            at = next(at for at in range(len(text)) if text[at:at + 12] == context)
            shown = text[at:at + 16]
            for i, choice in enumerate(ids):
                inside = any(shown[j:j + 4] == choice for j in range(len(shown) - 3))
                self.assertEqual(inside, i == true)

    def test_a_text_that_is_too_short_is_refused(self):
        for text in ("", "one line", text_of(10)):
            with self.assertRaisesRegex(ValueError, "give a longer text"):
                choices.make_items(encode, text, 20, context=12, tokens=4, seed=1)


class FiguresTest(unittest.TestCase):
    def test_sums_are_of_the_last_tokens_of_each_sequence(self):
        positions = [{"logprob": value} for value in (None, -1.0, -2.0, None, -4.0, -8.0, -16.0)]
        self.assertEqual(choices.sums_of(positions, [3, 4], 2), [-3.0, -24.0])

    def test_right_choices_count_and_have_a_binomial_error(self):
        items = [([], [], 0), ([], [], 3)]
        off = [-1.0, -2.0, -2.0, -2.0, -1.0, -1.0, -2.0, -2.0]
        found = choices.figures(items, off, off)
        self.assertEqual((found["accuracy"], found["error"]), (0.5, math.sqrt(0.125)))
        self.assertEqual((found["other_choices"], found["same_sums"]), (0, True))
        other = [-3.0, -2.0, -2.0, -2.0, -1.0, -1.0, -2.0, -0.5]
        found = choices.figures(items, other, off)
        self.assertEqual((found["accuracy"], found["other_choices"], found["lost"], found["won"]), (0.5, 2, 1, 1))
        self.assertFalse(found["same_sums"])


if __name__ == "__main__":
    unittest.main()
