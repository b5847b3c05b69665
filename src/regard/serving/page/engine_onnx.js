// The engine that computes in the browser, with ONNX Runtime in a worker. It offers neither `explain` nor `selfAttention`.

const TOP_TOKENS = 8;
const MAX_TOKENS = 499; // of a text, and </s>, as in regard/serving/limits.py: the page draws every weight
const MEGABYTE = 1e6;

// `folders`: addresses of the models, `runtime` and `wasm`: of ONNX Runtime; `bytes`: the size of all that is loaded.
export async function open({ models, folders, runtime, wasm, bytes, max_beam_size: maxBeamSize }, setStatus) {
  if (typeof WebAssembly !== "object")
    throw new Error("This page needs WebAssembly, which this browser lacks or has disabled; open the page in a current browser.");
  const total = Math.ceil(bytes / MEGABYTE);
  const { call, close } = connect((loaded) => setStatus(`Loading the model, ${Math.min(total, Math.round(loaded / MEGABYTE))} of ${total} MB`));
  const absolute = (address) => new URL(address, document.baseURI).href;
  const loaded = await call("load", { runtime: absolute(runtime), wasm: absolute(wasm), folders: folders.map(absolute) })
    .catch((error) => { close(); throw error; });
  const texts = loaded.find((examples) => examples.length) ?? [""];
  const size = Math.min(5, maxBeamSize);
  const translate = (model, line, { beamSize, nBest }, interventions) =>
    call("translate", model, line, { beamSize, nBest, topTokens: TOP_TOKENS, maxTokens: MAX_TOKENS }, interventions);
  const examples = await Promise.all(models.map((_, model) => translate(model, texts[0], { beamSize: size, nBest: size })));
  setStatus("");
  return {
    models, examples, suggestions: texts.slice(1, 4), maxBeamSize,
    translate,
    nextTokens: async (model, line, prefix) =>
      (await translate(model, line, { beamSize: 1, nBest: 1 }, { prefix })).top_logprobs[prefix.length],
  };
}

// The worker: `call` calls one of its methods and returns the result, `close` ends it.
function connect(onProgress) {
  const worker = new Worker(new URL("onnx/worker.js", import.meta.url), { type: "module" });
  const calls = new Map(); // those without a result yet, by number
  let [count, failure] = [0, null];
  worker.onmessage = ({ data: { id, result, error, loaded } }) => {
    if (loaded !== undefined) return onProgress(loaded);
    const { resolve, reject } = calls.get(id);
    calls.delete(id);
    return error === undefined ? resolve(result) : reject(new Error(error));
  };
  worker.onerror = ({ message }) => {
    failure = new Error(`The model could not be started: ${message ?? "its worker failed"}.`);
    calls.forEach(({ reject }) => reject(failure));
  };
  const call = (method, ...args) => new Promise((resolve, reject) => {
    if (failure) return reject(failure);
    calls.set(++count, { resolve, reject });
    return worker.postMessage({ id: count, method, args });
  });
  return { call, close: () => worker.terminate() };
}
