#!/usr/bin/python3
"""Writes a page of answers of `lime bench flash --json`: the ladder of "LLM in a flash" beside the paper's Table 2.

    bench/flash_page.py PAGE [NAME=FILE ...] [--predictor NAME=FILE ...] [--choices NAME=FILE ...] [--calibration NAME=FILE ...]
                        [--machine TEXT] [--svg]

Each FILE is one answer, and NAME is what its section is called, such as "OPT geometry, bf16". Files of --predictor are answers of
`lime calibrate --predictor --json`, those of --choices were written by bench/choices.py (Table 1 of the paper), and those of --calibration are answers of
`lime calibrate --coactivation --json`. With --svg, figures lie beside the page, and the page shows them: the time of a token in its parts (Figure 1 of the
paper), rates of random reads with their fit (Figure 2b), I/O over memory, neurons that some tokens in a row use (Figure 4a), and neurons that are active
together (Figure 5). They need matplotlib. What a person has written between the machine and the first section stays.
"""
import argparse
import json
import pathlib

NAIVE = "naive"
# "LLM in a flash", v1, sections 3 and 4 and Table 2: OPT 6.7B, 16 bits, M1 Max.
PAPER_SHARES = {"active": 0.03, "predicted": 0.096, "missed": 0.05, "false_positives": 0.07}
SHARE_NAMES = {"active": "active", "predicted": "predicted", "missed": "missed by the predictor, of the active",
               "false_positives": "named by it, of the others"}
PAPER_UNION, PAPER_NEW = 0.24, 0.024  # with a window of 5
# Table 1: zero-shot accuracy without and with the predictor, in %.
PAPER_CHOICES = (("Arc Easy", 66.1, 66.2), ("Arc Challenge", 30.6, 30.6), ("HellaSwag", 50.3, 49.8))
COLUMNS = ("rung", "memory GB", "read MB", "GB/s", "reads", "I/O ms", "predicted ms", "ratio", "gain", "whole ms", "paper: memory GB", "read GB", "GB/s",
           "I/O ms", "gain")


def markdown(columns, rows):
    """A table; all columns but the first are aligned to the right."""
    lines = [columns, ["---"] + ["--:"] * (len(columns) - 1), *rows]
    return "".join("|" + "".join(f" {cell} |" if cell != "" else " |" for cell in line) + "\n" for line in lines)


def number(value, digits=2):
    return "" if value is None else f"{value:,.{digits}f}"


def percent(share):
    return f"{100 * share:.1f} %"


def naive_ms(answer):
    return next(rung["io_ms"] for rung in answer["ladder"] if rung["name"] == NAIVE)


def masks(answer):
    shares = answer["masks"]
    names = [name for name in PAPER_SHARES if shares["rank"] > 0 or name == "active"]
    rows = [[SHARE_NAMES[name], percent(shares[name]), percent(PAPER_SHARES[name])] for name in names]
    if answer.get("copy_bytes"):
        rows.append(["left without a proof by copies of the deciders", percent(shares["unproven"]), ""])
    unions = shares["unions"]
    if len(unions) == 6:
        rows += [["in 5 tokens", percent(unions[4]), percent(PAPER_UNION)], ["new after 5 tokens", percent(unions[5] - unions[4]), percent(PAPER_NEW)]]
    return markdown(("share of the neurons", "here", "paper"), rows)


def ladder(answer):
    naive, paper_naive = naive_ms(answer), answer["ladder"][0]["paper"]["io_ms"]
    rows = []
    for rung in answer["ladder"]:
        paper = rung["paper"]
        theirs = [number(paper["memory_gb"], 1), number(paper["read_gb"], 1), number(paper["gb_per_s"]), number(paper["io_ms"], 0),
                  f"{paper_naive / paper['io_ms']:.1f}"] if paper else [""] * 5
        rows.append([rung["name"], number(rung["held_gb"], 3), number(rung["read_mb"], 1), number(rung["gb_per_s"]), number(rung["reads"], 0),
                     number(rung["io_ms"], 1), number(rung["predicted_ms"], 1), number(rung["ratio"]), number(naive / rung["io_ms"], 1),
                     number(rung["whole_ms"], 1), *theirs])
    return markdown(COLUMNS, rows)


