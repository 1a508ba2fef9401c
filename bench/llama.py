#!/usr/bin/python3
"""llama.cpp beside LIME: it follows a text that LIME wrote, and says how likely it finds each token.

    bench/llama.py BIN_DIR MODEL_FOLDER PACKAGES [--tokens N]

PACKAGES is a folder in which npm installed node-llama-cpp; bench/README.md says how. This program prints how far log-probabilities of LIME and llama.cpp are
apart in a greedy text, and how many of its tokens llama.cpp would have chosen, too. experts.py uses it to measure llama.cpp's mmap. The GGUF file, as large as
the model, stays beside the model's folder for the next run.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import gguf
from report import call

PROMPT = "Once upon a time"
FEWEST_TOKENS = 8
MOST_APART = 0.1  # of log-probabilities in the median; roundings of bf16 make 0.01


class Llama:
    """`binaries`: folder of lime. `model`: a checkpoint that gguf.py supports."""

    def __init__(self, packages, binaries, model):
        if not (packages / "node_modules/node-llama-cpp").is_dir():
            raise RuntimeError(f"{packages} has no node_modules/node-llama-cpp; bench/README.md says how to install it")
        self.packages, self.lime, self.model = packages, binaries / "lime", model
        self.node = next(packages.glob("node_modules/node-linux-*/bin/node"), None) or shutil.which("node")
        if self.node is None:
            raise RuntimeError(f"neither {packages} nor this machine has node; bench/README.md says how to install it")
        self.gguf, self.call_file = (model.with_name(model.name + suffix) for suffix in (".gguf", ".call.json"))
        if not self.gguf.exists():
            gguf.write(model, self.gguf)

    def prompt(self):
        done = subprocess.run([self.lime, "tokenize", "--model", self.model, "--json"], input=PROMPT, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)["ids"]

    def text(self, tokens):
        """So many greedy ids of LIME after PROMPT."""
        return json.loads(call([self.lime, "run", "--model", self.model, "--prompt", PROMPT, "--max-tokens", tokens, "--ignore-eos", "--json"]))["token_ids"]

    def command(self, text, uncounted, streams=1):
        """A command that follows `text` after PROMPT, in so many sequences at once. No page of the GGUF file is cached then."""
        exact = json.loads((self.model / "config.json").read_text()).get("torch_dtype") == "float32"
        self.call_file.write_text(json.dumps({"prompt": self.prompt(), "text": text, "uncounted": uncounted, "exact": exact, "streams": streams}))
        with open(self.gguf, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return [self.node, pathlib.Path(__file__).with_suffix(".mjs"), self.packages, self.gguf, self.call_file]

    def apart(self, text, logprobs):
        """How far `logprobs`, which llama.cpp found for each token of the text but the first, are from those of LIME."""
        prompt = self.prompt()
        ids = ",".join(str(token) for token in [*prompt, *text])
        scored = json.loads(call([self.lime, "score", "--model", self.model, "--ids", ids, "--top", 0, "--json"]))["positions"][len(prompt) + 1:]
        differences = [abs(position["logprob"] - logprob) for position, logprob in zip(scored, logprobs, strict=True)]
        if statistics.median(differences) > MOST_APART:
            raise RuntimeError(f"log-probabilities of LIME and llama.cpp are {statistics.median(differences):.3f} apart, so {self.gguf} is not {self.model}")
        return differences


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="folder of lime")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("packages", type=pathlib.Path, help="folder in which npm installed node-llama-cpp")
    parser.add_argument("--tokens", type=int, default=64)
    flags = parser.parse_args()
    if flags.tokens < FEWEST_TOKENS:
        parser.error(f"--tokens is at least {FEWEST_TOKENS}")
    try:
        llama = Llama(flags.packages, flags.binaries, flags.model)
        text = llama.text(flags.tokens)
        answer = json.loads(call(llama.command(text, flags.tokens // 2)))
        apart = llama.apart(text, answer["logprobs"])
    except (RuntimeError, gguf.Unsupported) as why:
        sys.exit(f"bench/llama.py: {why}")
    except subprocess.CalledProcessError as why:
        sys.exit(f"bench/llama.py: {pathlib.Path(why.cmd[0]).name} ended with {why.returncode}; its own message is above")
    same = sum(a == b for a, b in zip(text[1:], answer["likeliest"], strict=True))
    print(f"llama.cpp {answer['release']}: log-probabilities are {statistics.median(apart):.2g} apart in the median and {max(apart):.2g} at most; "
          f"{same} of {len(apart)} tokens are the same; {answer['ms_per_token']:.1f} ms/token")


if __name__ == "__main__":
    main()
