"""The page of `testbed/reproduce`: what each figure and table of the paper says beside what was measured here. Tables are pure; plots by matplotlib."""
from virtual import report
from virtual.catalogue import CLAIMS, GROUPS, TABLE_V
from virtual.workload import WINDOW

BASELINES = ("pp", "pp-offload", "pp-offload-batched", "edgeshard")  # of the paper those of pipelines; lime-paper is its own LIME
WITHIN = 0.1  # of measured, in which a prediction is to be

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
    "clusters": """E1: Llama 2 13B on two devices, E2: Qwen3 32B on three, E3: Llama 3.3 70B on four. Bursty is as many requests as devices.

The paper lets generation go on until KV has used up the memory, and does not say for how long. With 82 % of the nominal memory for weights and KV, as our
descriptions of the boards have it, each of these clusters holds its model and the KV of 2,048 tokens: nothing has to stream, and then `lime` has nothing over a
pipeline that is cut well. What it is worth where memory does not suffice is in the next section.""",
    "settings": """Llama 3.3 70B on five devices, as the paper's text has it; the captions of its figures 15 to 17 name Qwen3 32B. The paper gives no factors
in the text: EdgeShard and the plain pipeline are out of memory, and what takes longer than 40 s (sporadic) or 15 s (bursty) per token is out of time, by the plan's prediction
here. Its abstract has LIME 1.7 (sporadic) and 3.7 (bursty) times faster than the best of all baselines on Llama 3.3 70B.""",
    "eviction": """Llama 2 13B on E1 at 19,712 tokens, and two requests of 10,240: the weights fit, and their KV no longer does beside them. Here the paper has baselines that do not stream compute
the keys and values of evicted tokens again (section V-A). `pp` and `edgeshard` keep the KV of as many tokens as memory has room for, the newest ones, and every step sends the others through all
layers once more. Prompts fill the context but for what is generated, and those last tokens are measured. Contexts are divided by 8 here, and with them what is computed again: at full size
a step of `pp` takes several times as long (*predicted at full size*, at the end of the context).""",
    "ablation": """Llama 3.3 70B in Setting 2 at 200 Mbit/s; the paper does not name its setting. The plan has KV for an eighth of the context at first (512 tokens at
least); a prompt then fills the context but for the last tokens, so that every rule has streamed more by the time it is measured, and the tokens measured are those
at the end of the context: nothing is extrapolated, and nothing but the scale below is divided. `--online paper` is the threshold table of equations 5 to 7,
`--no-memory-planner` streams whole layers. Flags of planning that change no plan are not run: here the planner puts KV neither into the memory of other devices nor on disks,
since weights are left to stream at every level and every memory is full, so that the paper's row without KV transfer is full LIME. Where KV in another memory pays is in the
next section. Measured with plans that left 0.5 to 4.4 of the 16 MiB of margin free at their last levels; *predicted at full size* is of plans that leave all of it, at the
end of the context; KV grows in them where that is faster at first.""",
    "lending": """Not of the paper, whose gain by KV transfer (14 % in table V) cannot be derived from its text. Mistral Nemo 12B on two devices over 1 Gbit/s: a fast board that the
model all but fills, and a mini PC with 64 GB that computes slowly (`testbed/clusters/roomy.json`). KV is planned for 8,192 tokens at first and grows; prompts fill the context but for what is
generated, and those last tokens are measured. `lime` has the KV that the board has no room for in the mini PC's memory, which attends to it there; without lending the board streams. A plan
made for all KV from the start has layers on the mini PC for every token, and is what planning anew would give.""",
    "varying": """All links get another rate between 50 and 250 Mbit/s after random numbers of tokens (3 to 10), the same draws for every strategy of a round. Planned for
150 Mbit/s. A redraw comes when the plan's own prediction has its token; which token it was is kept with the turn. The paper's factors are over all its baselines,
tensor parallelism included. The oracle is told every redraw in advance: it takes at every token the best of plans made for 50 to 250 Mbit/s, in the simulator, and changes from
one to the other for nothing (`testbed/virtual/oracle.py`). Its caption names Qwen3 32B, which E2 holds in memory: there nothing has to stream. Where memory does not suffice is Setting 2.""",
    "windows": f"""Setting 2 at 200 Mbit/s while KV grows over several levels (`docs/ONLINE.md`): ms/token of every {WINDOW} tokens, and what the level in use at each of them
was predicted to take. At full size it is the level in the middle of a window, with all requests there; another plan, with levels elsewhere.""",
}