def engine(answer):
    rows = []
    for run in answer["engine"]:
        memory = f"{run['memory_bytes'] / 1e9:.3f}" if run["memory_bytes"] else "no limit"
        figures = ["", "", run["why_not"], "", ""] if "why_not" in run else [
            number(run["read_mb"], 1), number(run["reads"], 0), number(run["io_ms"], 1), number(run["predicted_ms"], 1), number(run["whole_ms"], 1)]
        rows.append([run["name"], memory, *figures])
    return markdown(("run of the engine", "memory GB", "read MB", "reads of neurons", "I/O ms", "predicted ms", "whole ms"), rows)


def memory(answer):
    return markdown(("memory, of the weights", "neurons of a layer", "read MB", "I/O ms", "predicted ms", "ratio"),
                    [[f"{100 * row['share']:.0f} %", row["rows"], number(row["read_mb"], 1), number(row["io_ms"], 1), number(row["predicted_ms"], 1),
                      number(row["ratio"])] for row in answer["memory"]])


def placements(answer):
    return markdown(("rows", "management ms", "of the I/O", "copies"),
                    [[row["placement"], number(row["manage_ms"], 3), percent(row["manage_ms"] / row["io_ms"]), number(row["moves"], 0)]
                     for row in answer["placements"]])


def fitted(answer, size):
    """GB/s of long bursts of reads of this size."""
    burst = answer["burst"]
    return size / (burst["read_ms"] + size / burst["bytes_per_ms"]) / 1e6


def rates(answer):
    sizes = sorted({point["bytes"] for point in answer["rates"]})
    measured = {(point["depth"], point["bytes"]): point["gb_per_s"] for point in answer["rates"]}
    rows = [[depth, *(number(measured.get((depth, size))) for size in sizes)] for depth in sorted({depth for depth, _ in measured})]
    return markdown(("reads in flight", *(f"{size // 1024} KiB" for size in sizes)), rows + [["fit", *(number(fitted(answer, size)) for size in sizes)]])


def section(name, answer):
    burst = answer["burst"]
    text = (f"## {name}\n\n{answer['layers']} layers of {answer['neurons']:,} neurons, {answer['weight_bytes'] / 1e9:.2f} GB of weights, "
            f"{answer['mlp_bytes'] / 1e9:.2f} GB in MLPs, bundles of {answer['bundle_bytes'] / 1024:g} KiB; {answer['disk']}.\n\n{masks(answer)}\n"
            f"A burst of n reads of s bytes takes {burst['burst_ms']:.3f} ms + n ({1e3 * burst['read_ms']:.1f} us + s / {burst['bytes_per_ms'] / 1e6:.2f} GB/s), "
            f"with a mean error of {percent(burst['mean_error'])}. Ranges one after another: {answer['sequential_gb_per_s']:.2f} GB/s.\n\n{ladder(answer)}\n")
    for has, table in (("engine", engine), ("placements", placements), ("memory", memory), ("rates", rates)):
        text += table(answer) + "\n" if answer[has] else ""
    return text


def predictor(name, answer):
    trained = answer["predictor"]
    rows = [[layer["layer"], layer["rank"], percent(layer["active"]), percent(layer["predicted"]), percent(layer["false_negatives"]),
             percent(layer["false_positives"])] for layer in trained["layers"]]
    paper = ["paper, OPT 6.7B", "128, 1024", *(percent(PAPER_SHARES[share]) for share in ("active", "predicted", "missed", "false_positives"))]
    with_it, without = trained["perplexity"], trained["exact_perplexity"]
    return (f"## Predictor of {name}\n\n{answer['tokens']:,} tokens in sequences of {answer['context']}, of which {trained['held_out']:,} were not trained on and measure. "
            f"Perplexity {with_it:.3f} with the predictor, {without:.3f} without: {100 * (with_it / without - 1):+.2f} %.\n\n"
            + markdown(("layer", "rank", "active", "predicted", "missed, of the active", "named wrongly, of the others"), [*rows, paper]) + "\n")


