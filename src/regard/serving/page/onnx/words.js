// Splitting into grapheme clusters, and into words and punctuation marks, as in regard/text/words.py.

export const JOINER = "‿"; // marks the side on which a punctuation mark touches its neighbour
export const PUNCTUATION = "\\p{P}\\p{S}";
export const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"; // of Python's str.split
const LETTERS = `[^${SPACE}${PUNCTUATION}]+`;
export const WORD = `${LETTERS}(?:['’\\-‐‑·]${LETTERS})*`;

const SPACES = new RegExp(`[${SPACE}]+`, "u");
const WORD_OR_JOINER = new RegExp(`${JOINER}|${WORD}`, "uy");
const STARTS_WITH_PUNCTUATION = new RegExp(`^[${PUNCTUATION}]`, "u");
// Python's clusters are those of Unicode 15.0, which break between the consonants of an Indic conjunct.
const CONJUNCT = /(?<=[\p{M}\u200d])(?=\p{Lo})(?![\u0e33\u0eb3])/u;
const segmenter = new Intl.Segmenter("en", { granularity: "grapheme" });

export const splitAtSpaces = (text) => text.split(SPACES).filter(Boolean);

export const splitGraphemes = (text) => Array.from(segmenter.segment(text), ({ segment }) => segment).flatMap((cluster) => cluster.split(CONJUNCT));

export function firstGrapheme(text) {
  const [{ segment }] = segmenter.segment(text);
  return segment.split(CONJUNCT)[0];
}

// The matches of a sticky pattern, and between them what `other(rest)` finds at the start of the rest.
export function isolate(text, pattern, other) {
  const pieces = [];
  for (let start = 0; start < text.length; start += pieces.at(-1).length) {
    pattern.lastIndex = start;
    pieces.push(pattern.exec(text)?.[0] ?? other(text.slice(start)));
  }
  return pieces;
}

export const splitWords = (text) => splitAtSpaces(text).flatMap((chunk) => markJoins(isolate(chunk, WORD_OR_JOINER, firstGrapheme)));

// The joiner counts as a word: with a joiner on its right, "‿‿" would be ambiguous.
const isPunctuation = (piece) => piece !== JOINER && STARTS_WITH_PUNCTUATION.test(piece);

function markJoins(pieces) {
  const tokens = [...pieces];
  for (let right = 1; right < pieces.length; right++) {
    if (isPunctuation(pieces[right - 1]) && !isPunctuation(pieces[right])) tokens[right - 1] += JOINER;
    else tokens[right] = JOINER + tokens[right];
  }
  return tokens;
}

export function joinWords(tokens) {
  let joined = true;
  return tokens.map((token) => {
    const left = token.length > 1 && token.startsWith(JOINER);
    const rest = left ? token.slice(1) : token;
    const right = rest.length > 1 && rest.endsWith(JOINER);
    const piece = (joined || left ? "" : " ") + (right ? rest.slice(0, -1) : rest);
    joined = right;
    return piece;
  });
}

// A word token without its joiners.
export const withoutJoiners = (token) => token.replace(/^‿(?=.)/u, "").replace(/(?<=.)‿$/u, "");
