"""The course of a turn over time, as arithmetic: lengths of prompts, changes of the links' rate,
the level of growing KV, windows of tokens. Pure.

Times are seconds. `times` has the times of each request's tokens, in the order of the requests.
"""
import bisect
import random
import statistics
from dataclasses import dataclass

LEAST_MBIT, MOST_MBIT = 50, 250  # the paper's section V-D
PAGE_TOKENS = 16
LEAD = 24  # the engine has pages for so many steps ahead: twice kResidencyLead of common/order.h
WINDOW = 50
LEAST_CHUNK = 64


@dataclass(frozen=True)
class Load:
    """The load of one turn: the prompt and the generated tokens of each request."""

    prompt: int
    tokens: tuple  # by request


def load_of(question, plans):
    """The same load for every variant: the load of the plan with the shortest prompts."""
    return max((load_of_plan(question, plan) for plan in plans), key=lambda load: load.tokens)


def load_of_plan(question, plan):
    """Prompts that do not share one chunk end one after another, and the later ones may have to
    wait for another level of KV. So each request runs until the last one has begun, and then
    generates the requested number of tokens.
    """
    if not (question.fill or question.start):
        return Load(plan["prompt_tokens"] // plan["sequences"], (question.tokens,) * plan["sequences"])
    others = plan["sequences"] - 1
    chunk = max(1, plan["prefill_chunk"] or LEAST_CHUNK)
    longest = plan["context"] if question.fill else question.start // question.width
    waits = lead_of(plan) if others and len(plan.get("kv_levels", [])) > 1 else 0
    tokens = tuple(question.tokens + -(-behind * longest // chunk) + waits for behind in range(others, -1, -1))
    prompt = plan["context"] - tokens[0] if question.fill else longest
    if prompt < 1 or prompt + tokens[0] > plan["context"]:
        raise ValueError(f"{tokens[0]} tokens after prompts of {prompt} do not fit in a context of {plan['context']}")
    return Load(prompt, tokens)


def redraws(seed, tokens, pause):
    """[(first token, Mbit/s)], beginning with the first token. The rate changes at random after
    `pause` (least, most) tokens.
    """
    draw = random.Random(seed)
    found, token = [], 0
    while token < tokens:
        found.append((token, draw.randint(LEAST_MBIT, MOST_MBIT)))
        token += draw.randint(*pause)
    return found


def rate_at(drawn, token):
    return drawn[bisect.bisect_right([at for at, _ in drawn], token) - 1][1]


def moments(drawn, first_s, step_s):
    """[(seconds from the beginning, Mbit/s)] at which the tokens of `drawn` are expected. The first
    token takes `first_s`, each later one step_s(Mbit/s).
    """
    found, at, token = [(0.0, drawn[0][1])], first_s, 1
    for until, mbit in drawn[1:]:
        while token < until:
            at += step_s(rate_at(drawn, token))
            token += 1
        found.append((at, mbit))
    return found


def token_at(times, moment):
    """The number of tokens of the first request before `moment`."""
    return bisect.bisect_right(times[0], moment)


def pages_of(position):
    return -(-position // PAGE_TOKENS)


def lead_of(plan):
    """Steps by which a level is ordered before its use; 0 if KV is evicted, because then nothing
    changes.
    """
    return 0 if plan.get("kept_positions") else LEAD


def level_of(levels, positions, ends, lead=LEAD):
    """The level in use: the lowest with the pages that the next steps may write."""
    pages = sum(pages_of(min(end, position + lead)) for position, end in zip(positions, ends))
    return next((level for level in levels if level["layer_pages"] >= pages), levels[-1])


def all_fit(levels, prompt, tokens):
    """Whether the last level holds all requests at their ends together. If not, they run one after
    another.
    """
    return not levels or levels[-1]["layer_pages"] >= sum(pages_of(prompt + of) for of in tokens)


def predicted_ms(levels, times, prompt, index, lead=LEAD):
    """Milliseconds per token of all requests, for the step that gave the first request's token `index`."""
    positions = [prompt + bisect.bisect_right(of, times[0][index]) for of in times]
    return level_of(levels, positions, [prompt + len(of) for of in times], lead)["ms_per_token"]


def full_size_ms(levels, window, question, lead):
    """Predicted milliseconds per token in the middle of a window at full size, while all requests
    run. None if there are no levels.
    """
    if not levels:
        return None
    position = (window["from"] + window["to"]) * question.width // 2
    return level_of(levels, [position] * question.requests, [question.context] * question.requests, lead)["ms_per_token"]


def settled(times, warm_up):
    """Indices of the first request's tokens that came while all requests ran and had passed the
    warm-up.
    """
    begin, end = max(of[warm_up] for of in times), min(of[-1] for of in times)
    return [i for i, t in enumerate(times[0]) if begin <= t <= end]


def windows(levels, times, prompt, warm_up, size=WINDOW, lead=LEAD):
    """Windows of `size` tokens: the first request's positions, and milliseconds per token of all
    requests, measured and predicted.
    """
    inside, requests, found = settled(times, warm_up), len(times), []
    for first in range(inside[0], inside[-1] - size + 1, size):
        steps = range(first + 1, first + size + 1)
        found.append({"from": prompt + first + 1, "to": prompt + first + size,
                      "measured_ms": 1000 * (times[0][first + size] - times[0][first]) / size / requests,
                      "predicted_ms": statistics.mean(predicted_ms(levels, times, prompt, i, lead) for i in steps)})
    return found
