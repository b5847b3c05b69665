// Text to tokens and vocabulary ids, and back, from the JSON document of a tokenizer (regard/text/tokenizer.py).
import { matchTokens } from "./matching.js";
import { bytePairs, joinSubwords, markSpace, splitSubwords, unigrams } from "./subwords.js";
import { SPACE, joinWords, splitAtSpaces, splitGraphemes, splitWords } from "./words.js";

export const [PAD, UNK, BOS, EOS] = [0, 1, 2, 3];
const SPECIAL_TOKENS = ["<pad>", "<unk>", "<s>", "</s>"];
const ANY_SPACE = new RegExp(`[${SPACE}]`, "gu");
const OUTER_SPACES = new RegExp(`^[${SPACE}]+|[${SPACE}]+$`, "gu");
const MARKS = /[\p{M}\uff9e\uff9f]{1001}/u; // normalising them takes quadratic time
const same = (tokens) => tokens;

const UNITS = {
  char: { split: (text) => [...text], join: same },
  grapheme: { split: splitGraphemes, join: same },
  word: { split: splitWords, join: joinWords },
  whitespace: { split: splitAtSpaces, join: (tokens) => [tokens.join(" ")] },
  bpe: { model: ({ merges }) => bytePairs(merges), join: joinSubwords },
  unigram: { model: ({ vocabulary, log_probs: logProbs }) => unigrams(vocabulary, logProbs), join: joinSubwords },
};

export class Tokenizer {
  constructor(document) {
    this.document = document;
    this.unit = UNITS[document.unit];
    const { vocabulary, features } = document;
    const splitPiece = this.unit.model?.(document);
    const known = new Set(vocabulary);
    const plain = (text) => text.replace(ANY_SPACE, (space) => (known.has(space) ? space : " "));
    this.split = this.unit.split ?? ((text) => splitSubwords(plain(text), splitPiece).map(markSpace));
    const tokens = splitPiece ? vocabulary.map(markSpace) : vocabulary;
    this.entries = [...SPECIAL_TOKENS, ...tokens, ...(features ?? [])];
    const numbered = (list, first) => new Map(list.map((entry, i) => [entry, first + i]));
    this.ids = numbered(tokens, SPECIAL_TOKENS.length);
    this.featureIds = numbered(features ?? [], SPECIAL_TOKENS.length + tokens.length);
    this.longest = vocabulary.reduce((most, token) => Math.max(most, [...token].length), 1);
  }

  // The text and the features of a line; without features in the model, a TAB is text.
  parse(line) {
    const tab = this.document.features ? line.indexOf("\t") : -1;
    return tab < 0 ? { text: line, features: null } : { text: line.slice(0, tab), features: line.slice(tab + 1) };
  }

  normalize(text, lowercase = false) {
    if (/\p{Cs}/u.test(text)) throw new Error("The text contains a lone surrogate.");
    const form = this.document.normal_form;
    if (form !== "none" && MARKS.test(text)) throw new Error("The text has more than 1,000 combining characters in a row.");
    const compose = (characters) => (form === "none" ? characters : characters.normalize(form));
    return lowercase ? compose(compose(text).toLowerCase()) : compose(text);
  }

  // The normalised text without whitespace at its ends, as Python's strip removes it.
  trim(text) {
    return this.normalize(text, this.document.lowercase).replace(OUTER_SPACES, "");
  }

  // {ids, tokens, leftOut, numFeatures}, without BOS and EOS; unknown tokens keep their spelling, features are the last.
  encode({ text, features }) {
    const encoding = this.encodeText(this.trim(text));
    const tags = features === null ? [] : splitAtSpaces(this.normalize(features).replace(/[;|,]/g, " "));
    const tagIds = tags.map((tag) => this.featureIds.get(tag) ?? UNK);
    return { ...encoding, ids: [...encoding.ids, ...tagIds], tokens: [...encoding.tokens, ...tags], numFeatures: tags.length };
  }

  encodeText(text) {
    const tokens = this.split(text);
    if (this.document.match_vocabulary && this.document.unit === "word") return matchTokens(tokens, this.ids, this.longest);
    return { ids: this.tokensToIds(tokens), tokens, leftOut: [] };
  }

  tokensToIds(tokens) {
    return tokens.map((token) => this.ids.get(token) ?? UNK);
  }

  detokenize(tokens) {
    return this.unit.join(tokens).join("");
  }
}
