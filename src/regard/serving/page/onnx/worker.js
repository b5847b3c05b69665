// The worker that loads the models and computes translations, one after the other, beside the page.
import { download } from "./files.js";
import { loadModel, translate } from "./translation.js";

const methods = { load, translate: (model, ...rest) => translate(trained[model], ...rest) };
let trained;
let queue = Promise.resolve();

self.onmessage = ({ data: { id, method, args } }) => {
  queue = queue.then(() => methods[method](...args))
    .then((result) => self.postMessage({ id, result }), (error) => self.postMessage({ id, error: describe(error) }));
};

// ONNX Runtime throws numbers, for instance if memory is exhausted.
const describe = (error) => error?.message || `ONNX Runtime failed (${error}); reload the page, or give a shorter text.`;

// Load ONNX Runtime and the model folders at these addresses; returns the example texts of each model.
async function load({ runtime, wasm, folders }) {
  let loaded = 0;
  const get = (address) => download(address, (bytes) => self.postMessage({ loaded: loaded += bytes }));
  const [ort, wasmBinary, ...files] = await Promise.all([import(runtime), get(wasm),
    ...folders.flatMap((folder) => ["model.json", "encoder.onnx", "decoder.onnx"].map((name) => get(new URL(name, folder).href)))]);
  Object.assign(ort.env.wasm, { wasmBinary: wasmBinary.buffer, numThreads: 1 });
  trained = [];
  for (let n = 0; n < files.length; n += 3)
    trained.push(await loadModel(ort, JSON.parse(new TextDecoder().decode(files[n])), files[n + 1], files[n + 2]));
  return trained.map(({ description: { examples } }) => examples);
}
