// Random texts of kinds that tokenizers are known to differ on. The same seed gives the same texts.
import fs from "node:fs";

// Mulberry32: small, and good enough to choose characters.
export class Random {
  constructor(seed) {
    this.state = seed >>> 0;
  }
  next() {
    this.state = (this.state + 0x6d2b79f5) >>> 0;
    let t = this.state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }
  below(n) {
    return Math.floor(this.next() * n);
  }
  chance(p) {
    return this.next() < p;
  }
  pick(list) {
    return list[this.below(list.length)];
  }
}

// The code points assigned as of Unicode 15.0: what the project's own tables know.
function assigned(path) {
  const ranges = [];
  for (const line of fs.readFileSync(path, "utf8").split("\n")) {
    const fields = line.split("#")[0].split(";");
    if (fields.length < 2 || Number(fields[1]) > 15.0) continue;
    const [first, last] = fields[0].trim().split("..").map((code) => parseInt(code, 16));
    const end = last ?? first;
    if ((first >= 0xd800 && first <= 0xdfff) || (end & 0xfffe) === 0xfffe || first === 0xfdd0) continue;
    ranges.push([first, end]);
  }
  return ranges;
}

const WORDS = ("the of and to in is that it for you with on as are was this have from or had by hot word but what some we can out other were all " +
  "there when up use your how said an each she which do their time if will way about many then them write would like so these her long make " +
  "thing see him two has look more day could go come did number sound no most people my over know water than call first who may down side been " +
  "I'm you'll we've they'd isn't IT'S DON'T can't HELLO World naïve café Straße ΣΊΣΥΦΟΣ İstanbul ŉ ſs ﬁne").split(" ");
const SCRIPTS = [[0x41, 0x7a], [0xa0, 0x24f], [0x370, 0x3ff], [0x400, 0x52f], [0x590, 0x5f4], [0x600, 0x6ff], [0x900, 0x97f], [0xe00, 0xe5b],
  [0x1100, 0x11ff], [0x1e00, 0x1eff], [0x2000, 0x206f], [0x2070, 0x209c], [0x2150, 0x218b], [0x2460, 0x24ff], [0x2e80, 0x2fd5], [0x3000, 0x30ff],
  [0x4e00, 0x9fff], [0xac00, 0xd7a3], [0xf900, 0xfad9], [0xfb00, 0xfdff], [0xfe70, 0xfefc], [0xff01, 0xffdc], [0x1d400, 0x1d7ff], [0x1e4d0, 0x1e4f9],
  [0x1f300, 0x1faff], [0x31350, 0x323af], [0x11f00, 0x11f59], [0x20, 0x2f]];
const PIECES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\u200d", "\u200c", "\u180e", ".", ",", "!", "?", "...",
  "-", "--", "_", "(", ")", "[", "]", "{", "}", "\"", "'", "'s", "'LL", "'Re", "’s", "`", "/", "//", "\\", "@", "#", "$", "%", "^", "&", "*", "+", "=", "<", ">",
  "|", "~", "0", "7", "12", "123", "1234", "3.14", "1,000", "²", "½", "Ⅷ", "٣", "①", "e\u0301", "a\u0323\u0307", "q\u0307\u0323", "क्\u200dष", "می\u200cخواهم", "👩\u200d👩\u200d👧",
  "🏳️\u200d🌈", "👍🏽", "🇩🇪", "한국어", "가", "日本語", "ﷺ", "ﬁ", "Å", "▁", "▁▁", "\ufeff", "\ufffd", "\u0000", "\u0007", "\u00ad", "<s>", "</s>", "<unk>", "<0x41>", "Ġ", "##", "ſ"];

export class Texts {
  constructor(random, unicodeFolder, ownPieces = []) {
    this.random = random;
    this.assigned = assigned(unicodeFolder + "/DerivedAge.txt");
    this.ownPieces = ownPieces.filter((piece) => piece.length > 0);
  }
  character() {
    const [first, last] = this.random.pick(this.assigned);
    return String.fromCodePoint(first + this.random.below(last - first + 1));
  }
  ofScript() {
    const [first, last] = this.random.pick(SCRIPTS);
    let text = "";
    for (let n = 1 + this.random.below(6); n > 0; --n) text += String.fromCodePoint(first + this.random.below(last - first + 1));
    return text;
  }
  part() {
    const kind = this.random.below(12);
    if (kind < 4) return (this.random.chance(0.8) ? " " : "") + this.random.pick(WORDS);
    if (kind < 7) return this.random.pick(PIECES);
    if (kind < 9) return this.ofScript();
    if (kind < 10 && this.ownPieces.length > 0) return this.random.pick(this.ownPieces);
    if (kind < 11) return this.character();
    return this.random.pick(PIECES).repeat(1 + this.random.below(5));
  }
  next() {
    let text = "";
    for (let n = this.random.below(this.random.chance(0.1) ? 60 : 12) + 1; n > 0; --n) text += this.part();
    return this.random.chance(0.01) ? "" : text.toWellFormed();
  }
}
