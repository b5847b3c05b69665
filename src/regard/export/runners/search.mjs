import { Tensor } from "onnxruntime-node";

export const [PAD, UNK, BOS, EOS] = [0, 1, 2, 3];
const int64 = (numbers, ...dims) => new Tensor("int64", BigInt64Array.from(numbers, BigInt), dims);

// Beam search with the length penalty of Wu et al. (2016), best output first; one beam is greedy search.
export async function search(model, source, copies, beams, nBest) {
  const { layers, heads, encoder, decoder } = model, T = source.length, limit = model.longest_target + 2 * T, finished = [];
  const score = (logProb, length) => logProb / ((5 + length) / 6) ** model.length_penalty;
  const encoded = await encoder.run({ source: int64(source, 1, T), lengths: int64([T], 1) });
  let open = [{ row: 0, ids: [BOS], logProb: 0, attention: layers ? [] : null }], outputs = encoded;
  for (let length = 0; ; length++) {
    const count = open.length, rows = open.map(({ row }) => row), first = rows.map(() => 0);
    const inputs = { // of which a decoder has some
      token: int64(open.map(({ ids }) => (ids.at(-1) < model.size ? ids.at(-1) : UNK)), count), step: int64([length]),
      pinned: new Tensor("float32", new Float32Array(count * T).fill(NaN), [count, T]),
      ablated: new Tensor("bool", new Uint8Array(layers * heads), [layers, heads]), copies: int64(first.flatMap(() => copies), count, T),
    };
    for (const name of decoder.inputNames)
      if (name.startsWith("memory.")) inputs[name] = take(encoded[name], first);
      else if (name.startsWith("state.")) inputs[name] = take(outputs[length ? name.replace("state.", "next.") : name], rows);
    outputs = await decoder.run(Object.fromEntries(decoder.inputNames.map((name) => [name, inputs[name]])));
    const best = continuations(open, outputs.log_probs, beams > 1 ? 2 * beams : 1, length === limit);
    const ended = best.filter(({ id }) => id === EOS);
    const attend = ({ attention }, parent) => attention && [...attention, headAverage(outputs.weights, parent, model.attention_layer)];
    const ofTokens = (row) => attend(open[row], row)?.slice(model.attention_delay, model.attention_delay + length) ?? null;
    finished.push(...ended.map(({ row, logProb }) => ({ ...open[row], logProb, score: score(logProb, length + 1), attention: ofTokens(row) })));
    finished.sort((one, other) => other.score - one.score).splice(nBest);
    const opened = best.filter(({ id }) => id !== EOS).slice(0, beams);
    open = opened.map(({ row, id, logProb }) => ({ row, logProb, ids: [...open[row].ids, id], attention: attend(open[row], row) }));
    if (!open.length || finished[nBest - 1]?.score >= score(open[0].logProb, limit + 1)) return finished;
  }
}

// The most probable continuations of all rows, best first.
function continuations(open, { data, dims: [, size] }, most, mustEnd) {
  const best = [];
  data.forEach((value, i) => {
    const id = i % size, row = (i - id) / size, logProb = Math.fround(open[row].logProb + value);
    if (id === PAD || id === BOS || (mustEnd && id !== EOS) || !(logProb > (best[most - 1]?.logProb ?? -Infinity))) return;
    best.splice(best.findLastIndex((other) => other.logProb >= logProb) + 1, 0, { row, id, logProb });
    best.splice(most);
  });
  return best;
}

function headAverage({ data, dims: [, layers, heads, T] }, row, layer) {
  const start = (row * layers + layer) * heads * T;
  const head = (number) => data.subarray(start + number * T, start + (number + 1) * T);
  return Array.from({ length: T }, (_, i) => Array.from({ length: heads }, (_, number) => head(number)[i]).reduce((a, b) => a + b) / heads);
}

function take({ type, data, dims: [count, ...rest] }, rows) { // rows of a tensor
  const size = data.length / count, taken = new data.constructor(rows.length * size);
  rows.forEach((row, i) => taken.set(data.subarray(row * size, (row + 1) * size), i * size));
  return new Tensor(type, taken, [rows.length, ...rest]);
}
