// See scripts/compare-tokenizers.
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { makeTokenizer } from "./make.mjs";
import { Random, Texts } from "./random.mjs";

const UNICODE = "/usr/share/unicode";

const { values: flags, positionals: folders } = parseArgs({
  allowPositionals: true,
  options: { lime: { type: "string" }, texts: { type: "string", default: "20000" }, made: { type: "string", default: "200" },
    "made-texts": { type: "string", default: "500" }, seed: { type: "string", default: "1" }, keep: { type: "string" } },
});

// The answers of one `lime tokenize --jsonl`: a value a request, or an Error. A line that fails
// ends the run, so the rest is asked anew.
function lime(folder, requests, field) {
  const answers = [];
  while (answers.length < requests.length) {
    const input = requests.slice(answers.length).map((request) => JSON.stringify(request)).join("\n") + "\n";
    const run = spawnSync(flags.lime, ["tokenize", "--model", folder, "--jsonl"], { input, maxBuffer: 1 << 30, encoding: "utf8" });
    if (run.error) throw run.error;
    if (run.signal) throw new Error(`lime was ended by ${run.signal}`);
    for (const line of run.stdout.split("\n")) if (line !== "") answers.push(JSON.parse(line)[field]);
    if (run.status === 0) break;
    const message = run.stderr.trim().split("\n").pop();
    if (!message.includes("line ")) return { refused: message };
    answers.push(new Error(message));
  }
  return { answers };
}

// What the library makes of each text: { ids, text } or { error }. It runs apart, since some of its
// faults end the program.
function library(folder, texts) {
  const script = fileURLToPath(new URL("library.mjs", import.meta.url));
  const run = spawnSync(process.execPath, [script, path.join(folder, "tokenizer.json")], { input: JSON.stringify(texts), maxBuffer: 1 << 30, encoding: "utf8" });
  return run.status === 0 ? { results: JSON.parse(run.stdout) } : { refused: run.stderr.trim().split("\n").find((line) => line !== "") ?? run.signal };
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

// Both from shortly before the first difference on.
function around(a, b) {
  let at = 0;
  while (at < a.length && a[at] === b[at]) ++at;
  const from = Math.max(at - 5, 0);
  return { at, library: a.slice(from, from + 20), lime: b.slice(from, from + 20) };
}

function firstDifference(texts, expected, encoded, decoded) {
  for (let i = 0; i < texts.length; ++i) {
    const failed = encoded[i] instanceof Error;
    if (failed && expected[i].error) continue;
    if (failed || !same(expected[i].ids, encoded[i])) {
      if (failed || expected[i].error) return { text: texts[i], library: expected[i].error ?? "ids", lime: failed ? String(encoded[i]) : "ids" };
      return { text: texts[i], ids: around(expected[i].ids, encoded[i]) };
    }
    if (expected[i].text !== decoded[i]) return { text: texts[i], ids: encoded[i], decoded: around(expected[i].text, decoded[i]) };
  }
  return null;
}

// Compares one tokenizer.json, which lies in `folder` alone: the library knows nothing of the files
// beside it.
function compare(json, texts) {
  fs.writeFileSync(path.join(folder, "tokenizer.json"), json);
  const expected = library(folder, texts);
  if (expected.refused) return { result: "invalid", detail: expected.refused };
  const { answers: encoded, refused } = lime(folder, texts.map((text) => ({ text })), "ids");
  if (refused) return { result: "refused", detail: refused };
  const decoded = lime(folder, encoded.map((ids) => ({ ids: ids instanceof Error ? [] : ids })), "text").answers;
  const difference = firstDifference(texts, expected.results, encoded, decoded);
  if (!difference) return { result: "equal" };
  if (disagreesWithItself(folder, texts, expected)) return { result: "invalid", detail: "the library's answers change from run to run" };
  return { result: "different", detail: difference };
}

// From 0.23 on the library keeps added tokens in a map without an order, and of two with one
// normalized form finds either.
function disagreesWithItself(folder, texts, first) {
  const answers = JSON.stringify(first.results);
  return Array.from({ length: 10 }).some(() => JSON.stringify(library(folder, texts).results) !== answers);
}

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "compare-tokenizers."));
const counts = { equal: 0, different: 0, refused: 0, invalid: 0 };

function report(name, count, { result, detail }, json) {
  ++counts[result];
  if (result === "equal") return console.log(`${name}: ${count} texts equal`);
  console.log(`${name}: ${result}: ${result === "different" ? JSON.stringify(detail) : detail}`);
  if (flags.keep && result === "different") fs.writeFileSync(path.join(flags.keep, `${name}.json`), json);
}

function sample(texts, count) {
  return Array.from({ length: count }, () => texts.next());
}

try {
  for (const [index, given] of folders.entries()) {
    const json = fs.readFileSync(path.join(given, "tokenizer.json"), "utf8");
    const own = JSON.parse(json).added_tokens.map((token) => token.content);
    const texts = sample(new Texts(new Random(1000 * Number(flags.seed) + index), UNICODE, own), Number(flags.texts));
    report(given, texts.length, compare(json, texts));
  }
  // Those that the library itself fails on do not count.
  for (let index = 0, compared = 0; compared < Number(flags.made); ++index) {
    const random = new Random(1000003 * Number(flags.seed) + index);
    const made = makeTokenizer(random, new Texts(random, UNICODE));
    const own = made.added_tokens.map((token) => token.content);
    const texts = sample(new Texts(random, UNICODE, own), Number(flags["made-texts"]));
    const json = JSON.stringify(made);
    const outcome = compare(json, texts);
    if (outcome.result !== "invalid") ++compared;
    report(`made-${index}`, texts.length, outcome, json);
  }
} finally {
  fs.rmSync(folder, { recursive: true });
}
console.log(`${counts.equal} equal, ${counts.different} different, ${counts.refused} refused by lime, ${counts.invalid} refused by the library`);
process.exitCode = counts.different > 0 ? 1 : 0;
