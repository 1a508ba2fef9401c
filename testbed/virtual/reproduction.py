"""The page of `testbed/reproduce`: what each figure and table of the paper says beside what was measured.

The page has summaries; every measured figure is in the data files (`data_files.py`). Tables are pure,
plots are drawn by matplotlib.
"""
import re
import textwrap

from virtual import report
from virtual.catalogue import CLAIMS, GROUPS, TABLE_V
from virtual.workload import WINDOW

# The paper's pipeline baselines. `lime-paper` is the paper's own LIME.
BASELINES = ("pp", "pp-offload", "pp-offload-batched", "edgeshard")
WITHIN = 0.1  # a good prediction is within this share of the measurement

TITLES = {
    "clusters": "Clusters E1 to E3 (section V-B, figures 12 to 14)",
    "settings": "Extremely low memory, Settings 1 to 3 (section V-C, figures 15 to 17)",
    "eviction": "Contexts whose KV no longer fits",
    "ablation": "Ablation (section V-E, table V)",
    "lending": "KV in another device's memory",
    "varying": "Varying bandwidth (section V-D, figure 18)",
    "windows": "Predicted beside measured while KV grows",
}

NOTES = {
    "clusters": """E1 is Llama 2 13B on two devices, E2 is Qwen3 32B on three, E3 is Llama 3.3 70B on four. The bursty
pattern has as many requests as devices.

We assume that 82 % of the nominal memory can hold weights and KV (`testbed/clusters`). With this
memory, each cluster holds its whole model and the KV of 2,048 tokens. Nothing has to stream, and `lime`
then gains at most 3 % over a pipeline that is cut well. In the paper, generation continues until KV has
filled the memory. The paper does not say at how many tokens that is.

**KV is almost empty in these runs.** They reserve KV for 2,048 tokens, which is 256 in the scale model.
But the prompts have 16 tokens in all, divided among the requests, and each request generates 9.
Attention therefore reads a tenth of the KV that the prediction counts, or less. On E1, full KV is 6 % of the bytes that a step of one request reads, so the
measured time is 0.947 of the prediction. On E2 and E3, full KV is 0.8 and 0.5 % of these bytes.
`testbed/reproduce --full-kv` runs the same experiments with prompts of text that fill the context. On
E1, measured times are then 0.996 to 1.006 of the predictions ([deviations](deviations.md#almost-empty-kv)).

In bursts, `lime` is slower than `lime-paper` on E1, and on E3 at 100 Mbit/s.
[Deviations](deviations.md#bursts-on-e1-and-e3) explains why.""",
    "settings": """The model is Llama 3.3 70B on five devices, as the paper's text says; the captions of
its figures 15 to 17 name Qwen3 32B. The text gives no factors for these figures. In these figures,
EdgeShard and the plain pipeline are out of memory. A strategy whose plan predicts more than 40 s per
token (sporadic) or 15 s (bursty) is out of time. The abstract gives factors of 1.7 (sporadic) and 3.7
(bursty) over the best baselines, for Llama 3.3 70B on four devices.

Prompts are short here too, so KV is almost empty. Full KV is 0.5 % of the bytes that a step of one
request reads.""",
    "eviction": """Llama 2 13B runs on E1 with one request of 19,712 tokens, and with two requests of 10,240. The weights
fit in memory, but the KV does not fit beside them. Llama 2 is defined for 4,096 positions. The runs use
its shapes with random weights and longer contexts, so they measure time and say nothing about text.

The paper's baselines without streaming recompute the keys and values of evicted tokens (section V-A).
`pp` and `edgeshard` keep the KV of the newest tokens, as many as fit, and every step sends the other
tokens through all layers again. The prompts fill the context except for the last tokens. These tokens
are generated, and their time is measured. The scale model divides the context by 8, and with it the
number of recomputed tokens. At full size, a step of `pp` therefore takes several times as long. The
column *predicted at full size* has the time at the end of the context.""",
    "ablation": """Llama 3.3 70B runs in Setting 2 at 200 Mbit/s. The paper does not name the setting of
its table V. At first the plan has KV for an eighth of the context, but for at least 512 tokens. It has
KV for the whole context if such a plan is faster. The prompt fills the context except for the last
tokens, so KV has already grown when the measurement begins. Nothing is extrapolated.

The first three variants choose by three different rules which parts stream as KV grows. `lime` uses
LIME's own rule. `--online paper` uses the threshold table of equations 5 to 7. `--no-memory-planner`
streams whole layers. A variant has no row if its plan and its flags for the run are those of an earlier
variant. *Not run* means that a variant has a plan of its own, but no measurement yet.

The bursty rows of 32,768 tokens come from an earlier planner, on daemons that took 184 MB each. Its
plans left 0.5 to 4.4 MiB of the margin free at their last levels. They moved no KV to other devices or
to disks, because every memory was full. All other rows come from the present planner, on daemons that
take 31 MB each. Its plans leave the whole margin of 16 MiB free at every level.

With one request at 8,192 tokens and with five at 2,048, the plan of the scale model reserves all KV
from the start. So the three rules run the same plan, and in these rows no plan has a host for KV. With
one request at 32,768 tokens and with five at 8,192, KV grows over 13 levels. If KV grows, the planner
compares plans by the time of their first level, but the table has the time of the last tokens. So with
five requests at 8,192 tokens, `lime` is slower in the table than variants that search fewer plans. Its
first level is faster than that of `--no-kv-lending`: 354 ms per token against 408. The bursty rows of
2,048 tokens have two turns. All other measured rows have one turn.

While the rows of one request at 32,768 tokens were measured, compilers with the lowest priority ran on
the same machine. *Predicted at full size* is the time at the end of the context, for plans that the
present planner found in 20 seconds.""",
    "lending": """This experiment is not in the paper. The paper's gain by KV transfer (14 % in table V) cannot be derived
from its text. Mistral Nemo 12B runs on two devices over 1 Gbit/s (`testbed/clusters/roomy.json`). One is
a fast board that the model almost fills. The other is a mini PC with 64 GB that computes slowly. The
plan reserves KV for 8,192 tokens at first, and KV grows. The prompts fill the context except for the
last tokens. These tokens are generated, and their time is measured.

With `lime`, the KV that the board cannot hold is in the memory of the mini PC, which attends to it
there. Without lending, the board streams weights instead. *All KV from the start* is a plan made for the
full context. In this plan the mini PC computes some of the layers, for every token. Re-planning would
find the same plan.""",
    "varying": """All links get another rate between 50 and 250 Mbit/s after a random number of
tokens (3 to 10). The strategies take turns. In the same turn, every strategy gets the same rates.
Plans are made for 150 Mbit/s. Each change belongs to a token, chosen at random. The rate changes
when this token should be generated, as the plan predicts. The data files have the token at which
the rate really changed. The paper's factors are over all its baselines, tensor parallelism
included.

The oracle knows every rate in advance. It has plans for several rates from 50 to 250 Mbit/s. For each
token it uses the plan that is fastest in the simulation at the current rate. For the oracle, a change
of plan costs nothing (`testbed/virtual/oracle.py`).

The paper's caption names Qwen3 32B. E2 runs this model. The memory of E2 holds all of it, so
nothing has to stream. Setting 2 runs Llama 3.3 70B, which its memory does not hold, so this setting
has to stream.""",
    "windows": f"""Setting 2 runs at 200 Mbit/s while KV grows over several levels ([online](online.md)). Each row has the
ms/token of {WINDOW} tokens, beside the prediction for the levels in use at these tokens. *Predicted at full
size* comes from another plan, which has other levels. The figure is the time per token
of the level that this plan uses at the middle one of these {WINDOW} tokens, while all requests run.""",
}


