"""The catalogue of `testbed/reproduce`: the experiments of the paper's sections V-B to V-E that
LIME can run, each as a Question, and the paper's results for them. Pure.
"""
from dataclasses import dataclass, replace

STRATEGIES = ("lime", "lime-paper", "pp", "pp-offload", "pp-offload-batched", "edgeshard")
MODELS = {"e1": "llama-2-13b", "e2": "qwen3-32b", "roomy": "mistral-nemo-12b"}  # of a cluster; all others run the largest
LARGEST = "llama-3.3-70b"
QUICK_PAUSE = (3, 6)


@dataclass(frozen=True)
class Variant:
    """One of the things that an experiment compares: a plan's strategy, and the flags of its run.
    """

    name: str
    strategy: str
    run_flags: tuple = ()
    plan_flags: tuple = ()
    grows: bool = True  # KV grows if the question has kv_tokens; False: all KV from the start
    longer: float = 1.0  # factor on the predicted time, to estimate a duration


def plain(strategies):
    return tuple(Variant(s, s) for s in strategies)


ABLATION = (Variant("lime", "lime"), Variant("lime --online paper", "lime", ("--online", "paper"), longer=2.0),
            Variant("lime --no-memory-planner", "lime", ("--no-memory-planner",), longer=3.0),
            *(Variant(f"lime {flag}", "lime", plan_flags=(flag,)) for flag in ("--no-kv-lending", "--no-kv-spill", "--no-remote-attention")))
LIME = Variant("lime", "lime")
# A plan made for all KV puts layers onto the roomy device, and so is slower while contexts are
# short. It is here to compare with planning again.
LENDING = (LIME, Variant("lime --no-kv-lending", "lime", plan_flags=("--no-kv-lending",), longer=2.0), Variant("lime, all KV from the start", "lime", grows=False))


@dataclass(frozen=True)
class Question:
    """One experiment. Contexts and prompts are counted in tokens at full size. The generated tokens
    of a turn are not scaled.
    """

    setting: str
    mbit: int = 200
    requests: int = 1
    variants: tuple = plain(STRATEGIES)
    group: str = ""  # its group in the catalogue
    rounds: int = 3
    tokens: int = 9
    warm_up: int = 3
    context: int = 2048
    prompt_tokens: int = 16  # the plan's prompt; not scaled: a prompt is one chunk
    kv_tokens: int = 0  # positions with KV at first; 0: all, KV does not grow
    fill: bool = False  # prompts fill the context except for the generated tokens
    text: bool = False  # prompts are parts of stories; else one repeated sentence
    start: int = 0  # length of the prompts; 0: as planned
    pause: tuple = ()  # (least, most) tokens between two changes of the links' rate; empty: none
    width: int = 8

    def model(self):
        return MODELS.get(self.setting, LARGEST)

    def name(self):
        if self.group in ("", "clusters", "settings"):
            return f"{self.setting}-{self.mbit}mbit-{self.requests}"
        return "-".join([self.group, self.setting, str(self.requests)] + ([f"{self.context}"] if self.group in ("ablation", "lending") else []))

    def pattern(self):
        return "sporadic" if self.requests == 1 else "bursty"


def out_of_time_ms(requests):
    """Limit in milliseconds per token, from the paper's section V-C."""
    return 40000 if requests == 1 else 15000


def compared(requests):
    """The strategies to compare. With one request, pp-offload-batched is the same as pp-offload and
    left out.
    """
    return plain(s for s in STRATEGIES if requests > 1 or s != "pp-offload-batched")


def clusters():
    devices = {"e1": 2, "e2": 3, "e3": 4}
    return [Question(setting, mbit, requests, compared(requests), "clusters", rounds=3 if requests == 1 else 2)
            for setting in devices for mbit in (200, 100) for requests in (1, devices[setting])]


def settings():
    return [Question(f"setting-{n}", mbit, requests, compared(requests), "settings", rounds=3 if requests == 1 else 2)
            for n in (1, 2, 3) for mbit in (200, 100) for requests in (1, 5)]