def together(layer):
    """The co-activation of one layer, as cells of a table."""
    of = layer["coactivation"]
    return [layer["layer"], *(percent(rank["mean"]) for rank in of["friends"]), f"{of['closest_friends']:,}", percent(of["of_most_active"]),
            percent(of["bundles_with_friends"] / of["new_neurons"] if of["new_neurons"] else 1), percent(of["friends_used"]), percent(of["friends_already_there"]),
            percent(of["friends_not_needed"])]


def calibration(name, answer):
    """Neurons in a window, and neurons that are active together with their friends (section 3 of the paper)."""
    layers, window = answer["layers"], answer["masks"]
    text = (f"## Neurons that are active together, {name}\n\n{answer['tokens']:,} tokens in sequences of {answer['context']}. The friends of a neuron are the others, "
            f"by the number of tokens that activate both. The paper's Figure 5 shows that the closest friend of a neuron is active with it at least 95 % of the times, "
            "and that bundles with a copy of the closest friend did not pay: the most active neurons are everybody's friend.\n\n")
    text += markdown(("layer", "active", f"in {window} tokens", "new"),
                     [[layer["layer"], percent(layer["active"][0]), percent(layer["unions"][-1]), percent(layer["fresh"])] for layer in layers]) + "\n"
    return text + markdown(("layer", "closest friend", "4th", "8th", "neurons that are a closest friend", "closest friend is among the most active hundredth",
                            "bundles read with copies, of those without", "copies that save a read", "already there", "not needed"), [together(layer) for layer in layers]) + "\n"


def choices(name, answer):
    modes = answer["modes"]
    rows = [[mode, percent(of["accuracy"]), f"{100 * of['error']:.1f} %", of["other_choices"], of["lost"], of["won"]] for mode, of in modes.items()]
    items = next(iter(modes.values()))["items"]
    paper = "; ".join(f"{task} {without} and {with_it} %" for task, without, with_it in PAPER_CHOICES)
    return (f"## Multiple choice (Table 1) of {name}\n\nARC and HellaSwag cannot be had here. The {items:,} items are made of {answer['text']} "
            f"with seed {answer['seed']} (`bench/choices.py`): {answer['context']} tokens, then one of four continuations of {answer['tokens']} tokens, chosen by "
            f"log-probability; by chance 25 %. The error is that of a binomial distribution. Paper, OPT 6.7B without and with its predictor: {paper}.\n\n"
            + markdown(("sparsity", "right", "error", "other choices than the first", "right no more", "right now"), rows) + "\n")


INTRO = ("# LLM in a flash: the ladder\n\n"
         "`lime bench flash` replays what each rung of the paper's Table 2 reads for a token, and runs the engine\n"
         "beside it ([guide](../FLASH.md#lime-bench-flash)). The paper's figures are of OPT 6.7B in 16 bits\n"
         "with half of it in memory, on an M1 Max. Gain is the I/O time of the rung `naive` divided by that of the\n"
         "rung. `bench/flash_page.py` wrote the tables.\n\n")


def machine_and_note_of(text):
    """Of a page, its machine, and what stands between that and the first section."""
    words = text.partition("\n## ")[0].removeprefix(INTRO.rstrip()).strip()
    if not words.startswith("Machine: "):
        return "", words
    machine, _, note = words.removeprefix("Machine: ").partition("\n\n")
    return machine, note.strip()