def pattern_of(result):
    return "sporadic" if result["requests"] == 1 else "bursty"


def factors(result):
    """{baseline: its time divided by the time of lime}"""
    return {name: ratio for name, ratio in report.ratios(result).items() if name in BASELINES}


def spread(values):
    return f"{min(values):.1f} to {max(values):.1f}" if values else "no baseline ran"


def beside_claims(results):
    """The first table: the paper's factors, and ours over the baselines that ran.

    The best baseline is the least factor of each experiment.
    """
    lines = ["| figure | pattern | Mbit/s | paper: LIME is faster by | ours, over all baselines that ran "
             "| ours, over the best baseline of each experiment |", "|---|---|--:|--:|--:|--:|"]
    for claim in CLAIMS:
        ours = [factors(r) for r in results
                if r["group"] == claim.group and pattern_of(r) == claim.pattern and claim.mbit in (0, r["mbit"])]
        if not ours:
            cells = "not run yet | "
        else:
            cells = (f"{spread([f for of in ours for f in of.values()])} | "
                     f"{spread([min(of.values()) for of in ours if of])}")
        rate = "50 to 250" if claim.group == "varying" else claim.mbit
        lines.append(f"| {claim.figure} | {claim.pattern} | {rate} | {claim.least} to {claim.most} | {cells} |")
    return "\n".join(lines) + "\n"


