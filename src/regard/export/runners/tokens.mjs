// Tokenize and detokenize with the tables of an exported model. Not here: the matching of unknown words to a vocabulary.

const UNK = 1;
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const LETTERS = `[^${SPACE}\\p{P}\\p{S}]+`;
const WORD = `${LETTERS}(?:['’\\-‐‑·]${LETTERS})*`;
const WORDS = new RegExp(`‿|${WORD}`, "uy");
const PIECES = new RegExp(`▁| ?${WORD}|[${SPACE}](?=[${SPACE}▁]|$)|(?! )[${SPACE}]`, "uy");
const CONJUNCT = /(?<=[\p{M}\u200d])(?=\p{Lo})(?![\u0e33\u0eb3])/u; // within a cluster since Unicode 15.1
const segmenter = new Intl.Segmenter("en", { granularity: "grapheme" });

const clusters = (text) => Array.from(segmenter.segment(text), ({ segment }) => segment).flatMap((cluster) => cluster.split(CONJUNCT));
const chunks = (text) => text.split(new RegExp(`[${SPACE}]+`, "u")).filter(Boolean);
export const isBlank = (text) => !chunks(text).length;
const markSpace = (part) => (part === "▁" ? "▁▁" : part.replace(/^ /, "▁"));
const numbered = (entries, first) => new Map(entries.map((entry, i) => [entry, first + i]));

// The matches of a pattern, and between them grapheme clusters, each with a space before it.
function isolate(text, pattern) {
  const pieces = [];
  for (let at = 0; at < text.length; at += pieces.at(-1).length) {
    pattern.lastIndex = at;
    const space = text[at] === " " ? " " : "";
    pieces.push(pattern.exec(text)?.[0] ?? space + clusters(text.slice(at + space.length))[0]);
  }
  return pieces;
}

// Mark with ‿ the side on which a punctuation mark touches its neighbour.
function attach(parts) {
  const marks = parts.map((part) => part !== "‿" && /^[\p{P}\p{S}]/u.test(part));
  const toRight = (i) => marks[i] && !marks[i + 1];
  return parts.map((part, i) => (i && !toRight(i - 1) ? "‿" : "") + part + (i + 1 < parts.length && toRight(i) ? "‿" : ""));
}

function detach(tokens) {
  let joined = true;
  return tokens.map((token) => {
    const left = token.length > 1 && token.startsWith("‿"), rest = left ? token.slice(1) : token;
    const right = rest.length > 1 && rest.endsWith("‿"), space = joined || left ? "" : " ";
    joined = right;
    return space + (right ? rest.slice(0, -1) : rest);
  }).join("");
}

function bytePairs({ merges }) {
  const ranks = numbered(merges.map((pair) => pair.join("\n")), 0);
  const rank = (parts, i) => ranks.get(`${parts[i]}\n${parts[i + 1]}`) ?? Infinity;
  return (characters) => {
    for (const parts = [...characters]; ;) {
      const first = parts.reduce((best, _, i) => (rank(parts, i) < rank(parts, best) ? i : best), 0);
      if (rank(parts, first) === Infinity) return parts;
      parts.splice(first, 2, parts[first] + parts[first + 1]);
    }
  };
}

function unigrams({ vocabulary, log_probs: logProbs }) {
  const scores = new Map(vocabulary.map((entry, i) => [entry, logProbs[i]])), unknown = Math.min(0, ...logProbs) - 10;
  return (characters) => {
    const best = [{ score: 0, parts: [], known: true }];
    for (let end = 1; end <= characters.length; end++)
      for (let start = 0; start < end; start++) {
        const part = characters.slice(start, end).join(""), known = scores.has(part), { parts } = best[start];
        const score = best[start].score + (scores.get(part) ?? (start + 1 === end ? unknown : -Infinity));
        const joined = known || best[start].known ? [...parts, part] : [...parts.slice(0, -1), parts.at(-1) + part];
        if (start === 0 || score > best[end].score) best[end] = { score, known, parts: joined };
      }
    return best.at(-1).parts;
  };
}

const subwords = (model) => (document) => {
  const split = model(document);
  return (text) => isolate(text && ` ${text}`, PIECES).flatMap((piece) => split([...piece])).map(markSpace);
};
const unmarkSpace = (token) => (token === "▁▁" ? "▁" : token.replace(/^▁/, " "));
const joinSubwords = (tokens) => tokens.map(unmarkSpace).join("").replace(/^ /, "");
const UNITS = { // text to tokens, and tokens to text
  char: [() => (text) => [...text], (tokens) => tokens.join("")],
  grapheme: [() => clusters, (tokens) => tokens.join("")],
  whitespace: [() => chunks, (tokens) => tokens.join(" ")],
  word: [() => (text) => chunks(text).flatMap((chunk) => attach(isolate(chunk, WORDS))), detach],
  bpe: [subwords(bytePairs), joinSubwords],
  unigram: [subwords(unigrams), joinSubwords],
};

// One side of a model: `encode` a line to {text, normalized, tokens, ids}, where features follow a TAB; `decode` tokens to text.
export function tokenizer(document) {
  const { unit, normal_form: form, lowercase, features } = document, [split, decode] = UNITS[unit], toTokens = split(document);
  const entries = ["bpe", "unigram"].includes(unit) ? document.vocabulary.map(markSpace) : document.vocabulary;
  const ids = numbered(entries, 4), featureIds = numbered(features ?? [], 4 + entries.length);
  const normalize = (text) => (form === "none" ? text : text.normalize(form));
  const encode = (line) => {
    const [text, tags = ""] = features ? line.split(/\t(.*)/s) : [line];
    const normalized = lowercase ? normalize(text).toLowerCase() : normalize(text), tokens = toTokens(normalized);
    const names = chunks(normalize(tags).replace(/[;|,]/g, " "));
    const known = [...tokens.map((token) => ids.get(token)), ...names.map((name) => featureIds.get(name))];
    return { text, normalized, tokens: [...tokens, ...names], ids: known.map((id) => id ?? UNK) };
  };
  return { encode, decode, ids, entries: ["<pad>", "<unk>", "<s>", "</s>", ...entries, ...featureIds.keys()] };
}
