// Beam search, as in regard/search.py and regard/hypotheses.py: the same hypotheses, in the same order.
import { BOS, EOS, PAD } from "./tokenizer.js";

const NOT_FINITE = "The log-probabilities of the model are infinite or NaN.";

export const lengthNormalization = (length, penalty) => ((5 + length) / 6) ** penalty;

// The finished outputs, best first, and the search tree.
//
// `step(tokens, number)` returns the log-probabilities and the weights of every row, and `select(rows)`
// reorders the rows. `limit`: the maximum number of tokens. `prefix`: ids that the output begins with.
export async function beamSearch({ step, select }, { limit, beamSize, nBest, lengthPenalty = 1, prefix = [], topTokens = 0, attentionDelay = 0 }) {
  const beams = Math.max(beamSize, nBest);
  const finished = [];
  const tree = [];
  let open = [{ parent: null, id: BOS, logProb: 0, node: -1 }];
  for (let length = 0; open.length; length++) {
    const rows = await step(open.map(({ id }) => id), length);
    if (rows.some(({ logProbs }) => logProbs.some(Number.isNaN))) throw new Error(NOT_FINITE);
    open.forEach((beam, row) => Object.assign(beam, { weights: rows[row].weights, top: top(rows[row].logProbs, topTokens) }));
    const only = length === limit ? EOS : prefix[length] || null;
    const best = continuations(open, rows, beams > 1 ? 2 * beams : 1, only);
    if (prefix[length] && rows.every(({ logProbs }) => logProbs[only] === -Infinity)) {
      throw new Error(`Token ${length} of the prefix (counted from 0) has probability 0; force another one, or pin other weights.`);
    }
    const opened = best.filter(({ id }) => id !== EOS).slice(0, beams);
    const ended = best.filter(({ id }) => id === EOS);
    for (const hypothesis of [...opened, ...ended]) {
      hypothesis.node = tree.length;
      tree.push({ parent: hypothesis.parent.node, id: hypothesis.id, logProb: hypothesis.logProb });
    }
    const divisor = Math.fround(lengthNormalization(length + 1, lengthPenalty));
    finished.push(...ended.map(({ parent, logProb }) => ({ beam: parent, length, score: Math.fround(logProb / divisor) })));
    finished.sort((one, other) => other.score - one.score).splice(nBest);
    if (!isActive(opened, finished[nBest - 1]?.score ?? -Infinity, length, limit, lengthPenalty)) break;
    select(opened.map(({ row }) => row));
    open = opened;
  }
  if (!finished.length) throw new Error(NOT_FINITE);
  return { outputs: finished.map(({ beam, length, score }) => ({ ...trace(beam, attentionDelay), score, complete: length < limit })), tree };
}

// Whether an open hypothesis may still become one of the best outputs.
function isActive(opened, worst, length, limit, lengthPenalty) {
  const bestOpen = opened[0]?.logProb ?? -Infinity;
  return worst < bestOpen / lengthNormalization(limit + 1, lengthPenalty) && length < limit;
}

// The best continuations of all rows, best first; `only`: the one token that is possible, or null.
function continuations(open, rows, count, only) {
  const best = [];
  open.forEach((parent, row) => {
    const { logProbs } = rows[row];
    const first = only ?? 0;
    const last = only ?? logProbs.length - 1;
    for (let id = first; id <= last; id++) {
      const logProb = Math.fround(parent.logProb + logProbs[id]);
      if (id === PAD || id === BOS) continue;
      insert(best, logProb, count, () => ({ parent, row, id, logProb }));
    }
  });
  return best;
}

// Keep the `count` highest log-probabilities in descending order; -Infinity and NaN are left out.
function insert(best, logProb, count, make) {
  if (!(logProb > (best.length < count ? -Infinity : best[count - 1].logProb))) return;
  let place = best.length;
  while (place > 0 && best[place - 1].logProb < logProb) place--;
  best.splice(place, 0, make());
  if (best.length > count) best.pop();
}

function top(logProbs, count) {
  const best = [];
  if (!count) return best;
  logProbs.forEach((logProb, id) => {
    if (id !== PAD && id !== BOS) insert(best, logProb, count, () => ({ id, logProb }));
  });
  return best;
}

// The ids of a hypothesis, with the weights of their steps and the most probable tokens of all steps.
// The weights for a token are those of the step that predicts it or, with a delay of 1, of the step that reads it.
function trace(last, attentionDelay) {
  const [ids, weights, tops] = [[], [], [last.top]];
  for (let beam = last; beam.parent; beam = beam.parent) {
    ids.unshift(beam.id);
    weights.unshift((attentionDelay ? beam : beam.parent).weights);
    tops.unshift(beam.parent.top);
  }
  return { ids, weights, tops };
}
