// Translations in the form of the JSON API (regard/serving/schemas.py).
import { Model } from "./model.js";
import { prepare } from "./request.js";
import { beamSearch, lengthNormalization } from "./search.js";
import { EOS, Tokenizer, UNK } from "./tokenizer.js";
import { splitAtSpaces } from "./words.js";

const END = "</s>";
const rounded = (value) => (Array.isArray(value) ? value.map(rounded) : Math.round(value * 1e6) / 1e6);

// {model, description, source, target}; `ort`: ONNX Runtime; `description`: the content of model.json; the graphs: bytes or paths.
export async function loadModel(ort, description, encoderGraph, decoderGraph) {
  const encoder = await ort.InferenceSession.create(encoderGraph);
  const decoder = await ort.InferenceSession.create(decoderGraph);
  const [source, target] = [new Tokenizer(description.source), new Tokenizer(description.target)];
  return { model: new Model(ort, encoder, decoder, description, target.entries.length), description, source, target };
}

// `trained`: the result of `loadModel`; `maxTokens`: the maximum length of the text; without `heads`, the outputs have no
// `attention_heads`, which take memory.
export async function translate(trained, line, { beamSize, nBest, topTokens = 0, maxTokens, heads = true }, interventions = {}) {
  const request = prepare(trained, line, interventions, maxTokens);
  if (!splitAtSpaces(trained.source.parse(line).text).length) return blank(trained, line, nBest);
  const decoding = await trained.model.decoding(request, !heads);
  const { limit, prefix } = request;
  const { outputs, tree } = await beamSearch(decoding, { limit, beamSize, nBest, prefix, topTokens, lengthPenalty: trained.description.length_penalty, attentionDelay: trained.description.attention_delay });
  const size = trained.target.entries.length;
  const token = (id) => (id < size ? trained.target.entries[id] : request.extraTokens[id - size]);
  const results = outputs.map((output) => result(trained, output, token, heads));
  const { encoding: { ids, tokens, leftOut } } = request;
  const unknown = tokens.filter((_, i) => ids[i] === UNK);
  return {
    source: line, source_tokens: [...tokens, END], unknown, left_out: leftOut, warning: warning(unknown.length, tokens.length),
    ...results[0],
    ...(nBest > 1 && { n_best: results }),
    tree: tree.map(({ parent, id, logProb }) => ({ parent, token: id === EOS ? null : token(id), log_prob: logProb })),
  };
}

function result({ description, target }, { ids, score, weights, tops, complete }, token, heads) {
  const tokens = ids.map(token);
  const averages = weights.map((step) => heads && step ? average(step[description.attention_layer]) : [...step ?? []]);
  return {
    text: target.detokenize(tokens), tokens, complete,
    score: rounded(score),
    log_prob: rounded(score * lengthNormalization(ids.length + 1, description.length_penalty)),
    attention: description.layers ? rounded(averages) : null,
    attention_heads: description.layers && heads ? rounded(weights) : null,
    top_logprobs: tops.map((step) => step.map(({ id, logProb }) => ({ token: id === EOS ? null : token(id), log_prob: logProb }))),
  };
}

const average = (heads) => heads[0].map((_, i) => heads.reduce((sum, head) => sum + head[i], 0) / heads.length);

function warning(unknown, total) {
  if (2 * unknown <= total) return null;
  return `The output is unreliable: ${unknown} of ${total} source token${total === 1 ? "" : "s"} ${unknown === 1 ? "is" : "are"} not in the model's vocabulary.`;
}

// A blank text has no tokens.
function blank({ description: { layers } }, line, nBest) {
  const weights = layers ? [] : null;
  const output = { text: "", tokens: [], complete: true, score: 0, log_prob: 0, attention: weights, attention_heads: weights, top_logprobs: [] };
  return { source: line, source_tokens: [], unknown: [], left_out: [], warning: null, ...output, ...(nBest > 1 && { n_best: Array(nBest).fill(output) }), tree: [] };
}
