"""bench/paper_models.py without models: sizes of its geometries, the rows that it wants, and its tables of kept figures."""
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import data_files  # noqa: E402
import paper_figures  # noqa: E402
import paper_geometries  # noqa: E402
import paper_models  # noqa: E402
import paper_tables  # noqa: E402
import performance_page  # noqa: E402

GIB = 2**30
# GiB: OptMLX, Table 1, and Layer-Streaming, Table 3
PUBLISHED = {"Qwen3-4B-4bit": 2.11, "Qwen3-4B-8bit": 3.98, "Qwen3-8B-3bit": 3.34, "Qwen3-8B-4bit": 4.29, "Qwen3-8B-6bit": 6.20, "Qwen3-8B-8bit": 8.11,
             "Qwen3-14B-4bit": 7.74, "Qwen3-14B-6bit": 11.18, "Qwen3.5-0.8B-8bit": 0.74, "Qwen3.5-9B-8bit": 8.86, "Qwen3.5-27B-4bit": 14.09}
STREAMED = {"ms": 2000, "limit_ms": 1900, "ratio": 2000 / 1900, "streamed_bytes": 3e9, "rate_before": 1.5e9, "rate_after": 1.7e9, "compute_ms": 400, "peak_rss_bytes": GIB,
            "resident_blocks": 5, "blocks": 65, "waiting": 0.75, "budget_bytes": 8 * GIB, "group_peak_bytes": 7 * GIB, "killed": 0, "layers": 32, "layer_bytes": 1.6e8,
            "load_ms": 101, "compute_layer_ms": 12.5}
MEMORY = {"fits": True, "ms": 400, "tps": 2.5, "peak_rss_bytes": 7 * GIB, "load_s": 5}
RUN = {"load_s": 0.5, "loader": "mmap", "ttft_ms": 900, "prompt_per_s": 40, "tps": 5, "peak_rss_bytes": 4 * GIB, "streams": False}


def figure(row):
    if row in ("baseline", "100 %"):
        return MEMORY
    if row == "load":
        return {"weights": 4 * GIB, "rate_before": 2e9, "rate_after": 2e9, "rounds": 3, **{f"{cache}, {loader}": RUN for cache in ("warm", "cold") for loader in ("read", "mmap", "auto")}}
    return {"weights": 4 * GIB, "rounds": 3, **{mode: RUN for mode in paper_figures.FIRST["Qwen3-8B-4bit"]}} if row == "first" else STREAMED


def full_report():
    models = {model for part in paper_models.PARTS.values() for model in part.models}
    figures = {model: {row: figure(row) for part in paper_models.PARTS.values() if model in part.models for row in part.rows} for model in models}
    for of in figures.values():
        of["baseline"] = MEMORY
    return {"figures": figures, "models": {model: {"bytes": 7 * GIB, "layers": 32, "of_layers": 32} for model in models}}


