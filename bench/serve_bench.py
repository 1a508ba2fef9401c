#!/usr/bin/python3
"""What HTTP costs: time for a token of `lime serve` beside `lime run`, with 1 and 8 streams, and the first token of a chat's second turn.

    bench/serve_bench.py BIN_DIR OUT_DIR [--model DIR] [--rounds N] [--tokens N] [--llama PACKAGES]

Server and `lime run` take turns, so that both see the same machine, and each holds its weights alone: how fast they can be read depends on
the pages of memory that a process got, and of two at once one would always get the worse ones. A ratio is that of the medians of all
rounds. Times of the server are those that its client sees. With --llama, llama.cpp takes its turn too, one sequence and 8 in a batch: in the package of npm that
bench/README.md names, which has no server, so its times have no HTTP. OUT_DIR/serve.json has every round.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time

import llama as llama_cpp
from report import answer, call, heading, table, verdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/serve"))
import wire  # noqa: E402

STREAMS = 8
CONTEXT = 4096
OVERHEAD_GOAL = {1: 1.015, STREAMS: 1 / 0.97}  # by number of streams: of the time that lime run takes for a token
TURN_GOAL = 1.10  # of a step and the new rows
CHAT_TOKENS, QUESTION = 2000, "And what does the fox say to that, in your opinion?"


class Server:
    """A `lime serve` of the folder, for as long as the context lasts."""

    def __init__(self, binaries, model):
        words = [binaries / "lime", "serve", "--model", model, "--port", "0", "--context", CONTEXT, "--parallel", STREAMS, "--json"]
        self.process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        ready = self.process.stdout.readline()
        if not ready:
            raise RuntimeError(f"lime serve ended with {self.process.wait()}")
        self.url = json.loads(ready)["url"].rstrip("/")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def stream(self, path, body):
        """{"ttft_ms", "ms_per_token", "usage", "text"} as the client sees it."""
        body = {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, **body}
        begin = time.monotonic()
        times, text = [], ""
        with wire.Stream(self.url, path, body) as stream:
            for chunk in stream:
                for choice in chunk["choices"]:
                    piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
                    text += piece
                    if piece:
                        times.append(time.monotonic())
                usage = chunk.get("usage")
        later = max(1, usage["completion_tokens"] - 1)
        return {"ttft_ms": 1e3 * (times[0] - begin), "ms_per_token": 1e3 * (times[-1] - times[0]) / later, "usage": usage, "text": text}

    def streams(self, bodies):
        """Their times for a token, at once."""
        found = [None] * len(bodies)

        def one(number):
            found[number] = self.stream("/v1/completions", bodies[number])["ms_per_token"]

        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(bodies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return statistics.median(found)


def small_model(binaries, out):
    """A few milliseconds a token, so that thousands of them take seconds. Kept for the next run."""
    small = out / "small"
    if not (small / "config.json").exists():
        call([binaries / "make_model", "--out", small, "--layers", "8", "--hidden", "512", "--heads", "8", "--kv-heads", "4", "--intermediate", "1536",
              "--vocab", "4096", "--positions", "8192", "--dtype", "BF16"])
    return small


def prompts(count):
    return [f"Once upon a time there were {number} foxes." for number in range(count)]


def run_ms(binaries, out, model, count, tokens):
    """The time of `lime run` for a token of each of so many prompts."""
    file = out / "serve-prompts.txt"
    file.write_text("\n".join(prompts(count)) + "\n")
    said = answer([binaries / "lime", "run", "--model", model, "--prompts-file", file, "--max-tokens", tokens, "--ignore-eos"])
    return said["ms_per_step"] if count > 1 else said["ms_per_token"]


def serve_ms(server, count, tokens):
    bodies = [{"prompt": prompt, "max_tokens": tokens, "cache_prompt": False} for prompt in prompts(count)]
    return server.streams(bodies) if count > 1 else server.stream("/v1/completions", bodies[0])["ms_per_token"]


def second_turn(server, number):
    """{"ttft_ms": of the second turn, "rows": new ones, "cached": the others}"""
    first = [{"role": "user", "content": (f"Chat {number}. " + "The quick brown fox jumps over the lazy dog. " * CHAT_TOKENS)[:CHAT_TOKENS]}]
    answered = server.stream("/v1/chat/completions", {"messages": first, "max_tokens": 32})
    second = [*first, {"role": "assistant", "content": answered["text"]}, {"role": "user", "content": QUESTION}]
    turn = server.stream("/v1/chat/completions", {"messages": second, "max_tokens": 32})
    cached = turn["usage"]["prompt_tokens_details"]["cached_tokens"]
    rows = turn["usage"]["prompt_tokens"] - cached
    return {"ttft_ms": turn["ttft_ms"], "rows": rows, "cached": cached}


def turn_limit(binaries, model, turn):
    """What `lime bench`, without server, cache and text, takes for the new rows behind the cached positions, and for a step behind all of them."""
    rows, cached = turn["rows"], turn["cached"]
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if "linear_attention" in json.dumps(config):
        return {}  # lime bench has no --cached for it
    said = answer([binaries / "lime", "bench", "--model", model, "--prompt", rows, "--cached", cached, "--position", cached + rows, "--batch", 1, "--rounds", 7])
    ms = {row["figure"].split(" of ")[0]: row["ms"] for row in said["rows"]}
    return {"step_ms": ms["decode"], "rows_ms": ms["prefill"]}


def measure(binaries, out, model, rounds, tokens, llama=None):
    """`llama`: llama_cpp.Llama of the model, or None."""
    kinds = ("run", "serve", "llama") if llama else ("run", "serve")
    found = {f"{kind}_{count}": [] for kind in kinds for count in (1, STREAMS)} | {"second_turn": []}

    def of_run():
        for count in (1, STREAMS):
            found[f"run_{count}"].append(run_ms(binaries, out, model, count, tokens))

    def of_server():
        with Server(binaries, model) as server:
            serve_ms(server, 1, tokens)  # clocks are as they stay
            for count in (1, STREAMS):
                found[f"serve_{count}"].append(serve_ms(server, count, tokens))
            turn = second_turn(server, number)
        found["second_turn"].append(turn | turn_limit(binaries, model, turn))

    def of_llama():
        text = llama.text(tokens)
        for count in (1, STREAMS):
            answered = json.loads(call(llama.command(text, 1, count)))
            found[f"llama_{count}"].append(answered["ms_per_token"])

    turns = [of_run, of_server, *([of_llama] if llama else [])]
    for number in range(rounds):
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
    return found


def show(found):
    rows = []
    for count in (1, STREAMS):
        run, serve = (statistics.median(found[f"{kind}_{count}"]) for kind in ("run", "serve"))
        beside = [f"{statistics.median(found[f'llama_{count}']):.3f} ms"] if "llama_1" in found else []
        rows.append([f"{count} stream{'' if count == 1 else 's'}", f"{run:.3f} ms", f"{serve:.3f} ms", f"{serve / run:.3f}",
                     verdict(round(serve / run, 3), OVERHEAD_GOAL[count], at_least=False), *beside])
    table(["a token", "lime run", "lime serve", "ratio", "goal", *(["llama.cpp, no server"] if "llama_1" in found else [])], rows)
    turn = {name: statistics.median(one[name] for one in found["second_turn"]) for name in found["second_turn"][0]}
    if "rows_ms" not in turn:
        print("  the second turn of a model with linear attention has no limit to compare with")
        return
    limit = turn["step_ms"] + turn["rows_ms"]
    table(["second turn of a chat", "cached", "new rows", "first token", "a step and the new rows", "ratio", "goal"],
          [[f"{CHAT_TOKENS} tokens", round(turn["cached"]), round(turn["rows"]), f"{turn['ttft_ms']:.2f} ms", f"{limit:.2f} ms", f"{turn['ttft_ms'] / limit:.2f}",
            verdict(round(turn["ttft_ms"] / limit, 2), TURN_GOAL, at_least=False)]])


def serve(bench):
    """The table of bench/run."""
    heading("`lime serve` beside `lime run`: the time for a token, and the first token of a second turn")
    bench.report["serve"] = measure(bench.binaries, bench.out, bench.small(), 3 if bench.quick else 9, 64 if bench.quick else 256)
    show(bench.report["serve"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, help="a checkpoint; without it a random one of a few milliseconds a token")
    parser.add_argument("--rounds", type=int, default=9, help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=256, help="(%(default)s)")
    parser.add_argument("--llama", type=pathlib.Path, help="folder in which npm installed node-llama-cpp (bench/README.md)")
    flags = parser.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    model = flags.model or small_model(flags.binaries, flags.out)
    beside = llama_cpp.Llama(flags.llama, flags.binaries, model) if flags.llama else None
    found = measure(flags.binaries, flags.out, model, flags.rounds, flags.tokens, beside)
    (flags.out / "serve.json").write_text(json.dumps(found, indent=1))
    show(found)


if __name__ == "__main__":
    main()
