// Tokenizers put together at random from the parts that the library has.

const PATTERNS = [
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s+",
  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  "[一-龥\u3040-ゟ゠-ヿ]+", "\\p{N}{1,3}", "(?=(\\d{3})+(?!\\d))", " ?[^(\\s|[.,!?…。，、।۔،])]+", "\\b", "\\B", "^.", ".$", "(?<=\\s)", "\\w+", "\\W+", "[\\w&&[^_]]+",
  "[[:punct:]]", "[^[:alnum:][:space:]]+", "[[:^alpha:]]+", "(?i)s+", "(?i)[a-z]+", "(?<![a-z])[A-Z]", "\\s{2,}", "\\h+", "[\\h]+", "\\R", "\\p{^L}+", "\\P{L}+", "[^\\P{L}a-e]+",
  "(\\s)\\1+", "(?>a+)b?", "a*+b", "[]a]", "[^]a]", "\\x41", "\\x{4e2d}", "\\u00e9", "\\d+|[a-z]{2,4}?", "(?m:.)+", "(?x) [a-z]+ # letters", "\\A\\S+", "\\S+\\z", "\\Gx", "(?<n>a)\\k<n>",
  "\\p{Lu}\\p{Ll}*", "\\p{Alphabetic}+", "\\p{Emoji}+", "\\p{Script=Greek}+", "\\p{Greek}+", "\\p{Punct}+", "\\p{Word}+", "(?i)\\p{Lu}+", "[\\P{Assigned}]", "[\\p{Mn}\\p{Mc}]+", "\\X", "[a-c[x-z]]+", "[&&a]", "é", ""];
const BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
const SPACE_MARK = "\u2581";

export function makeTokenizer(random, texts) {
  const maker = new Maker(random, texts);
  return maker.make();
}

class Maker {
  constructor(random, texts) {
    this.random = random;
    this.texts = texts;
  }

  bool() {
    return this.random.chance(0.5);
  }

  some(most, make) {
    const n = this.random.below(most + 1);
    const list = [];
    for (let i = 0; i < n; ++i) list.push(make());
    return list;
  }

  sequence(list, field) {
    if (list.length === 0) return null;
    return list.length === 1 && this.bool() ? list[0] : { type: "Sequence", [field]: list };
  }

  make() {
    const byteLevel = this.random.chance(0.5);
    const steps = this.some(2, () => this.preTokenizer());
    const style = byteLevel ? 0 : 1 + this.random.below(3);
    if (style === 0) steps.push({ type: "ByteLevel", add_prefix_space: this.bool(), trim_offsets: true, use_regex: this.bool() });
    if (style === 1) steps.push({ type: "Metaspace", replacement: SPACE_MARK, prepend_scheme: this.random.pick(["always", "first", "never"]), split: this.bool() });
    const normalizer = this.sequence(this.some(3, () => this.normalizer()), "normalizers");
    const model = style !== 0 && this.random.chance(0.4) ? this.unigram(style) : this.bpe(style);
    const size = Array.isArray(model.vocab) ? model.vocab.length : Object.keys(model.vocab).length;
    return {
      version: "1.0", truncation: null, padding: null,
      added_tokens: this.addedTokens(model, size),
      normalizer, pre_tokenizer: this.sequence(steps, "pretokenizers"), post_processor: this.postProcessor(), decoder: this.decoder(style), model,
    };
  }

  normalizer() {
    switch (this.random.below(13)) {
      case 0: return { type: "NFC" };
      case 1: return { type: "NFD" };
      case 2: return { type: "NFKC" };
      case 3: return { type: "NFKD" };
      case 4: return { type: "Lowercase" };
      case 5: return { type: "StripAccents" };
      case 6: return { type: "Strip", strip_left: this.bool(), strip_right: this.bool() };
      case 7: return { type: "Replace", pattern: { String: this.random.pick([" ", "a", "``", "  ", "th"]) }, content: this.random.pick([SPACE_MARK, "", "x", "yz"]) };
      case 8: return { type: "Replace", pattern: { Regex: this.random.pick([" {2,}", "\\s+", "[^\\w\\s]", "^\\s+", "\\p{M}"]) }, content: this.random.pick([" ", "", SPACE_MARK]) };
      case 9: return { type: "Prepend", prepend: this.random.pick([SPACE_MARK, "x "]) };
      case 10: return { type: "Nmt" };
      case 11: return { type: "BertNormalizer", clean_text: this.bool(), handle_chinese_chars: this.bool(), strip_accents: this.random.pick([true, false, null]), lowercase: this.bool() };
      default: return { type: "NFKC" };
    }
  }

  preTokenizer() {
    const behavior = this.random.pick(BEHAVIORS);
    switch (this.random.below(10)) {
      case 0: return { type: "Digits", individual_digits: this.bool() };
      case 1: return { type: "Punctuation", behavior };
      case 2: return { type: "Whitespace" };
      case 3: return { type: "WhitespaceSplit" };
      case 4: return { type: "CharDelimiterSplit", delimiter: this.random.pick(["|", " ", "e"]) };
      case 5: return { type: "BertPreTokenizer" };
      case 6: return { type: "FixedLength", length: 1 + this.random.below(6) };
      case 7: return { type: "Split", pattern: { String: this.random.pick([" ", "e", "--", SPACE_MARK, "."]) }, behavior, invert: this.bool() };
      default: return { type: "Split", pattern: { Regex: this.random.pick(PATTERNS) }, behavior, invert: this.random.chance(0.2) };
    }
  }

