// Follows a text with llama.cpp, one token at a time, and prints the time of a token.
//
//     node bench/llama.mjs PACKAGES MODEL.gguf CALL.json
//
// PACKAGES is the folder in which npm installed node-llama-cpp. CALL.json has "prompt", ids that
// are computed at once; "text", the ids that follow; "uncounted", how many of their steps come
// before those whose time counts; "exact": keys and values in F32, and no flash attention, which
// rounds to F16; "streams": so many sequences follow the text at once, in one batch. llama.cpp maps the file, as it does by default, and has a thread for every core;
// nothing is computed before the prompt. A step makes the logits of the next token, as if it was to
// be sampled, but the text decides which token that is.
//
// Prints a JSON object: "ms_per_token", of each sequence; of the first one, "logprobs" and
// "likeliest", for every token of the text but the first: its natural log-probability, and the id with the largest logit; "release", that of
// llama.cpp.
import {readFileSync} from "node:fs";
import {availableParallelism} from "node:os";
import {join, resolve} from "node:path";
import {pathToFileURL} from "node:url";

const [packages, modelPath, callPath] = process.argv.slice(2);
const library = join(resolve(packages), "node_modules/node-llama-cpp");
const {getLlama} = await import(pathToFileURL(join(library, "dist/index.js")));
const {prompt, text, uncounted, exact, streams} = JSON.parse(readFileSync(callPath, "utf8"));

const threads = availableParallelism();
const llama = await getLlama({gpu: false, build: "never", skipDownload: true, logLevel: "error",
  maxThreads: threads});
const model = await llama.loadModel({modelPath, useMmap: true, ignoreMemorySafetyChecks: true});
const kv = exact
  ? {experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32", flashAttention: false}
  : {};
const context = await model.createContext({contextSize: prompt.length + text.length, ...kv,
  sequences: streams, threads: {ideal: threads, min: threads}, ignoreMemorySafetyChecks: true});
const sequences = Array.from({length: streams}, () => context.getSequence());

// Computes `token`. Returns what llama.cpp says about `following`, the next token of the text.
async function step(sequence, token, following) {
  const logits = {filter: {tokens: [following], includeSelected: true}};
  const generateNext = {token: true, options: {temperature: 0}, logits, totalLogitWeight: true};
  const [{next}] = await sequence.controlledEvaluate([[token, {generateNext}]]);
  const belowLargest = next.logits.get(following) - next.logits.get(next.token);
  return {likeliest: next.token, logprob: belowLargest - Math.log(next.totalLogitWeight)};
}

await Promise.all(sequences.map(each => each.evaluateWithoutGeneratingNewTokens(prompt)));
const steps = [], ends = [];
for (let at = 0; at + 1 < text.length; ++at) {
  steps.push((await Promise.all(sequences.map(each => step(each, text[at], text[at + 1]))))[0]);
  ends.push(performance.now());
}
console.log(JSON.stringify({
  ms_per_token: (ends.at(-1) - ends[uncounted - 1]) / (ends.length - uncounted),
  logprobs: steps.map(({logprob}) => logprob),
  likeliest: steps.map(({likeliest}) => likeliest),
  release: JSON.parse(readFileSync(join(library, "llama/llama.cpp.info.json"), "utf8")).tag
}));
await llama.dispose();
