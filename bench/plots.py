"""The figures of streaming as SVG, and its rows as CSV. Texts stay texts and ids are fixed, so that a drawing changes only where its data do."""
import collections

import data_files

COLORS = {100: "#4c72b0", 200: "#dd8452", 500: "#55a868", 0: "#8172b3"}


def draw(streaming, folder):
    import matplotlib  # only who draws needs it

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lime", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    folder.mkdir(parents=True, exist_ok=True)
    if "disk" in streaming:
        save(plt, residency(plt, streaming["disk"]), folder / "streaming-residency.svg")
        data_files.write([data_files.streaming_row(row) for row in streaming["disk"]], folder / "streaming.csv")
    if "neighbour" in streaming:
        save(plt, neighbour(plt, streaming["neighbour"]), folder / "streaming-neighbour.svg")


def save(plt, figure, path):
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    print(f"drawn: {path}")


def residency(plt, rows):
    """Tokens/s over resident share; the line is what no streaming can beat."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = plt.subplots(1, len(models), figsize=(4.5 * len(models), 3.6), squeeze=False)
    for axis, model in zip(axes[0], models):
        by_limit = collections.defaultdict(list)
        for row in rows:
            if row["model"] == model:
                by_limit[row["limit_mb"]].append(row)
        for limit, of in by_limit.items():
            shares = [row["share"] for row in of]
            axis.plot(shares, [1e3 / row["limit_ms"] for row in of], color=COLORS[limit], linewidth=1)
            axis.plot(shares, [1e3 / row["ms"] for row in of], "o", color=COLORS[limit], markersize=4, label=f"{limit} MB/s" if limit else "no limit")
        axis.set(title=model, xlabel="resident, %", ylabel="tokens/s", yscale="log")
        axis.legend(title="disk; line: its limit", fontsize=8, title_fontsize=8)
    return figure


def neighbour(plt, run):
    figure, axis = plt.subplots(figsize=(9, 3))
    axis.step([when for when, _ in run["pace"]], [rate for _, rate in run["pace"]], where="pre", color="#4c72b0", linewidth=1)
    axis.axvspan(run["began_s"], run["ended_s"], color="#dd8452", alpha=0.25, label="neighbour")
    axis.axhline(min(run["full_tps_before"], run["full_tps_after"]), color="#c44e52", linewidth=1, linestyle="--", label="full streaming")
    axis.set(xlabel="s", ylabel="tokens/s", yscale="log")
    axis.legend(fontsize=8)
    return figure