def page(answers, machine="", predictors=None, tasks=None, note="", calibrations=None, figures=()):
    """`figures`: file names and what they show."""
    text = INTRO
    text += f"Machine: {machine}\n\n" if machine else ""
    text += f"{note}\n\n" if note else ""
    for make, of in ((section, answers), (predictor, predictors or {}), (choices, tasks or {}), (calibration, calibrations or {})):
        text += "".join(make(name, answer) for name, answer in of.items())
    text += "## Figures\n\n" if figures else ""
    text += "".join(f"![{shows}]({file})\n\n" for file, shows in figures)
    return text.rstrip() + "\n"


def draw(answers, calibrations, path):
    """Writes the figures that these answers allow beside the page. Returns their file names and what they show."""
    import matplotlib  # only who draws needs it

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from plots import save

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lime", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    drawn = []

    def write(figure, what, shows):
        file = path.with_name(f"{path.stem}-{what}.svg")
        save(plt, figure, file)
        drawn.append((file.name, shows))

    parts = {name: token_parts(answer) for name, answer in answers.items() if answer.get("computing_ms")}
    if parts:
        write(draw_parts(plt, parts), "parts", "The time of a token: load, memory management, computing (Figure 1 of the paper)")
    with_rates = {name: answer for name, answer in answers.items() if answer["rates"]}
    if with_rates:
        write(draw_rates(plt, with_rates), "rates", "Rates of random reads by size and reads in flight (Figure 2b)")
    if any(answer["memory"] for answer in answers.values()):
        write(draw_memory(plt, answers), "memory", "I/O time of a token over memory")
    for name, answer in calibrations.items():
        stem = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
        write(draw_use(plt, name, answer), f"use-{stem}", f"Neurons that some tokens in a row use, {name} (Figure 4a)")
        write(draw_together(plt, answer), f"together-{stem}", f"Neurons that are active together, {name} (Figure 5)")
    return drawn


PARTS = ("load", "memory management", "computing")


def token_parts(answer):
    """{rung: ms of each of PARTS}. Computing hides behind the load where whole matrices are read, so a bar has the rest of the whole time."""
    return {rung["name"]: (rung["io_ms"], rung["manage_ms"], max(0, rung["whole_ms"] - rung["io_ms"] - rung["manage_ms"])) for rung in answer["ladder"]}


def draw_parts(plt, parts):
    figure, axes = plt.subplots(len(parts), 1, figsize=(7, 2.6 * len(parts)), squeeze=False, layout="constrained")
    for axis, (name, rungs) in zip(axes[:, 0], parts.items()):
        names, left = list(rungs)[::-1], [0.0] * len(rungs)
        for index, part in enumerate(PARTS):
            widths = [rungs[rung][index] for rung in names]
            axis.barh(names, widths, left=left, label=part)
            left = [at + width for at, width in zip(left, widths)]
        axis.set(title=name, xlabel="ms of a token")
        axis.legend(fontsize=7)
    return figure


def draw_rates(plt, answers):
    figure, axes = plt.subplots(1, len(answers), figsize=(4.5 * len(answers), 3.6), squeeze=False)
    for axis, (name, answer) in zip(axes[0], answers.items()):
        for depth in sorted({point["depth"] for point in answer["rates"]}):
            points = sorted((point["bytes"] / 1024, point["gb_per_s"]) for point in answer["rates"] if point["depth"] == depth)
            axis.plot(*zip(*points), "o-", markersize=3, linewidth=1, label=f"{depth} in flight")
        sizes = sorted({point["bytes"] for point in answer["rates"]})
        axis.plot([size / 1024 for size in sizes], [fitted(answer, size) for size in sizes], "k--", linewidth=1, label="fit of bursts")
        axis.set(title=name, xlabel="KiB of a read", ylabel="GB/s", xscale="log")
        axis.legend(fontsize=7)
    return figure


