"""Turns measurements into results: medians beside predictions and bounds, as JSON, as Markdown
tables and as a plot.
"""
import statistics

from virtual import planning

BASELINES = ("pp", "pp-offload", "edgeshard")
OUTCOMES = {"OOM": "out of memory", "OOT": "out of time"}  # for people


def summarise(experiment):
    """One object with all settings and measurements of an experiment."""
    question, plans = experiment.question, experiment.plans
    turns = experiment.turns_at_hand()
    limits = [turn["limits"] for turn in experiment.every_turn() if turn["limits"]]
    rows = [summarise_strategy(v.name, plans[v.name], [t for t in turns if t["strategy"] == v.name], experiment.runs(v), experiment.same_as(v))
            | {"full_size_ms": experiment.full_size_ms(v)} for v in question.variants]
    for window in [w for row in rows for w in row.get("windows", []) if question.group == "windows"]:
        window["full_size_ms"] = experiment.full_size_window_ms(window)
    measured = [t for t in turns if "ms_per_token" in t]
    return {
        "name": experiment.name, "group": question.group, "setting": question.setting, "mbit": question.mbit, "requests": question.requests,
        "context": question.context, "kv_tokens": question.kv_tokens, "rounds": question.rounds,
        "factors": experiment.factors.table(),
        "model": {"name": question.model(), "bytes": experiment.shape.weight_bytes(), "layers": experiment.shape.layers,
                  "hidden": experiment.shape.hidden},
        "devices": [device_row(d, experiment.overheads, limits) for d in experiment.devices],
        "link": link_row(question.mbit / experiment.factors.width, limits),
        "strategies": rows,
        "oracle": experiment.beside_oracle(measured),
        "same_tokens_and_logits": same_bits(measured),
        "real_compute_share": max((t["real_compute_share"] for t in measured), default=0),
        "oom_kills": max((sum(t["oom_kills"].values()) for t in turns if "oom_kills" in t), default=0),
    }


def summarise_strategy(strategy, plan, turns, runs, same_as=None):
    """Summarises all turns, with the refused and failed ones. `runs`: by its plan the strategy is
    neither out of memory nor out of time. `same_as`: an earlier variant that is the same.
    """
    if "reason" in plan:
        return {"strategy": strategy, "outcome": "OOM", "reason": plan["reason"]}
    measured = [t for t in turns if "ms_per_token" in t]
    grown = any(len(t.get("kv_levels", [])) > 1 for t in measured)
    bounds = planning.limits_of(plan)
    row = {"strategy": strategy, "plan": planning.summary_of(plan), "predicted_ms": plan["predicted"]["ms_per_token"],
           "bound_ms": None if grown else bounds["bound_ms"] / plan["sequences"], "limits": bounds}
    if not measured:
        return row | ({"outcome": f"same plan as {same_as}"} if same_as else why_not(turns, runs))
    row["predicted_ms"] = statistics.median(t.get("predicted_ms", row["predicted_ms"]) for t in measured)
    median = statistics.median(t["ms_per_token"] for t in measured)
    return row | {
        "outcome": "ran", "turns": len(measured), "measured_ms": median, "least_ms": min(t["ms_per_token"] for t in measured),
        "most_ms": max(t["ms_per_token"] for t in measured), "over_predicted": median / row["predicted_ms"],
        "over_bound": median / row["bound_ms"] if row["bound_ms"] else None, "memory": memory_rows(plan, measured),
        "windows": [w for t in measured for w in t.get("windows", [])],
        "redrawn": [{"drawn": t["redrawn"], "intervals_ms": t["intervals_ms"]} for t in measured if "redrawn" in t]}


def why_not(turns, runs):
    """The reason why there is no measurement."""
    for turn in turns:
        if "refused" in turn:
            return {"outcome": "OOM", "reason": turn["refused"]}
    failed = [turn["failed"] for turn in turns if "failed" in turn]
    if failed:
        return {"outcome": "failed", "reason": failed[-1]}
    return {"outcome": "not run" if runs else "OOT"}


def memory_rows(plan, turns):
    """For each device: the hard limit, and the largest memory that its group has used."""
    return {d["name"]: {"limit": d["budget"], "peak": max(t["cgroup_peak_bytes"][d["name"]] for t in turns)} for d in plan["devices"]}


def device_row(device, overheads, limits):
    rates = [l["disk_bytes_per_second"][device.name] for l in limits]
    return {"name": device.name, "weights_memory": device.weights_memory, "runtime": overheads.runtime,
            "disk_asked": device.disk_bytes_per_second, "disk_measured": [min(rates), max(rates)] if rates else None}


def link_row(mbit, limits):
    links = [l["link"] for l in limits if "link" in l]
    rates = [l["bytes_per_second"] * 8 / 1e6 for l in links]
    return {"asked_mbit": mbit, "measured_mbit": [min(rates), max(rates)] if rates else None,
            "round_trip_ms": statistics.median(l["round_trip_ms"] for l in links) if links else None}


def same_bits(turns):
    """Whether all turns gave the same tokens and the same logits."""
    return len({str((t["token_ids"], t["logits_xxh3"])) for t in turns}) <= 1