def settings_beside(results):
    """Figures 15 to 17 by experiment: the factor over the best baseline, and the baselines without
    a figure.
    """
    lines = ["| figure | setting | pattern | Mbit/s | `lime` faster than the best baseline by | out of memory "
             "| out of time |", "|---|---|---|--:|--:|---|---|"]
    for result in results:
        over = factors(result)
        figure = {"setting-1": 15, "setting-2": 16, "setting-3": 17}[result["setting"]]
        best = f"{min(over.values()):.2f} ({min(over, key=over.get)})" if over else "no baseline ran"
        lines.append(f"| {figure} | {result['setting']} | {pattern_of(result)} | {result['mbit']} | {best} "
                     f"| {with_outcome(result, 'OOM')} | {with_outcome(result, 'OOT')} |")
    return "\n".join(lines) + "\n"


def with_outcome(result, outcome):
    return ", ".join(row["strategy"] for row in result["strategies"] if row["outcome"] == outcome) or "none"


def settings_tables(results):
    return settings_beside(results) + "\n" + report.markdown(results)


def eviction_table(results):
    lines = ["| requests | context | strategy | predicted at full size | predicted | measured ms/token "
             "| `lime` is faster by |", "|--:|--:|---|--:|--:|--:|--:|"]
    for result in results:
        faster = report.ratios(result)
        for row in result["strategies"]:
            ratio = f"{faster[row['strategy']]:.2f}" if row["strategy"] in faster else ""
            predicted = f"{row['predicted_ms']:.0f}" if "predicted_ms" in row else ""
            lines.append(f"| {result['requests']} | {result['context']} | `{row['strategy']}` "
                         f"| {report.full_size_cell(row)} | {predicted} | {report.matrix_cell(row)} | {ratio} |")
    return "\n".join(lines) + "\n"


def ablation_table(results):
    """Table V beside ours: milliseconds per token, and the share of full LIME's speed.

    Variants that did not run because they are the same as an earlier one have no row; the lines below
    the table name them.
    """
    lines = ["| context | pattern | variant | predicted at full size | predicted | measured ms/token "
             "| share of full speed | paper: ms/token | paper: share |", "|--:|---|---|--:|--:|--:|--:|--:|--:|"]
    same = {}
    for result in results:
        full = next((row["measured_ms"] for row in result["strategies"]
                     if row["strategy"] == "lime" and row["outcome"] == "ran"), None)
        for row in result["strategies"]:
            if row["outcome"].startswith("same plan"):
                earlier = row["outcome"].removeprefix("same plan as ")
                same.setdefault((result["context"], pattern_of(result), earlier), []).append(f"`{row['strategy']}`")
                continue
            paper = TABLE_V.get((row["strategy"], pattern_of(result)))
            said = f"{paper[0]:.1f} | {paper[1]:.2f}" if paper else " | "
            lines.append(f"| {result['context']} | {pattern_of(result)} | `{row['strategy']}` "
                         f"| {report.full_size_cell(row)} | {ablation_cells(row, full)} | {said} |")
    if same:
        lines += ["",
                  "These variants have no row, because their plan and flags are those of another variant:",
                  ""]
        lines += [f"- {context} {pattern}, as `{earlier}`: {', '.join(names)}"
                  for (context, pattern, earlier), names in same.items()]
    return "\n".join(lines) + "\n"


def ablation_cells(row, full):
    if row["outcome"] != "ran":
        return f" | {report.matrix_cell(row)} | "
    share = f"{full / row['measured_ms']:.2f}" if full else ""
    return f"{row['predicted_ms']:.0f} | {row['measured_ms']:.0f} | {share}"


def varying_table(results):
    """The strategies, and `lime` compared with an oracle that knows every change of rate in
    advance.
    """
    lines = ["| setting | requests | measured ms/token | its plan, simulated | the oracle, simulated "
             "| plan / oracle | measured / oracle |", "|---|--:|--:|--:|--:|--:|--:|"]
    for result in results:
        if known := result.get("oracle"):
            lines.append(f"| {result['setting']} | {result['requests']} | {known['measured_ms']:.0f} "
                         f"| {known['plan_ms']:.0f} | {known['oracle_ms']:.0f} "
                         f"| {known['plan_ms'] / known['oracle_ms']:.3f} "
                         f"| {known['measured_ms'] / known['oracle_ms']:.3f} |")
    return report.markdown(results) + ("\n" + "\n".join(lines) + "\n" if len(lines) > 2 else "")


