// Byte-pair encoding and unigram models, as in regard/text/subwords.py and Hugging Face's tokenizers.
import { SPACE, WORD, firstGrapheme, isolate } from "./words.js";

const MARK = "▁"; // stands for the space before a token; in the text itself it is written twice
const MARK_OR_WORD = new RegExp(`${MARK}| ?${WORD}`, "uy");
const CLUSTER = new RegExp(`^ ?(?![${SPACE}${MARK}])(?=.)`, "su");
const UNKNOWN_PENALTY = 10;

// A grapheme cluster with the space before it, or whitespace alone.
const clusterOrSpace = (rest) => {
  if (!CLUSTER.test(rest)) return rest[0];
  return rest[0] === " " ? ` ${firstGrapheme(rest.slice(1))}` : firstGrapheme(rest);
};

export const markSpace = (piece) => (piece === MARK ? MARK + MARK : piece.startsWith(" ") ? MARK + piece.slice(1) : piece);

export function joinSubwords(tokens) {
  const pieces = tokens.map((token) => (token === MARK + MARK ? MARK : token.startsWith(MARK) ? ` ${token.slice(1)}` : token));
  return pieces.length ? [pieces[0].replace(/^ /u, ""), ...pieces.slice(1)] : [];
}

// The subwords of a text as a list of vocabulary entries and unknown strings.
export function splitSubwords(text, splitPiece) {
  return text ? isolate(` ${text}`, MARK_OR_WORD, clusterOrSpace).flatMap(splitPiece) : [];
}

// The pair with the lowest rank is merged first, the leftmost of equal ones.
export function bytePairs(merges) {
  const ranks = new Map(merges.map(([left, right], rank) => [`${left}\n${right}`, rank]));
  return (piece) => {
    const symbols = [...piece];
    for (;;) {
      let [best, place] = [Infinity, -1];
      for (let i = 0; i + 1 < symbols.length; i++) {
        const rank = ranks.get(`${symbols[i]}\n${symbols[i + 1]}`) ?? Infinity;
        if (rank < best) [best, place] = [rank, i];
      }
      if (place < 0) return symbols;
      symbols.splice(place, 2, symbols[place] + symbols[place + 1]);
    }
  };
}

// The most probable division into vocabulary entries; adjacent unknown characters are one string.
export function unigrams(vocabulary, logProbs) {
  const scores = new Map(vocabulary.map((entry, i) => [entry, logProbs[i]]));
  const longest = vocabulary.reduce((most, entry) => Math.max(most, [...entry].length), 1);
  const unknownScore = logProbs.reduce((least, score) => Math.min(least, score), 0) - UNKNOWN_PENALTY;
  return (piece) => {
    const characters = [...piece];
    const best = [{ score: 0 }]; // by end position: the score, the start of the last entry, whether it is unknown
    for (let start = 0; start < characters.length; start++)
      for (let end = start + 1; end <= Math.min(characters.length, start + longest); end++) {
        const known = scores.get(characters.slice(start, end).join(""));
        if (known === undefined && end > start + 1) continue;
        const score = best[start].score + (known ?? unknownScore);
        if (!best[end] || score > best[end].score) best[end] = { score, start, unknown: known === undefined };
      }
    const pieces = [];
    for (let end = characters.length, unknown = false; end > 0; end = best[end].start) {
      const part = characters.slice(best[end].start, end).join("");
      if (unknown && best[end].unknown) pieces[0] = part + pieces[0];
      else pieces.unshift(part);
      unknown = best[end].unknown;
    }
    return pieces;
  };
}