  // Words as the model may see them.
  words(style) {
    const words = [];
    for (let i = 0; i < 60; ++i) {
      const text = this.texts.next();
      const plain = style === 0 ? [...Buffer.from(text)].map((byte) => BYTE_CHARS[byte]).join("") : text.replaceAll(" ", SPACE_MARK);
      for (const word of plain.split(style === 0 ? /(?=Ġ)/ : /(?=\u2581)/)) words.push([...word].slice(0, 12));
    }
    return words.filter((word) => word.length > 0);
  }

  bpe(style) {
    const words = this.words(style);
    const vocab = {};
    const add = (piece) => (vocab[piece] ??= Object.keys(vocab).length);
    const model = { type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: this.bool(),
      byte_fallback: false, ignore_merges: this.random.chance(0.3), vocab, merges: [] };
    if (style !== 0 && this.random.chance(0.7)) {
      model.unk_token = "<unk>";
      add("<unk>");
    }
    if (style !== 0 && this.bool()) {
      model.byte_fallback = true;
      for (let byte = 0; byte < 256; ++byte) if (this.random.chance(0.999)) add(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
    }
    if (style === 0) for (const char of BYTE_CHARS) add(char);
    for (const word of words) for (const char of word) if (style === 0 || this.random.chance(0.7)) add(char);
    const parts = words.map((word) => word.filter((char) => char in vocab));
    for (let n = this.random.below(250); n > 0; --n) {
      const word = this.random.pick(parts);
      if (word.length < 2) continue;
      const at = this.random.below(word.length - 1);
      const [left, right] = [word[at], word[at + 1]];
      if (model.merges.some(([a, b]) => a === left && b === right)) continue;
      add(left + right);
      model.merges.push([left, right]);
      for (const other of parts) {
        for (let i = 0; i + 1 < other.length; ++i) if (other[i] === left && other[i + 1] === right) other.splice(i, 2, left + right);
      }
    }
    if (this.random.chance(0.3)) model.merges = model.merges.every(([a, b]) => !(a + b).includes(" ")) ? model.merges.map((merge) => merge.join(" ")) : model.merges;
    return model;
  }

  unigram(style) {
    const pieces = new Map([["<unk>", this.bool() ? 0 : -5]]);
    const score = () => -Math.round(this.random.next() * 15000) / 1000;
    const fallback = this.bool();
    if (fallback) for (let byte = 0; byte < 256; ++byte) pieces.set(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`, 0);
    for (const word of this.words(style)) {
      for (const char of word) if (this.random.chance(0.5)) pieces.set(char, pieces.get(char) ?? score());
      const at = this.random.below(word.length);
      const piece = word.slice(at, at + 1 + this.random.below(5)).join("");
      pieces.set(piece, pieces.get(piece) ?? score());
    }
    return { type: "Unigram", unk_id: 0, byte_fallback: fallback, vocab: [...pieces] };
  }

  addedTokens(model, size) {
    const contents = ["<s>", "</s>", "<pad>", "<|im_start|>", " <x>", "\n\n", "  ", "the", "Über", "é", "A", "\t", "foo bar", "<unk>", SPACE_MARK];
    const chosen = contents.filter(() => this.random.chance(0.3));
    const known = Array.isArray(model.vocab) ? new Map(model.vocab.map(([piece], id) => [piece, id])) : new Map(Object.entries(model.vocab));
    let next = size;
    return chosen.map((content) => ({ id: known.get(content) ?? next++, content, single_word: this.random.chance(0.2), lstrip: this.random.chance(0.2),
      rstrip: this.random.chance(0.2), normalized: this.random.chance(0.4), special: this.bool() }));
  }

  postProcessor() {
    const special = (name) => ({ SpecialToken: { id: name, type_id: 0 } });
    const text = { Sequence: { id: "A", type_id: 0 } };
    switch (this.random.below(5)) {
      case 0: return { type: "ByteLevel", add_prefix_space: true, trim_offsets: this.bool(), use_regex: true };
      case 1: return { type: "TemplateProcessing", single: [special("b"), text, special("e")], pair: [text, text],
        special_tokens: { b: { id: "b", ids: [1], tokens: ["b"] }, e: { id: "e", ids: [2, 3], tokens: ["e", "f"] } } };
      case 2: return { type: this.random.pick(["BertProcessing"]), sep: ["e", 2], cls: ["b", 1] };
      case 3: return { type: "RobertaProcessing", sep: ["e", 2], cls: ["b", 1], trim_offsets: this.bool(), add_prefix_space: this.bool() };
      default: return null;
    }
  }

  decoder(style) {
    if (style === 0) return { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true };
    if (style === 1 && this.bool()) return { type: "Metaspace", replacement: SPACE_MARK, prepend_scheme: this.random.pick(["always", "first", "never"]), split: true };
    const replace = { type: "Replace", pattern: { String: SPACE_MARK }, content: " " };
    switch (this.random.below(4)) {
      case 0: return { type: "Sequence", decoders: [replace, { type: "ByteFallback" }, { type: "Fuse" }] };
      case 1: return { type: "Sequence", decoders: [replace, { type: "ByteFallback" }, { type: "Fuse" }, { type: "Strip", content: " ", start: 1, stop: 0 }] };
      case 2: return { type: "Fuse" };
      default: return null;
    }
  }
}

// The characters that stand for the 256 bytes.
const BYTE_CHARS = (() => {
  const chars = [];
  let next = 0x100;
  for (let byte = 0; byte < 256; ++byte) {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
    chars.push(String.fromCodePoint(printable ? byte : next++));
  }
  return chars;
})();