def ratios(result):
    """{strategy: its time divided by the time of lime}, for strategies that ran."""
    ran = {r["strategy"]: r["measured_ms"] for r in result["strategies"] if r["outcome"] == "ran"}
    return {s: ms / ran["lime"] for s, ms in ran.items() if s != "lime"} if "lime" in ran else {}


def markdown(results):
    """The summary of a report: the time of each strategy, compared with predictions."""
    return strategy_matrix(results) + "\n" + accuracy(results)


def names_of(results):
    """The strategies of all results, in the order of the result with the most strategies."""
    longest_first = sorted(results, key=lambda result: -len(result["strategies"]))
    return list(dict.fromkeys(row["strategy"] for result in longest_first for row in result["strategies"]))


def strategy_matrix(results):
    """A row for each experiment, a column for each strategy: measured ms/token."""
    names = names_of(results)
    heads = " | ".join(f"**{name}**" if name == "lime" else name for name in names)
    lines = [f"| setting | requests | Mbit/s | {heads} |", "|---|--:|--:|" + "--:|" * len(names)]
    for result in results:
        rows = {row["strategy"]: row for row in result["strategies"]}
        cells = " | ".join(matrix_cell(rows.get(name)) for name in names)
        lines.append(f"| {result['setting']} | {result['requests']} | {rate(result)} | {cells} |")
    return "\n".join(lines) + "\n"


def matrix_cell(row):
    if row is None:
        return ""
    return f"{row['measured_ms']:.0f}" if row["outcome"] == "ran" else OUTCOMES.get(row["outcome"], row["outcome"])


def accuracy(results):
    """One sentence: measured over predicted and measured over the bound, for all strategies that
    ran and for `lime`.
    """
    ran = [row for result in results for row in result["strategies"] if row["outcome"] == "ran"]
    if not ran:
        return ""
    lime = [row for row in ran if row["strategy"] == "lime"]
    bound = [row["over_bound"] for row in lime if row["over_bound"]]
    text = f"Measured divided by predicted: {least_most([row['over_predicted'] for row in ran])}"
    if lime and len(lime) < len(ran):
        text += f"; for `lime` alone {least_most([row['over_predicted'] for row in lime])}"
    if bound:
        text += f".\nMeasured divided by the bound of the plan, for `lime` alone: {least_most(bound)}"
    return text + ".\n"


def least_most(values):
    return f"{min(values):.3f} to {max(values):.3f}"


def put_between(text, begin, end, new):
    """`text` with `new` between the lines `begin` and `end`."""
    head, found, rest = text.partition(begin + "\n")
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"no \"{begin}\" before \"{end}\"")
    return f"{head}{begin}\n{new}{end}{tail}"


def full_size_cell(row):
    return f"{row['full_size_ms']:.0f}" if row.get("full_size_ms") else ""


def title(result):
    context = f", {result['context']} tokens" if result.get("group") in ("ablation", "lending") else ""
    return f"{result['setting']}, {result['requests']} request(s), {rate(result)} Mbit/s{context}"


def rate(result):
    return "50 to 250" if result.get("group") == "varying" else result["mbit"]


def closest(result, device):
    """{"peak", "limit"} of the strategy that came closest to the device's hard limit; None if none
    ran.
    """
    memories = [row["memory"][device] for row in result["strategies"] if "memory" in row]
    return max(memories, key=lambda m: m["peak"] / m["limit"], default=None)


def axes_of(count):
    """A figure with `count` axes, three in a row: (figure, axes, first of each row)."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "lime"  # the same picture gives the same file
    from matplotlib import pyplot

    columns = min(3, count)
    lines = -(-count // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(1 + 3 * columns, 3.4 * lines), squeeze=False)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count]), [row[0] for row in axes]


def save(figure, path):
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def plot(results, path):
    """Bars of measured milliseconds per token with their spread, and a tick at the prediction."""
    figure, axes, firsts = axes_of(len(results))
    for axis, result in zip(axes, results):
        rows = [row for row in result["strategies"] if row["outcome"] == "ran"]
        heights = [row["measured_ms"] for row in rows]
        spread = [[row["measured_ms"] - row["least_ms"] for row in rows], [row["most_ms"] - row["measured_ms"] for row in rows]]
        places = range(len(rows))
        bars = axis.bar(places, heights, yerr=spread, capsize=3, color=["#2a6f97" if row["strategy"] == "lime" else "#a9b4bd" for row in rows])
        axis.bar_label(bars, fmt="%.0f", fontsize=8, padding=3)
        axis.margins(y=0.12)
        axis.scatter(places, [row["predicted_ms"] for row in rows], marker="_", s=260, color="#c1121f", zorder=3, label="predicted")
        axis.set_xticks(list(places), [row["strategy"] for row in rows], rotation=35, ha="right", fontsize=8)
        axis.set_title(title(result), fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in firsts:
        axis.set_ylabel("ms per token, measured")
    axes[0].legend(fontsize=8, frameon=False, loc="upper left")
    save(figure, path)
