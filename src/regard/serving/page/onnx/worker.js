// The worker that loads the models and computes translations, one after the other, beside the page.
import { download } from "./files.js";
import { Model } from "./model.js";
import { Tokenizer } from "./tokenizer.js";
import { translate } from "./translation.js";

const methods = { load, translate: (model, ...rest) => translate(trained[model], ...rest) };
let trained;
let queue = Promise.resolve();

self.onmessage = ({ data: { id, method, args } }) => {
  queue = queue.then(() => methods[method](...args))
    .then((result) => self.postMessage({ id, result }), ({ message }) => self.postMessage({ id, error: message }));
};

// Load ONNX Runtime and the model folders at these addresses; returns the example texts of each model.
async function load({ runtime, wasm, folders }) {
  let loaded = 0;
  const get = (address) => download(address, (bytes) => self.postMessage({ loaded: loaded += bytes }));
  const [ort, wasmBinary, ...files] = await Promise.all([import(runtime), get(wasm),
    ...folders.flatMap((folder) => ["model.json", "encoder.onnx", "decoder.onnx"].map((name) => get(new URL(name, folder).href)))]);
  Object.assign(ort.env.wasm, { wasmBinary: wasmBinary.buffer, numThreads: 1 });
  trained = [];
  for (let n = 0; n < files.length; n += 3) {
    const description = JSON.parse(new TextDecoder().decode(files[n]));
    const [source, target] = [new Tokenizer(description.source), new Tokenizer(description.target)];
    const encoder = await ort.InferenceSession.create(files[n + 1]);
    const decoder = await ort.InferenceSession.create(files[n + 2]);
    trained.push({ description, source, target, model: new Model(ort, encoder, decoder, description) });
  }
  return trained.map(({ description: { examples } }) => examples);
}
