// One text and the interventions on its output, checked and tokenised, as in regard/request.py.
import { EOS, PAD, UNK } from "./tokenizer.js";

const MAX_TOKENS = 10000;
const TOLERANCE = 1e-6; // of the sum of pinned weights

export function prepare({ description, source, target }, line, { pins = {}, prefix = [], ablated = [] }, maxTokens = MAX_TOKENS) {
  const parsed = source.parse(line);
  if (source.unit.model && [...source.trim(parsed.text)].length > maxTokens * source.longest) // splitting takes quadratic time
    throw new Error(`The text is too long: at most ${maxTokens} tokens can be translated; split the text.`);
  const encoding = source.encode(parsed);
  if (encoding.ids.length > maxTokens) throw new Error(`The text has ${encoding.ids.length} tokens, but at most ${maxTokens} can be translated; split the text.`);
  const copied = encoding.tokens.slice(0, encoding.tokens.length - encoding.numFeatures); // no features
  const extraTokens = description.copying ? [...new Set(copied.filter((token) => !target.ids.has(token)))] : [];
  const extra = new Map(extraTokens.map((token, i) => [token, target.entries.length + i]));
  const targetIds = (tokens) => tokens.map((token) => target.ids.get(token) ?? extra.get(token) ?? UNK);
  const copies = description.copying ? [...targetIds(copied), ...Array(encoding.numFeatures).fill(PAD), EOS] : null;
  const ids = [...encoding.ids, EOS];
  const limit = Math.min(description.longest_target, MAX_TOKENS) + 2 * ids.length + prefix.length;
  check(description, { pins, ablated }, limit, ids.length);
  return { encoding, ids, copies, extraTokens, prefix: targetIds(prefix), pins, ablated, limit };
}

function check({ layers, heads }, { pins, ablated }, limit, length) {
  if (!layers && (Object.keys(pins).length || ablated.length)) throw new Error("This model has no attention to pin or ablate.");
  for (const [layer, head] of ablated)
    if (!(layer < layers && head < heads)) throw new Error(`There is no head ${head} in layer ${layer} to ablate.`);
  for (const [step, weights] of Object.entries(pins)) {
    const total = Object.values(weights).reduce((sum, weight) => sum + weight, 0);
    if (Number(step) >= limit || Object.keys(weights).some((i) => Number(i) >= length))
      throw new Error(`The pins must have steps from 0 to ${limit - 1} and source tokens from 0 to ${length - 1}.`);
    if (Object.values(weights).some((weight) => weight < 0) || total > 1 + TOLERANCE)
      throw new Error(`The pinned weights of a step must be at least 0 and sum to at most 1, got ${total.toPrecision(4)} at step ${step}.`);
  }
}
