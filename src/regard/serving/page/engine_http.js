// The engine that asks a server's JSON API. An error response becomes an Error with the server's message.

const TOP_TOKENS = 8;

export async function open({ models, examples, suggestions, max_beam_size: maxBeamSize }) {
  const fields = (model, line) => ({ model, ...sourceFields(models[model], line) });
  return {
    models, examples, suggestions, maxBeamSize,

    // `interventions`: pins {step: {source: weight}}, prefix (tokens to force), ablated [[layer, head]].
    async translate(model, line, { beamSize, nBest }, { pins = null, prefix = [], ablated = [] } = {}) {
      const result = await post("api/translate", {
        ...fields(model, line),
        beam_size: beamSize,
        n_best: nBest,
        heads: true,
        tree: true,
        top_logprobs: TOP_TOKENS,
        pin: pins,
        prefix_tokens: prefix.length ? prefix : null,
        ablate_heads: ablated,
      });
      return result.translations[0];
    },

    // The model's distribution of the token after `tokens`, without pins and ablated heads.
    async nextTokens(model, line, tokens) {
      const result = await post("api/translate", {
        ...fields(model, line),
        beam_size: 1,
        n_best: 1,
        attention: false,
        top_logprobs: TOP_TOKENS,
        prefix_tokens: tokens.length ? tokens : null,
      });
      return result.translations[0].top_logprobs[tokens.length];
    },

    explain: (model, line, target, step, layer, head) => post("api/explain", { ...fields(model, line), target, step, layer, head }),

    selfAttention: (model, line, target, { pins, ablated }) => post("api/self-attention", { ...fields(model, line), target, pin: pins, ablate_heads: ablated }),
  };
}

async function post(path, body) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Error("The server is not responding. Is it still running?");
  }
  const result = await response.json().catch(() => null); // not of this server, or cut off
  if (!response.ok || !result) throw new Error(result?.error ?? `The server responded with status ${response.status}${response.ok ? ", but the response is incomplete" : ""}.`);
  return result;
}

// Text and features of one line of input; if the model has no features, a TAB is text.
function sourceFields(info, line) {
  const tab = info.source.features ? line.indexOf("\t") : -1;
  return tab < 0 ? { text: line } : { text: line.slice(0, tab), features: line.slice(tab + 1) };
}
