// Requests to the JSON API. An error response becomes an Error with the server's message.

const TOP_TOKENS = 8;

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
  const result = await response.json().catch(() => ({ error: `The server responded with status ${response.status}.` }));
  if (!response.ok) throw new Error(result.error);
  return result;
}

// Text and features of one line of input; if the model has no features, a TAB is text.
export function sourceFields(info, line) {
  const tab = info.source.features ? line.indexOf("\t") : -1;
  return tab < 0 ? { text: line } : { text: line.slice(0, tab), features: line.slice(tab + 1) };
}

// `interventions`: pins {step: {source: weight}}, prefix (tokens to force), ablated [[layer, head]].
export async function translate(model, source, { beamSize, nBest }, interventions = {}) {
  const result = await post("/api/translate", {
    model,
    ...source,
    beam_size: beamSize,
    n_best: nBest,
    heads: true,
    tree: true,
    top_logprobs: TOP_TOKENS,
    pin: interventions.pins ?? null,
    prefix_tokens: interventions.prefix?.length ? interventions.prefix : null,
    ablate_heads: interventions.ablated ?? [],
  });
  return result.translations[0];
}

export function explain(model, source, target, step, layer, head) {
  return post("/api/explain", { model, ...source, target, step, layer, head });
}

// The model's distribution of the token after `tokens`, without pins and ablated heads.
export async function nextTokens(model, source, tokens) {
  const result = await post("/api/translate", {
    model,
    ...source,
    beam_size: 1,
    n_best: 1,
    attention: false,
    top_logprobs: TOP_TOKENS,
    prefix_tokens: tokens.length ? tokens : null,
  });
  return result.translations[0].top_logprobs[tokens.length];
}

export function selfAttention(model, source, target, ablated) {
  return post("/api/self-attention", { model, ...source, target, ablate_heads: ablated });
}