def pattern_of(result):
    return "sporadic" if result["requests"] == 1 else "bursty"


def factors(result):
    """{baseline: how many times longer than lime}"""
    return {name: ratio for name, ratio in report.ratios(result).items() if name in BASELINES}


def spread(values):
    return f"{min(values):.1f} to {max(values):.1f}" if values else "no baseline ran"


def beside_claims(results):
    """Rows of the first table: the paper's factors, and ours over the baselines that ran. The best baseline is the least factor of each experiment."""
    lines = ["| figure | pattern | Mbit/s | paper: LIME is faster by | ours, over all that ran | ours, over the best of each |", "|---|---|--:|--:|--:|--:|"]
    for claim in CLAIMS:
        ours = [factors(r) for r in results if r["group"] == claim.group and pattern_of(r) == claim.pattern and claim.mbit in (0, r["mbit"])]
        if not ours:
            cells = "not run yet | "
        else:
            cells = f"{spread([f for of in ours for f in of.values()])} | {spread([min(of.values()) for of in ours if of])}"
        rate = "50 to 250" if claim.group == "varying" else claim.mbit
        lines.append(f"| {claim.figure} | {claim.pattern} | {rate} | {claim.least} to {claim.most} | {cells} |")
    return "\n".join(lines) + "\n"


def settings_beside(results):
    """Figures 15 to 17 by experiment: the factor over the best baseline, and who has no figure."""
    lines = ["| figure | setting | pattern | Mbit/s | `lime` faster than the best baseline by | out of memory | out of time |", "|---|---|---|--:|--:|---|---|"]
    for result in results:
        over = factors(result)
        none = lambda outcome: ", ".join(row["strategy"] for row in result["strategies"] if row["outcome"] == outcome) or "none"
        figure = {"setting-1": 15, "setting-2": 16, "setting-3": 17}[result["setting"]]
        best = f"{min(over.values()):.2f} ({min(over, key=over.get)})" if over else "no baseline ran"
        lines.append(f"| {figure} | {result['setting']} | {pattern_of(result)} | {result['mbit']} | {best} | {none('OOM')} | {none('OOT')} |")
    return "\n".join(lines) + "\n"


def ablation_table(results):
    """Table V beside ours: milliseconds per token, and the share of full LIME's speed."""
    lines = ["| context | pattern | variant | predicted at full size | predicted | measured ms/token (least to most, turns) | share of full speed | paper: ms/token | paper: share |",
             "|--:|---|---|--:|--:|--:|--:|--:|--:|"]
    for result in results:
        full = next((row["measured_ms"] for row in result["strategies"] if row["strategy"] == "lime" and row["outcome"] == "ran"), None)
        for row in result["strategies"]:
            paper = TABLE_V.get((row["strategy"], pattern_of(result)))
            said = f"{paper[0]:.1f} | {paper[1]:.2f}" if paper else " | "
            lines.append(f"| {result['context']} | {pattern_of(result)} | `{row['strategy']}` | {report.full_size_cell(row)} | {ablation_cells(row, full)} | {said} |")
    return "\n".join(lines) + "\n"


def ablation_cells(row, full):
    if row["outcome"] != "ran":
        words = {"OOM": "out of memory", "OOT": "out of time"}.get(row["outcome"], row["outcome"])
        return f" | {words} | "
    share = f"{full / row['measured_ms']:.2f}" if full else ""
    return f"{row['predicted_ms']:.0f} | {row['measured_ms']:.0f} ({row['least_ms']:.0f} to {row['most_ms']:.0f}, {row['turns']}) | {share}"


def varying_table(results):
    """Strategies beside each other, and `lime` beside whoever knows every redraw in advance."""
    lines = ["| setting | requests | measured ms/token | its plan, simulated | an oracle's, simulated | plan / oracle | measured / oracle |", "|---|--:|--:|--:|--:|--:|--:|"]
    for result in results:
        if known := result.get("oracle"):
            lines.append(f"| {result['setting']} | {result['requests']} | {known['measured_ms']:.0f} | {known['plan_ms']:.0f} | {known['oracle_ms']:.0f} | "
                         f"{known['plan_ms'] / known['oracle_ms']:.3f} | {known['measured_ms'] / known['oracle_ms']:.3f} |")
    return report.table(results) + ("\n" + "\n".join(lines) + "\n" if len(lines) > 2 else "")