def window_table(results):
    lines = ["| requests | context | positions | predicted at full size | predicted ms/token | measured "
             "| measured / predicted |", "|--:|--:|--:|--:|--:|--:|--:|"]
    for result in results:
        for window in windows_of(result):
            ratio = window["measured_ms"] / window["predicted_ms"]
            mark = "" if abs(1 / ratio - 1) <= WITHIN else " (off by more than 10 %)"
            lines.append(f"| {result['requests']} | {result['context']} | {window['from']} to {window['to']} "
                         f"| {report.full_size_cell(window)} | {window['predicted_ms']:.0f} "
                         f"| {window['measured_ms']:.0f} | {ratio:.3f}{mark} |")
    return "\n".join(lines) + "\n"


def windows_of(result):
    return [window for row in result["strategies"] for window in row.get("windows", [])]


def troubles(results):
    """Failures, missing measurements and differing logits; empty if there are none."""
    lines = []
    for result in results:
        failed = [row for row in result["strategies"] if row["outcome"] == "failed"]
        lines += [f"- {result['name']}, {row['strategy']}: failed: {' '.join(row['reason'].split())}" for row in failed]
        if not result["same_tokens_and_logits"]:
            lines.append(f"- {result['name']}: tokens or logits of turns DIFFER")
        if result["oom_kills"]:
            lines.append(f"- {result['name']}: {result['oom_kills']} out-of-memory kills")
    return "\n".join(["", "**Not as it should be:**", ""] + lines) + "\n" if lines else ""


def lending_table(results):
    lines = ["| context | variant | predicted at full size | predicted | measured ms/token | measured / predicted "
             "| `lime` is faster by |", "|--:|---|--:|--:|--:|--:|--:|"]
    for result in results:
        faster = report.ratios(result)
        for row in result["strategies"]:
            begin = f"| {result['context']} | `{row['strategy']}` | {report.full_size_cell(row)} |"
            if row["outcome"] != "ran":
                lines.append(f"{begin} | {row['outcome']} | | |")
                continue
            ratio = f"{faster[row['strategy']]:.2f}" if row["strategy"] in faster else ""
            lines.append(f"{begin} {row['predicted_ms']:.0f} | {row['measured_ms']:.0f} "
                         f"| {row['over_predicted']:.3f} | {ratio} |")
    return "\n".join(lines) + "\n"


TABLES = {"clusters": report.markdown, "settings": settings_tables, "eviction": eviction_table,
          "ablation": ablation_table, "lending": lending_table, "varying": varying_table, "windows": window_table}