def ablation():
    """KV begins with an eighth of the context. Prompts fill the context except for the generated
    tokens, so every rule has more parts stream by then.
    """
    return [Question("setting-2", 200, requests, ABLATION, "ablation", rounds=2, tokens=20, warm_up=4, context=context, kv_tokens=max(512, context // 8),
                     prompt_tokens=max(64, context // 64), fill=True)
            for requests in (1, 5) for context in (2048, 8192, 32768)]


def lending():
    """Not in the paper: one device that its model fills, and one with free memory, over 1 Gbit/s.
    """
    return [Question("roomy", 1000, 1, LENDING, "lending", rounds=3, tokens=20, warm_up=4, context=context, kv_tokens=8192, prompt_tokens=512, fill=True)
            for context in (16384, 32768)]


def eviction():
    """Not a figure of the paper. It shows what the paper's baselines do if KV no longer fits:
    contexts are longer than E1 can hold, and prompts fill them except for the generated tokens. The
    contexts are short enough that this machine computes as fast as the boards.
    """
    return [Question("e1", 200, requests, compared(requests), "eviction", rounds=2, tokens=20, warm_up=4, context=context, prompt_tokens=128, fill=True)
            for requests, context in ((1, 19712), (2, 10240))]


def varying():
    """Plans are made for the middle of the rates. `e2` has the model that the paper's caption
    names.
    """
    return [Question(setting, 150, requests, compared(requests), "varying", rounds=2, tokens=40 if requests == 1 else 24, pause=(3, 10))
            for setting, bursty in (("setting-2", 5), ("e2", 3)) for requests in (1, bursty)]


def windows():
    """KV grows over several levels while a few hundred tokens are generated."""
    only = plain(["lime"])
    return [Question("setting-2", 200, 1, only, "windows", rounds=1, tokens=320, context=32768, kv_tokens=4096, prompt_tokens=512, start=14400),
            Question("setting-2", 200, 5, only, "windows", rounds=1, tokens=260, context=8192, kv_tokens=1024, prompt_tokens=128, start=2400)]


def catalogue():
    return clusters() + settings() + eviction() + ablation() + lending() + varying() + windows()


GROUPS = ("clusters", "settings", "eviction", "ablation", "lending", "varying", "windows")


def quick(question):
    """The same experiment with few tokens and one turn. It shows that everything runs, but its
    figures mean nothing.
    """
    tokens = {"windows": 60, "varying": 14}.get(question.group, 6)
    return replace(question, rounds=1, tokens=tokens, warm_up=2, pause=QUICK_PAUSE if question.pause else ())


def full_kv(question):
    """The same experiment with prompts of text that fill the context except for the generated
    tokens. Attention then reads all the KV that the plan counts. It generates as many tokens as
    other experiments whose prompts fill the context. If a question states the length of its
    prompts, that length stays.
    """
    if question.fill or question.start:
        return replace(question, text=True)
    return replace(question, text=True, fill=True, prompt_tokens=max(64, question.context // 64), tokens=max(20, question.tokens),
                   warm_up=4)


def select(questions, names):
    """The questions of the named experiments and groups; all questions without a name."""
    known = {q.name() for q in questions} | {q.group for q in questions}
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ValueError(f"there is no experiment {', '.join(wrong)}; --list shows the names")
    return [q for q in questions if not names or q.name() in names or q.group in names]


@dataclass(frozen=True)
class Claim:
    """The paper's claim: how many times faster LIME is than pipeline baselines. Both ends of the
    range, over the paper's models and baselines.
    """

    figure: str
    group: str
    pattern: str
    mbit: int  # 0: any
    least: float
    most: float


CLAIMS = (
    Claim("12 to 14", "clusters", "sporadic", 100, 2.5, 7.6),
    Claim("12 to 14", "clusters", "sporadic", 200, 1.4, 6.5),
    Claim("12 to 14", "clusters", "bursty", 100, 1.9, 10.2),
    Claim("12 to 14", "clusters", "bursty", 200, 1.9, 10.2),
    Claim("18", "varying", "sporadic", 0, 1.7, 8.8),
    Claim("18", "varying", "bursty", 0, 3.6, 19.3),
)

# Table V: (variant here, pattern) -> (ms per token, share of full LIME's speed).
TABLE_V = {
    ("lime", "sporadic"): (1501.9, 1.0), ("lime", "bursty"): (423.2, 1.0),
    ("lime --no-memory-planner", "sporadic"): (2251.7, 0.67), ("lime --no-memory-planner", "bursty"): (614.8, 0.69),
}