class GeometryTest(unittest.TestCase):
    def test_models_have_the_sizes_of_the_published_ones(self):
        for name, size in PUBLISHED.items():
            self.assertAlmostEqual(paper_geometries.expected_bytes(name) / GIB, size, delta=0.02, msg=name)

    def test_a_model_above_the_largest_file_has_fewer_layers_and_keeps_their_kinds(self):
        self.assertEqual(paper_geometries.layers_that_fit("Qwen3.5-9B-bf16"), 32)
        layers = paper_geometries.layers_that_fit("Qwen3.5-27B-bf16")
        self.assertEqual(layers % 4, 0)
        self.assertLessEqual(paper_geometries.expected_bytes("Qwen3.5-27B-bf16", layers), paper_geometries.LARGEST_FILE)
        self.assertGreater(paper_geometries.expected_bytes("Qwen3.5-27B-bf16", layers + 4), paper_geometries.LARGEST_FILE)

    def test_names_of_no_model_are_refused(self):
        for name in ("Qwen3.5-9B", "Qwen3.5-7B-4bit", "Qwen3-8B-q4", "../Qwen3-8B-4bit", ""):
            with self.assertRaisesRegex(ValueError, "is no model"):
                paper_geometries.bits_of(name)

    def test_shares_of_the_weights_add_up(self):
        for geometry in paper_geometries.GEOMETRIES.values():
            streamable = geometry.weights() * geometry.streamable_share()
            self.assertAlmostEqual(streamable, geometry.weights() - (0 if geometry.tied else geometry.table_weights()))
            self.assertAlmostEqual(streamable * geometry.layer_share() + geometry.table_weights(), streamable)
            self.assertLess(geometry.attention_share(), geometry.layer_share())

    def test_kv_of_the_papers_tables(self):
        self.assertEqual(paper_geometries.geometry_of("Qwen3.5-9B-bf16").kv_bytes(1), 32 * 1024)
        self.assertEqual(paper_geometries.geometry_of("Qwen3.5-27B-bf16").kv_bytes(1), 64 * 1024)
        self.assertEqual(paper_geometries.geometry_of("Qwen3-8B-4bit").kv_bytes(2048), 302 * 10**6 // 2**20 * 2**20)

    def test_widths_of_quick_models_fit_groups_and_heads(self):
        for name in PUBLISHED:
            narrow = paper_geometries.Models(None, Path("."), quick=True).geometry(name)
            for width in (narrow.hidden, narrow.intermediate, narrow.heads * narrow.head_dim, narrow.linear_value_heads * narrow.linear_head):
                self.assertEqual(width % paper_geometries.GROUP, 0, name)


class MeasuringTest(unittest.TestCase):
    def test_every_row_is_wanted_once_and_kept_rows_only_again_if_asked_for(self):
        bench = paper_models.PaperBench.__new__(paper_models.PaperBench)
        bench.flags, bench.quick = types.SimpleNamespace(parts=["sweep", "reduction"], missing=False, model=None), False
        bench.kept = {"figures": {paper_figures.FOUR: {"0 %": STREAMED}}}
        rows = bench.wanted(paper_figures.FOUR)
        self.assertEqual(rows, list(paper_figures.SWEEP))
        bench.flags.missing = True
        self.assertEqual(bench.wanted(paper_figures.FOUR), rows[1:])

    def test_times_of_a_layer_are_means_of_its_parts_after_the_prompt(self):
        span = lambda cat, name, step, us: {"cat": cat, "name": name, "dur": us, "args": {"step": step}}
        events = [{"name": "process_name", "ph": "M"}, span("compute", "mlp 0", 0, 9e6), span("compute", "linear_attention 0", 1, 2000), span("compute", "mlp 0 [1/2]", 1, 1000),
                  span("compute", "mlp 0 [1/2]", 2, 3000), span("compute", "mlp 0 [2/2]", 2, 500), span("load", "mlp 0", 2, 7000), span("load", "head 0..99", 2, 1e6),
                  span("compute", "attention 3", 1, 1500), span("wait_weights", "wait_weights", 1, 1e6)]
        means = paper_models.layer_means(events)
        self.assertEqual(means["compute"], {0: 2 + 2 + 0.5, 3: 1.5})
        self.assertEqual(means["load"], {0: 7})

    def test_medians_are_of_numbers_and_words_are_those_of_the_first_run(self):
        runs = [{"load_s": 1, "loader": "read", "streams": False}, {"load_s": 5, "loader": "mmap", "streams": True}, {"load_s": 2, "loader": "mmap", "streams": True}]
        self.assertEqual(paper_models.medians(runs), {"load_s": 2, "loader": "read", "streams": False})

    def test_wrong_calls_are_refused(self):
        for words, message in ((["no-part"], "is no part"), (["load", "--model", "Qwen3-1B-4bit"], "is no model of a part"), (["--rounds", "0"], "at least 1")):
            call = subprocess.run([sys.executable, "-B", ROOT / "bench/paper_models.py", "bin", "out", *words], stderr=subprocess.PIPE, text=True)
            self.assertEqual(call.returncode, 2)
            self.assertIn(message, call.stderr)


class TablesTest(unittest.TestCase):
    def test_every_table_has_the_same_columns_in_all_rows(self):
        tables = paper_tables.tables(full_report(), list(paper_models.PARTS))
        self.assertEqual([name for name, _, _ in tables], list(paper_tables.TABLES))
        for name, _, rows in tables:
            for row in rows:
                self.assertEqual(list(row), list(rows[0]), name)
                self.assertTrue(all(isinstance(text, str) for text in row.values()), row)

    def test_every_row_of_a_paper_stands_beside_ours(self):
        rows = {name: rows for name, _, rows in paper_tables.tables(full_report(), list(paper_models.PARTS))}
        self.assertEqual(len(rows["reduction"]), 5)
        self.assertEqual([row["paper: resident layers"] for row in rows["budgets"]], ["0 of 32", "2 of 32", "8 of 32", "11 of 32", "14 of 32", "20 of 32"] + [""] * 6)
        self.assertEqual(rows["budgets"][1]["iPad gain"], "+7 %")
        self.assertEqual(rows["budgets"][0]["time / limit"], "1.053")
        self.assertEqual([row["paper: tokens/s"] for row in rows["tradeoff"]], ["1.7", "2.2", "3.2", "5.9", "68.3"])
        self.assertEqual([row["iPad, of the baseline"] for row in rows["sweep"]], ["6 %", "11 %", "15 %", "18 %", "29 %", "64 %", "100 %"] * 3)
        self.assertEqual([row["faster"] for row in rows["load"] if row["cache"] == "warm"], ["0.77", "0.75", "1.95", "1.07", "1.46", "20.58", "4.34", "0.69"])
        self.assertEqual([row["later"] for row in rows["first"][:3]], ["", "+6 %", "+10 %"])
        self.assertEqual(rows["dense"][0]["result"], "missed")

    def test_what_was_not_measured_has_no_row(self):
        self.assertEqual(paper_tables.tables({"figures": {}, "models": {}}, list(paper_models.PARTS)), [])
        report = full_report()
        del report["figures"][paper_figures.NINE]["3.0 GiB"]
        (_, _, rows), = paper_tables.tables(report, ["budgets"])
        self.assertEqual(len(rows), 11)

    def test_a_model_that_does_not_fit_says_so(self):
        report = full_report()
        report["figures"][paper_figures.TWENTY_SEVEN]["baseline"] = {"fits": False}
        rows = {name: rows for name, _, rows in paper_tables.tables(report, ["reduction", "sweep", "layers"])}
        self.assertEqual(rows["reduction"][3]["ours: in memory GiB"], "does not fit")
        self.assertEqual(rows["sweep"][-1]["tokens/s"], "does not fit")
        self.assertEqual(rows["layers"][-1]["computing in memory ms"], "")

    def test_the_data_file_makes_the_tables_of_a_page(self):
        report = json.loads(json.dumps(full_report()))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "paper-models.csv"
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                paper_models.print_tables(report, ["dense", "load"], path)
            tables = performance_page.tables_of(data_files.read(path))
        self.assertEqual(list(tables), ["dense", "load", "inference"])
        self.assertIn("== A dense model under a hard limit", printed.getvalue())
        page = "".join(f"<!-- paper-models.csv: {name} -->\n<!-- end -->\n" for name in tables)
        self.assertEqual(performance_page.filled(page, tables).count("| Qwen3-8B-8bit |"), 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
