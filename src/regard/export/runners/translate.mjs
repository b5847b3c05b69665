// Translate lines with an exported model: node translate.mjs [FOLDER] [--beam-size K] [--confidence] < lines
// Needs onnxruntime-node: npm install --ignore-scripts onnxruntime-node (its script downloads CUDA)
import { existsSync, readFileSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { InferenceSession } from "onnxruntime-node";
import { EOS, search } from "./search.mjs";
import { isBlank, tokenizer } from "./tokens.mjs";

// A model: translate(text, { beamSize }) returns text, tokens, score, attention, probability, and the margin to the second-best.
export async function load(folder) {
  const read = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));
  const model = read("model.json");
  const [source, target] = [tokenizer(model.source), tokenizer(model.target)], size = target.entries.length;
  const sessions = ["encoder.onnx", "decoder.onnx"].map((name) => InferenceSession.create(join(folder, name)));
  const [encoder, decoder] = await Promise.all(sessions);
  const dictionary = existsSync(join(folder, "dictionary.json")) ? read("dictionary.json") : {};
  const translate = async (line, { beamSize = 5 } = {}) => {
    if (!(Number.isInteger(beamSize) && beamSize > 0)) throw new Error("expected a whole number above 0 as the beam size");
    const { text, normalized, tokens, ids } = source.encode(line);
    const key = normalized.trim(), listed = Object.hasOwn(dictionary, key) ? dictionary[key] : isBlank(text) ? [""] : null;
    const copied = [...new Set(tokens.filter((token) => !target.ids.has(token)))];
    const copies = [...tokens.map((token) => target.ids.get(token) ?? size + copied.indexOf(token)), EOS];
    const token = (id) => target.entries[id] ?? copied[id - size];
    const found = listed ? listed.map((output) => ({ text: output, tokens: target.encode(output).tokens, score: 0, logProb: 0, attention: null }))
      : await search({ ...model, size, encoder, decoder }, [...ids, EOS], copies, beamSize, beamSize > 1 ? 2 : 1);
    const [best, second] = found.map(({ ids: [, ...all] = [], tokens = all.map(token), text: output = target.decode(tokens), score, logProb, attention }) =>
      ({ text: output, tokens, score, attention, probability: Math.exp(logProb) }));
    return { ...best, margin: best.probability - (second && second.text !== best.text ? second.probability : 0) };
  };
  return { translate };
}

async function main() { // --confidence appends TAB probability TAB margin
  const options = { "beam-size": { type: "string", default: "5" }, confidence: { type: "boolean", default: false } };
  const { values, positionals: [folder = dirname(fileURLToPath(import.meta.url))] } = parseArgs({ allowPositionals: true, options });
  const { translate } = await load(folder), input = readFileSync(0, "utf8").replace(/^\ufeff/, "").replace(/\r?\n$/, "");
  for (const line of input ? input.split(/\r?\n/) : []) {
    const { text, probability, margin } = await translate(line, { beamSize: Number(values["beam-size"]) });
    console.log([text.replaceAll("\n", " "), ...(values.confidence ? [probability.toFixed(6), margin.toFixed(6)] : [])].join("\t"));
  }
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url))
  await main().catch(({ message }) => { console.error(message); process.exitCode = 1; });