def window_table(results):
    lines = ["| requests | context | positions | predicted at full size | predicted ms/token | measured | measured / predicted |",
             "|--:|--:|--:|--:|--:|--:|--:|"]
    for result in results:
        for window in windows_of(result):
            ratio = window["measured_ms"] / window["predicted_ms"]
            mark = "" if abs(window["predicted_ms"] / window["measured_ms"] - 1) <= WITHIN else " (off by more than 10 %)"
            lines.append(f"| {result['requests']} | {result['context']} | {window['from']} to {window['to']} | {report.full_size_cell(window)} | {window['predicted_ms']:.0f} | "
                         f"{window['measured_ms']:.0f} | {ratio:.3f}{mark} |")
    return "\n".join(lines) + "\n"


def windows_of(result):
    return [window for row in result["strategies"] for window in row.get("windows", [])]


def troubles(results):
    """What failed and was not measured, and logits that were not the same; empty where all is well."""
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
    lines = ["| context | variant | predicted at full size | predicted | measured ms/token (least to most, turns) | measured / predicted | `lime` is faster by |",
             "|--:|---|--:|--:|--:|--:|--:|"]
    for result in results:
        faster = report.ratios(result)
        for row in result["strategies"]:
            if row["outcome"] != "ran":
                lines.append(f"| {result['context']} | `{row['strategy']}` | {report.full_size_cell(row)} | | {row['outcome']} | | |")
                continue
            ratio = f"{faster[row['strategy']]:.2f}" if row["strategy"] in faster else ""
            lines.append(f"| {result['context']} | `{row['strategy']}` | {report.full_size_cell(row)} | {row['predicted_ms']:.0f} | {row['measured_ms']:.0f} ({row['least_ms']:.0f} to "
                         f"{row['most_ms']:.0f}, {row['turns']}) | {row['over_predicted']:.3f} | {ratio} |")
    return "\n".join(lines) + "\n"


TABLES = {"clusters": report.table, "eviction": report.table, "lending": lending_table, "settings": lambda results: settings_beside(results) + "\n" + report.table(results), "ablation": ablation_table,
          "varying": varying_table, "windows": window_table}


def section(group, results):
    """Of one group: what the paper does, what was found."""
    head = f"## {TITLES[group]}\n\n{NOTES[group]}\n"
    if not results:
        return head + f"\nNot run yet: `testbed/reproduce --only {group}`.\n"
    pictures = "".join(f"![{TITLES[group]}]({name})\n" for name in pictures_of(group, results))
    conditions = "\n\n".join(report.conditions(result) for result in results)
    return (f"{head}\n{TABLES[group](results)}{troubles(results)}\n{pictures}\n<details><summary>Conditions, asked beside measured</summary>\n\n{conditions}\n\n"
            "</details>\n")


def pictures_of(group, results):
    """Names of the plots that there is something for."""
    if group == "windows":
        return ["reproduction-windows.svg"] if any(windows_of(r) for r in results) else []
    ran = any(row["outcome"] == "ran" for r in results for row in r["strategies"])
    redrawn = any(row.get("redrawn") for r in results for row in r["strategies"])
    return ([f"reproduction-{group}.svg"] if ran else []) + (["reproduction-redrawn.svg"] if redrawn else [])


def page(results, factor_table):
    """All of docs/REPRODUCTION.md. `results` in any order."""
    scale = "\n".join(f"| {what} | {by} |" for what, by in factor_table)
    text = f"""# Reproduction

The experiments of the LIME paper's sections V-B to V-E as scale models on virtual devices of one machine, made by one command, `testbed/reproduce` (see `testbed/README.md`; what is
measured how is in `docs/EXPERIMENTS.md`). Everything on this page was written by it. Times are those of the full size; boards and disks are estimates
(`testbed/clusters`), so milliseconds are not the paper's, factors between strategies may be compared.

| | divided by |
|---|--:|
{scale}

Strategies are plans of the same engine. Missing are the paper's baselines of tensor parallelism (Galaxy, TPI-LLM with and without offloading). Where KV does not fit beside the weights,
`pp` and `edgeshard` compute that of evicted tokens again; where the weights do not, they are out of memory. With one request `pp-offload-batched` is `pp-offload`. *Out of memory*: there is no plan, or a request is refused before it
begins. ms/token of a burst is the time of a step over its requests. `lime-paper` is the paper's algorithm 1, not one of its baselines.

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
    """Time between tokens of the first request, and the rate that the links had, by token: one turn of each strategy."""
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
