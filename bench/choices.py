#!/usr/bin/python3
"""Multiple choice by log-probability, without and with sparse MLPs: "LLM in a flash", Table 1, with items of a text.

    bench/choices.py BIN_DIR STORE TEXT [--modes off,exact,predicted] [--items 500] [--seed 1] [--context 64] [--tokens 16] [--out FILE]

ARC and HellaSwag, on which the paper measures, cannot be had here. An item is a context of TEXT, its true continuation, and three continuations of
other places of TEXT, all of the same number of tokens and from the beginning of a line on. The continuation with the largest sum of log-probabilities is
chosen, as `lime score` computes them. Neither the model nor its predictor should have been trained on TEXT. A seed gives the same items on every
machine. With exact and predicted, tokens pass one by one, as in generation, so that MLPs are sparse. Ends with 1 if a sum of exact is not that of off.
"""
import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

from flash_page import PAPER_CHOICES
from report import answer, heading, table

CHOICES = 4
CHARACTERS = 12  # of a text that gives a token, at most: a longer one is cut behind the tokens that count
POOL = 3  # lines for each item from which continuations are drawn
MODES = ("off", "exact", "predicted")


def drawn(source, count):
    """From 0 to count - 1. Only random() gives the same numbers in all releases of Python."""
    return int(source.random() * count)


def shuffled(values, source):
    values = list(values)
    for last in range(len(values) - 1, 0, -1):
        other = drawn(source, last + 1)
        values[last], values[other] = values[other], values[last]
    return values


def line_starts(text):
    """Where lines begin that are not empty, the first one left out: it has no context."""
    starts, at = [], 0
    for line in text.splitlines(keepends=True):
        if at > 0 and line.strip():
            starts.append(at)
        at += len(line)
    return starts


def beginnings(encode, text, starts, tokens):
    """{start: the first ids from there on}, of the starts that have so many."""
    found = encode([text[start:start + CHARACTERS * tokens] for start in starts])
    return {start: ids[:tokens] for start, ids in zip(starts, found) if len(ids) >= tokens}


def contexts(encode, text, starts, tokens):
    """{start: the last ids before it}, of the starts that have so many."""
    found = encode([text[max(0, start - CHARACTERS * tokens):start] for start in starts])
    return {start: ids[-tokens:] for start, ids in zip(starts, found) if len(ids) >= tokens}


def wrong_starts(start, continuations, reach, source):
    """Other starts whose continuations are others, and lie outside what the item shows."""
    starts, taken = list(continuations), []
    for other in (starts[drawn(source, len(starts))] for _ in range(100 * CHOICES)):
        apart = abs(other - start) > reach
        if apart and all(continuations[other] != continuations[one] for one in [start, *taken]):
            taken.append(other)
        if len(taken) == CHOICES - 1:
            return taken
    return None


def make_items(encode, text, count, context, tokens, seed):
    """[(ids of the context, ids of each choice, which one is true)]. ValueError if the text is too short for so many."""
    source = random.Random(seed)
    starts = shuffled(line_starts(text), source)[:POOL * count + 100]
    continuations, before = beginnings(encode, text, starts, tokens), contexts(encode, text, starts, context)
    items = []
    for start in continuations:
        if start not in before or len(items) == count:
            continue
        wrong = wrong_starts(start, continuations, CHARACTERS * (context + tokens), source)
        if wrong is None:
            continue
        true = drawn(source, CHOICES)
        items.append((before[start], [continuations[one] for one in wrong[:true] + [start] + wrong[true:]], true))
    if len(items) < count:
        raise ValueError(f"the text has lines for {len(items)} items of {context} and {tokens} tokens, not for {count}; give a longer text, or fewer --items")
    return items


def sums_of(positions, lengths, tokens):
    """Of sequences of these lengths, side by side: the log-probability of the last tokens of each."""
    sums, at = [], 0
    for length in lengths:
        at += length
        sums.append(math.fsum(position["logprob"] for position in positions[at - tokens:at]))
    return sums


def chosen(sums):
    """The largest of each CHOICES sums; among equals the first one."""
    return [max(range(CHOICES), key=lambda i: sums[at + i]) for at in range(0, len(sums), CHOICES)]


def figures(items, sums, off):
    """`off`: the sums of the first mode."""
    choices, count = chosen(sums), len(items)
    right = [choice == true for choice, (_, _, true) in zip(choices, items)]
    right_off = [choice == true for choice, (_, _, true) in zip(chosen(off), items)]
    accuracy = sum(right) / count
    return {"items": count, "accuracy": accuracy, "error": math.sqrt(accuracy * (1 - accuracy) / count),
            "other_choices": sum(a != b for a, b in zip(choices, chosen(off))), "lost": sum(b and not a for a, b in zip(right, right_off)),
            "won": sum(a and not b for a, b in zip(right, right_off)), "same_sums": sums == off}


