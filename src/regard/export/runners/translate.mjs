// Translate lines with an exported model: node translate.mjs [FOLDER] [--beam-size K] [--confidence] < lines
// Needs onnxruntime-node: npm install --ignore-scripts onnxruntime-node (its script downloads CUDA)
import { createHash } from "node:crypto";
import { existsSync, readFileSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { loadModel, translate } from "./onnx/translation.js";

// A model: translate(text, { beamSize }) returns text, tokens, score, attention, probability, and the margin to the second-best.
export async function load(folder) {
  const ort = await import("onnxruntime-node").catch(({ code, message }) => {
    const missing = code === "ERR_MODULE_NOT_FOUND";
    throw new Error(missing ? "translate.mjs needs onnxruntime-node: npm install --ignore-scripts onnxruntime-node" : `onnxruntime-node cannot be loaded: ${message.split("\n")[0]}`);
  });
  const path = (name) => join(folder, name);
  const read = (name) => JSON.parse(readFileSync(path(name), "utf8"));
  const sha256 = (name) => createHash("sha256").update(readFileSync(path(name))).digest("hex");
  const damaged = Object.entries(read("checksums.json")).find(([name, expected]) => sha256(name) !== expected);
  if (damaged) throw new Error(`${damaged[0]} is damaged; export the model again`);
  const model = await loadModel(ort, read("model.json"), path("encoder.onnx"), path("decoder.onnx"));
  const dictionary = existsSync(path("dictionary.json")) ? read("dictionary.json") : {};
  return {
    translate: async (text, { beamSize = 5 } = {}) => {
      const line = text.replace(/\r?\n$/, "");
      if (!(Number.isInteger(beamSize) && beamSize > 0 && beamSize <= 100)) throw new Error("expected a whole number from 1 to 100 as the beam size");
      const found = lookUp(dictionary, model, line) ?? await search(model, line, beamSize);
      const [best, second] = found.map(({ text, tokens, score, log_prob: logProb, attention }) =>
        ({ text, tokens, score, attention, probability: Math.exp(logProb) }));
      return { ...best, margin: best.probability - (second && second.text !== best.text ? second.probability : 0) };
    },
  };
}

async function search(model, line, beamSize) {
  const output = await translate(model, line, { beamSize, nBest: beamSize > 1 ? 2 : 1, heads: false });
  return output.n_best ?? [output];
}

function lookUp(dictionary, { source, target }, line) {
  const key = source.trim(source.parse(line).text);
  if (!Object.hasOwn(dictionary, key)) return null;
  return dictionary[key].map((text) => ({ text, tokens: target.encode({ text, features: null }).tokens, score: 0, log_prob: 0, attention: null }));
}

function decode(line, index) { // null if it is not UTF-8; a byte order mark may precede the first line
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: index > 0 }).decode(line);
  } catch {
    return null;
  }
}

async function* lines() { // of standard input, as they arrive, each byte as a character
  let rest = "";
  for await (const chunk of process.stdin.setEncoding("latin1")) {
    const parts = (rest + chunk).split("\n");
    rest = parts.pop();
    yield* parts.map((line) => line.replace(/\r$/, ""));
  }
  if (rest) yield rest;
}

async function main() { // --confidence appends TAB probability TAB margin
  process.stdout.on("error", (error) => { if (error.code !== "EPIPE") console.error(`cannot write: ${error.message}`); process.exit(error.code === "EPIPE" ? 0 : 1); }); // EPIPE: the reader has gone
  const options = { "beam-size": { type: "string", default: "5" }, confidence: { type: "boolean", default: false } };
  const { values, positionals: [folder = dirname(fileURLToPath(import.meta.url))] } = parseArgs({ allowPositionals: true, options });
  const { translate } = await load(folder);
  let number = 0;
  for await (const bytes of lines()) {
    number += 1;
    const fail = ({ message }) => { throw new Error(`line ${number}: ${message}`); };
    const line = decode(Buffer.from(bytes, "latin1"), number - 1) ?? fail({ message: "not UTF-8; convert the lines to UTF-8 first" });
    if (line.includes("\0")) fail({ message: "it contains NUL; convert the lines to UTF-8 first" });
    const { text, probability, margin } = await translate(line, { beamSize: Number(values["beam-size"]) }).catch(fail);
    console.log([text.replace(/[\t\r\n]/g, " "), ...(values.confidence ? [probability.toFixed(6), margin.toFixed(6)] : [])].join("\t"));
  }
}

if (process.argv[1] && existsSync(process.argv[1]) && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url))
  await main().catch(({ message }) => { console.error(message); process.exitCode = 1; });
