// Word tokens that are not in a vocabulary, matched to tokens that are, as in regard/text/matching.py.
import { JOINER, PUNCTUATION, withoutJoiners } from "./words.js";

const UNK = 1;
const UNKNOWN_COST = 1000;
const ONLY_PUNCTUATION = new RegExp(`^[${PUNCTUATION}][${PUNCTUATION}\\p{M}\\p{Cf}]*$`, "u"); // variation selectors, joiners of emoji
// Thai and Lao, Myanmar, Khmer, kana, Han
const SCRIPTS = "\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u3005-\\u3007\\u3040-\\u30ff\\u3400-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{3ffff}";
const UNSPACED = new RegExp(`[${SCRIPTS}]`, "u");
const UNITS = new RegExp(`[${SCRIPTS}]|[^${SCRIPTS}]+`, "gu"); // what a cut never divides

const isPunctuation = (token) => withoutJoiners(token) !== JOINER && ONLY_PUNCTUATION.test(withoutJoiners(token));

// The ids, the tokens, and the punctuation that is left out. `ids` is a Map from tokens to ids.
export function matchTokens(tokens, ids, longest) {
  const matched = tokens.flatMap((token) => (!ids.has(token) && UNSPACED.test(token) && !isPunctuation(token) ? splitWord(token, ids, longest) : [token]));
  const found = matched.map((token) => find(token, ids));
  const kept = keptPositions(found, matched);
  if (!kept.length) return { ids: found, tokens: matched, leftOut: [] };
  const isKept = new Set(kept);
  const leftOut = matched.filter((_, i) => !isKept.has(i));
  // without the tokens that are left out, their neighbours would be joined to other words
  const spelling = (i) => {
    let token = matched[i];
    if (i > 0 && !isKept.has(i - 1) && token.startsWith(JOINER) && token !== JOINER) token = token.slice(JOINER.length);
    if (i + 1 < matched.length && !isKept.has(i + 1) && token.endsWith(JOINER) && token !== JOINER && token !== JOINER + JOINER) token = token.slice(0, -JOINER.length);
    return token;
  };
  return { ids: kept.map((i) => found[i]), tokens: kept.map(spelling), leftOut };
}

function find(token, ids) {
  const bare = withoutJoiners(token);
  const spellings = [token, bare];
  if (isPunctuation(token)) spellings.push(JOINER + bare, bare + JOINER, JOINER + bare + JOINER);
  return ids.get(spellings.find((spelling) => ids.has(spelling))) ?? UNK;
}

// The fewest vocabulary words that make up a token; each part without any stays one piece.
function splitWord(token, ids, longest) {
  const units = withoutJoiners(token).match(UNITS);
  const word = (start, end) => units.slice(start, end).join("");
  const best = [{ cost: 0, start: 0 }]; // by end position: the cost, and the start of the last piece
  for (let end = 1; end <= units.length; end++)
    for (let start = Math.max(0, end - longest); start < end; start++) {
      const known = ids.has(word(start, end));
      if (!known && start < end - 1) continue;
      const cost = best[start].cost + (known ? 1 : UNKNOWN_COST);
      if (!best[end] || cost < best[end].cost) best[end] = { cost, start };
    }
  const pieces = [];
  for (let end = units.length, wasKnown = true; end > 0; end = best[end].start) {
    const piece = word(best[end].start, end);
    const known = ids.has(piece);
    if (pieces.length && !wasKnown && !known) pieces[0] = piece + pieces[0];
    else pieces.unshift(piece);
    wasKnown = known;
  }
  if (token.endsWith(JOINER)) pieces.push(pieces.pop() + JOINER);
  return pieces.map((piece, i) => (i || token.startsWith(JOINER) ? JOINER + piece : piece));
}

// The positions without unknown punctuation at both ends of a word and at the end of the text.
function keptPositions(ids, tokens) {
  const isUnknown = (i) => ids[i] === UNK && isPunctuation(tokens[i]);
  const kept = [];
  for (const chunk of chunksOf(tokens).reverse()) {
    const inner = [...chunk];
    while (inner.length && isUnknown(inner[0])) inner.shift();
    while (inner.length && isUnknown(inner.at(-1))) inner.pop();
    if (inner.length || kept.length) kept.push(inner.length ? inner : chunk); // otherwise only unknown punctuation follows
  }
  return kept.reverse().flat();
}

// The positions of the tokens in each string between whitespace.
function chunksOf(tokens) {
  const chunks = [];
  tokens.forEach((token, i) => {
    const joinsLeft = token.length > 1 && token.startsWith(JOINER);
    const joinsRight = i > 0 && tokens[i - 1].length > 1 && tokens[i - 1].endsWith(JOINER);
    if (i > 0 && (joinsLeft || joinsRight)) chunks.at(-1).push(i);
    else chunks.push([i]);
  });
  return chunks;
}