def wrapped(text):
    """Breaks prose at 100 characters. Paragraphs stay separate, and a command stays on one line."""
    whole = re.sub("`[^`]*`", lambda command: re.sub(r"\s+", "\0", command.group()), text)
    fill = lambda paragraph: textwrap.fill(paragraph, 100, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(fill(paragraph) for paragraph in whole.split("\n\n")).replace("\0", " ")


def section(group, results):
    """The section of one group: the paper's experiment, and our results."""
    head = f"## {TITLES[group]}\n\n{wrapped(NOTES[group])}\n"
    if not results:
        return head + f"\nNot run yet: `testbed/reproduce --only {group}`.\n"
    pictures = "".join(f"\n![{TITLES[group]}]({name})\n" for name in pictures_of(group, results))
    return f"{head}\n{TABLES[group](results)}{troubles(results)}{pictures}"


def pictures_of(group, results):
    """The names of the plots for which there are results."""
    if group == "windows":
        return ["reproduction-windows.svg"] if any(windows_of(r) for r in results) else []
    ran = any(row["outcome"] == "ran" for r in results for row in r["strategies"])
    redrawn = any(row.get("redrawn") for r in results for row in r["strategies"])
    return ([f"reproduction-{group}.svg"] if ran else []) + (["reproduction-redrawn.svg"] if redrawn else [])


def conditions(results):
    """The conditions of all experiments, one sentence each: bits, kills, load of the machine."""
    if not results:
        return ""
    same = all(r["same_tokens_and_logits"] for r in results)
    kills = sum(r["oom_kills"] for r in results)
    share = max(r["real_compute_share"] for r in results)
    return wrapped(f"All turns of an experiment gave {'the same' if same else 'DIFFERENT'} tokens and logits. "
                   f"The kernel killed {kills or 'no'} process{'es' if kills > 1 else ''} for lack of memory. All "
                   f"daemons together used at most {share:.0%} of the machine's processor time.") + "\n"


def page(results, factor_table):
    """All of docs/results/reproduction.md. `results` in any order."""
    scale = "\n".join(f"| {what} | {by} |" for what, by in factor_table)
    text = f"""# Reproduction

This page has the results of the experiments of sections V-B to V-E of the LIME paper, as scale
models on virtual devices of one machine. `testbed/reproduce` runs all experiments and writes this
page ([testbed](../../testbed/README.md)). [Experiments](experiments.md) says how they are measured.
[Deviations](deviations.md) says where they differ from the paper. The rates of boards and disks are
estimates (`testbed/clusters`), so the milliseconds cannot be compared with the paper. Factors
between strategies can be compared.

Every measured figure is in a data file. This page has summaries.

| file | content |
|---|---|
| [reproduction.csv](reproduction.csv) | one row per strategy and experiment: predicted, measured (least to most), turns, plan |
| [reproduction-conditions.csv](reproduction-conditions.csv) | one row per device and experiment: requested and measured limits, peak memory |
| [reproduction.json](reproduction.json) | both, with every interval of {WINDOW} tokens and every change of the links' rates |

## How to read it

Scale models divide the model and the devices by these factors. Times stay as at full size.

| | divided by |
|---|--:|
{scale}

- A figure is the median of alternating turns, in ms per token. In a burst it is the time of a step
  divided by the number of requests.
- All strategies are plans of the same engine. The paper's tensor-parallel baselines (Galaxy,
  TPI-LLM with and without offloading) are missing.
- `lime-paper` is the paper's Algorithm 1. It is not one of the paper's baselines.
- With one request, `pp-offload-batched` is `pp-offload`.
- *Out of memory*: there is no plan, or the plan has no room for the KV of all requests. `pp` and
  `edgeshard` do not stream weights, so they are out of memory if the weights do not fit. If the
  weights fit and KV does not, `pp` and `edgeshard` recompute the KV of evicted tokens instead.

{conditions(results)}
## The paper's factors beside ours

{beside_claims(results)}"""
    return text + "".join("\n" + section(group, [r for r in results if r["group"] == group]) for group in GROUPS)


def plots(results, folder):
    """The SVGs that the page shows."""
    for group in GROUPS:
        of = [r for r in results if r["group"] == group]
        for name in pictures_of(group, of):
            drawn = {"reproduction-windows.svg": plot_windows, "reproduction-redrawn.svg": plot_redrawn}.get(name, report.plot)
            drawn(of, folder / name)


def plot_windows(results, path):
    shown = [r for r in results if windows_of(r)]
    figure, axes, firsts = report.axes_of(len(shown))
    for axis, result in zip(axes, shown):
        found = windows_of(result)
        middles = [(w["from"] + w["to"]) / 2 for w in found]
        axis.plot(middles, [w["measured_ms"] for w in found], "o-", color="#2a6f97", label="measured")
        axis.plot(middles, [w["predicted_ms"] for w in found], "_", markersize=16, color="#c1121f", label="predicted")
        axis.set_ylim(bottom=0)
        axis.set_xlabel("position")
        axis.set_title(report.title(result), fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in firsts:
        axis.set_ylabel(f"ms per token, windows of {WINDOW}")
    axes[0].legend(fontsize=8, frameon=False, loc="lower right")
    report.save(figure, path)


def plot_redrawn(results, path):
    """Time between tokens of the first request, and the links' rate, by token: one turn of each
    strategy.
    """
    shown = [r for r in results if any(row.get("redrawn") for row in r["strategies"])]
    figure, axes, firsts = report.axes_of(len(shown))
    for axis, result in zip(axes, shown):
        rate = axis.twinx()
        for row in result["strategies"]:
            if not row.get("redrawn"):
                continue
            turn = row["redrawn"][0]
            width = 2 if row["strategy"] == "lime" else 1
            axis.plot(range(1, len(turn["intervals_ms"]) + 1), turn["intervals_ms"], label=row["strategy"], linewidth=width)
            if row["strategy"] == "lime":
                tokens, mbit = zip(*turn["drawn"])
                full = [value * dict(result["factors"])["bytes of a hidden state, network rate"] for value in mbit]
                rate.step(list(tokens) + [len(turn["intervals_ms"])], full + full[-1:], where="post", color="#888888", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_xlabel("token")
        rate.set_ylim(0, 300)
        rate.set_ylabel("Mbit/s (grey; of lime's turn)", fontsize=7)
        axis.set_title(report.title(result), fontsize=9)
    for axis in firsts:
        axis.set_ylabel("ms between two tokens")
    axes[0].legend(fontsize=7, frameon=False)
    report.save(figure, path)
