"""The tables of Layer-Streaming for our models: 7 and 8 measured here, 4 and 9 from the rows that were measured beside their limits."""
import pathlib
import statistics

import cgroups
from report import heading, mib, table

BOOT_TOKENS = 2  # the prompt's own, and the one whose ring was filled before
GIB = 2**30


def bytes_of(model):
    return sum(f.stat().st_size for f in pathlib.Path(model).glob("*.safetensors"))


def paper(s):
    try:
        budgets(s)
        modes(s)
    except cgroups.Unavailable as why:
        print(f"  skipped: {why}")
    from_disk_rows(s)


def summary(s, run, model):
    streaming = run["streaming"]
    return {"resident": streaming["resident_blocks"], "blocks": streaming["blocks"], "tps": 1e3 / statistics.mean(s.intervals(run)),
            "peak_rss_bytes": run["peak_rss_bytes"], "resident_share": max(0.0, 1 - streaming["streamed_bytes_per_step"] / bytes_of(model))}


def budgets(s):
    heading("Budgets (paper, Table 7), bf16, hard limit of each, unthrottled")
    model, rows = s.models["bf16"], []
    full = None
    for budget in (None, 0.75, 2.0) if s.quick else (None, 0.5, 1.0, 1.5, 2.0, 2.5):
        flags = ["--memory", int(budget * GIB)] if budget else ["--resident", "0"]
        with cgroups.Group(memory=int(budget * GIB) if budget else 0) as group:
            run = s.run(model, flags, BOOT_TOKENS + (2 if s.quick else 4), group)
        row = summary(s, run, model)
        full = full or row["tps"]
        rows.append({"budget_gib": budget, **row, "speedup": row["tps"] / full - 1})
    s.report["budgets"] = rows
    table(["budget", "resident blocks", "resident", "tokens/s", "peak RSS", "speedup"],
          [[f"{r['budget_gib']} GiB" if r["budget_gib"] else "full stream", f"{r['resident']}/{r['blocks']}", f"{100 * r['resident_share']:.0f} %", f"{r['tps']:.2f}",
            mib(r["peak_rss_bytes"]), f"{100 * r['speedup']:+.0f} %"] for r in rows])


def modes(s):
    heading("Budget derived from a group of 75 % of the weights (paper, Table 8: max-tps fell to a tenth of full streaming)")
    model, rows = s.models["bf16"], []
    weights = bytes_of(model)
    modes = {"full stream": ["--resident", "0"], **{mode: ["--memory-mode", mode] for mode in ("max-tps", "balanced", "max-context")}}
    for mode, flags in modes.items():
        with cgroups.Group(memory=int(0.75 * weights) + 160 * 2**20) as group:
            run = s.run(model, flags, BOOT_TOKENS + (2 if s.quick else 6), group)
            rows.append({"mode": mode, **summary(s, run, model), **group.memory_use()})
    s.report["modes"] = rows
    table(["mode", "resident blocks", "resident", "tokens/s", "peak RSS", "killed"],
          [[r["mode"], f"{r['resident']}/{r['blocks']}", f"{100 * r['resident_share']:.0f} %", f"{r['tps']:.2f}", mib(r["peak_rss_bytes"]), r["killed"]] for r in rows])


def from_disk_rows(s):
    """Tables 4 and 9: speed over resident share, against the resident baseline."""
    rows = [r for r in s.report.get("disk") or s.bench.kept.get("streaming", {}).get("disk", []) if not r["limit_mb"]]
    heading("Speed over resident share, unthrottled (paper, Tables 4 and 9)")
    resident = s.report.get("resident") or s.bench.kept.get("streaming", {}).get("resident", {})
    lines = []
    for name in s.models:
        base = 1e3 / statistics.median(resident[name]["ms"]["resident"]) if name in resident else None
        share_of = lambda tps: f"{100 * tps / base:.0f} %" if base else ""
        for r in (r for r in rows if r["model"] == name):
            tps = 1e3 / r["ms"]
            lines.append([name, f"{r['share']} %", f"{tps:.2f}", share_of(tps), f"{1e3 / r['limit_ms']:.2f}", mib(r["peak_rss_bytes"]),
                          f"{100 * r['waiting']:.0f} %" if "waiting" in r else ""])
        if base:
            hundred = 1e3 / statistics.median(resident[name]["ms"]["100 % of streaming"])
            lines += [[name, "100 % of streaming", f"{hundred:.2f}", share_of(hundred), "", "", ""], [name, "baseline", f"{base:.2f}", "100 %", "", "", ""]]
    table(["weights", "resident", "tokens/s", "of baseline", "limit tokens/s", "peak RSS", "waiting for the disk"], lines)