def draw_memory(plt, answers):
    figure, axis = plt.subplots(figsize=(5, 3.6))
    for name, answer in answers.items():
        shares = [100 * row["share"] for row in answer["memory"]]
        line, = axis.plot(shares, [row["predicted_ms"] for row in answer["memory"]], linewidth=1)
        axis.plot(shares, [row["io_ms"] for row in answer["memory"]], "o", color=line.get_color(), markersize=4, label=name)
    axis.set(xlabel="memory, % of the weights", ylabel="I/O ms a token", yscale="log")
    axis.legend(title="line: its prediction", fontsize=7, title_fontsize=7)
    return figure


def draw_use(plt, name, answer):
    figure, axis = plt.subplots(figsize=(5, 3.6))
    for layer in answer["layers"]:
        axis.plot(range(1, len(layer["unions"]) + 1), [100 * share for share in layer["unions"]], linewidth=1, label=f"layer {layer['layer']}")
    axis.set(title=name, xlabel="tokens in a row", ylabel="neurons that any of them uses, %", ylim=(0, 100))
    axis.legend(fontsize=7, ncols=2)
    return figure


def draw_together(plt, answer):
    """Of the layer in the middle: the paper shows one, too."""
    layer = answer["layers"][len(answer["layers"]) // 2]
    of = layer["coactivation"]
    figure, axes = plt.subplots(1, 4, figsize=(12, 2.8), layout="constrained")
    axes[0].plot(range(1, len(of["with_neuron"]) + 1), [100 * share for share in of["with_neuron"]], linewidth=1)
    axes[0].set(title=f"(a) with neuron {of['neuron']} of layer {layer['layer']}", xlabel="others, the closest first", ylabel="of its tokens, %", ylim=(0, 100))
    for axis, rank, letter in zip(axes[1:], of["friends"], "bcd"):
        axis.bar(range(len(rank["neurons"])), rank["neurons"], width=1)
        title = {1: "closest friend"}.get(rank["rank"], f"{rank['rank']}th closest friend")
        axis.set(title=f"({letter}) {title}", xlabel="of a neuron's tokens, %", ylabel="neurons", xlim=(0, 101))
    return figure


def write(path, answers, predictors, tasks, calibrations, machine, svg):
    """The page, and its figures beside it. What a person has written on the page stays."""
    before, note = machine_and_note_of(path.read_text(encoding="utf-8") if path.exists() else "")
    figures = draw(answers, calibrations, path) if svg else ()
    path.write_text(page(answers, machine or before, predictors, tasks, note, calibrations, figures), encoding="utf-8")


def read_named(words, parser):
    """Of words NAME=FILE."""
    answers = {}
    for word in words:
        name, equals, file = word.partition("=")
        if not equals:
            parser.error(f"{word} is no NAME=FILE")
        answers[name] = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("answers", nargs="*", metavar="NAME=FILE", help="of `lime bench flash --json`")
    parser.add_argument("--predictor", action="append", default=[], metavar="NAME=FILE", help="of `lime calibrate --predictor R --json`")
    parser.add_argument("--choices", action="append", default=[], metavar="NAME=FILE", help="of bench/choices.py --out")
    parser.add_argument("--calibration", action="append", default=[], metavar="NAME=FILE", help="of `lime calibrate --coactivation --json`")
    parser.add_argument("--machine", default="", help="What was measured on, and when")
    parser.add_argument("--svg", action="store_true", help="draw figures beside the page, and show them on it")
    flags = parser.parse_args()
    answers, predictors, tasks, calibrations = (read_named(words, parser) for words in (flags.answers, flags.predictor, flags.choices, flags.calibration))
    if not answers and not predictors and not tasks and not calibrations:
        parser.error("there is nothing to write: give a NAME=FILE")
    for name, answer in calibrations.items():
        if not all("coactivation" in layer for layer in answer["layers"]):
            parser.error(f"--calibration {name}: there is no coactivation; run `lime calibrate --coactivation --json`")
    write(flags.page, answers, predictors, tasks, calibrations, flags.machine, flags.svg)


if __name__ == "__main__":
    main()
