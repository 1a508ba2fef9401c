// library.mjs FILE: reads a JSON array of texts on stdin, and writes what the library's tokenizer
// of FILE makes of each.
import fs from "node:fs";
import { createRequire } from "node:module";

const { Tokenizer } = createRequire(import.meta.url)("tokenizers");
const tokenizer = Tokenizer.fromFile(process.argv[2]);
const results = [];
for (const text of JSON.parse(fs.readFileSync(0, "utf8"))) {
  try {
    const ids = Array.from((await tokenizer.encode(text)).getIds());
    results.push({ ids, text: ids.length > 0 ? await tokenizer.decode(ids, true) : "" });
  } catch (error) {
    results.push({ error: String(error) });
  }
}
process.stdout.write(JSON.stringify(results));