class Scorer:
    def __init__(self, binaries, store):
        self.lime, self.store = binaries / "lime", store

    def encode(self, texts, special=False):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        flags = ["--jsonl"] if special else ["--jsonl", "--no-special"]
        found = subprocess.run([str(self.lime), "tokenize", "--model", str(self.store), *flags], input=lines, check=True, stdout=subprocess.PIPE, text=True)
        return [json.loads(line)["ids"] for line in found.stdout.splitlines()]

    def sums(self, items, tokens, mode):
        """Log-probabilities of all choices of all items, and what the run says of itself."""
        bos = self.encode([""], special=True)[0]
        sequences = [bos + context + ids for context, choices, _ in items for ids in choices]
        with tempfile.NamedTemporaryFile("w", suffix=".ids") as file:
            file.write("".join(",".join(map(str, ids)) + "\n" for ids in sequences))
            file.flush()
            one_by_one = [] if mode == "off" else ["--chunk", 1]
            scored = answer([self.lime, "score", "--model", self.store, "--ids-file", file.name, "--sparsity", mode, "--top", 0, *one_by_one])
        return sums_of(scored.pop("positions"), [len(ids) for ids in sequences], tokens), scored


def report(modes):
    rows = [[mode, f"{100 * of['accuracy']:.1f} %", f"+- {100 * of['error']:.1f}", of["other_choices"], of["lost"], of["won"], "yes" if of["same_sums"] else "no"]
            for mode, of in modes.items()]
    table(["sparsity", "right", "error", "other choices than the first", "right no more", "right now", "same log-probabilities"], rows)
    print("  paper, OPT 6.7B, without and with the predictor: " + "; ".join(f"{name} {without} and {with_it} %" for name, without, with_it in PAPER_CHOICES))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, metavar="BIN_DIR")
    parser.add_argument("store", type=pathlib.Path, metavar="STORE")
    parser.add_argument("text", type=pathlib.Path, metavar="TEXT")
    parser.add_argument("--modes", default=",".join(MODES), help="of --sparsity; the others are compared with the first (%(default)s)")
    parser.add_argument("--items", type=int, default=500, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the items (%(default)s)")
    parser.add_argument("--context", type=int, default=64, help="tokens of a context (%(default)s)")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of a continuation (%(default)s)")
    parser.add_argument("--out", type=pathlib.Path, help="file for the figures as JSON")
    flags = parser.parse_args()
    flags.modes = flags.modes.split(",")
    if not set(flags.modes) <= set(MODES):
        parser.error(f"--modes are {', '.join(MODES)}")
    if min(flags.items, flags.context, flags.tokens) < 1:
        parser.error("--items, --context and --tokens must be at least 1")
    return flags


def measure(flags):
    scorer = Scorer(flags.binaries, flags.store)
    items = make_items(scorer.encode, flags.text.read_text(encoding="utf-8"), flags.items, flags.context, flags.tokens, flags.seed)
    heading(f"{len(items)} items of {flags.text.name}, seed {flags.seed}: {flags.context} tokens, then one of {CHOICES} continuations of {flags.tokens}; by chance 25 %")
    modes, first = {}, None
    for mode in flags.modes:
        sums, run = scorer.sums(items, flags.tokens, mode)
        first = first or sums
        modes[mode] = figures(items, sums, first) | {key: run[key] for key in ("logits_xxh3", "sparsity", "lossless", "predictor") if key in run}
    report(modes)
    if flags.out:
        keys = {"text": flags.text.name, "seed": flags.seed, "context": flags.context, "tokens": flags.tokens}
        flags.out.write_text(json.dumps(keys | {"modes": modes}, indent=1) + "\n", encoding="utf-8")
    if modes.get("exact", {}).get("same_sums") is False and flags.modes[0] == "off":
        sys.exit("choices: exact has other log-probabilities than off; report this with the model")


def main():
    flags = parse()
    try:
        measure(flags)
    except KeyboardInterrupt:
        sys.exit(130)
    except subprocess.CalledProcessError as error:
        sys.exit(f"choices: {error.cmd[0]} {error.cmd[1]} ended with {error.returncode}")
    except (OSError, ValueError) as error:
        sys.exit(f"choices: {error}")


if __name__ == "__main__":
    main()
