// What the server is asked; a refusal is an Error with the server's own sentence.

async function post(path, body) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Error("the server does not answer; is it still running?");
  }
  const found = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(found.error);
  return found;
}

// `pushes` holds what is pushed: pins {step: {source: weight}}, tokens to begin with, heads to drop.
export async function translate(model, text, { beam, best }, pushes = {}) {
  const found = await post("/api/translate", {
    model,
    text,
    beam_size: beam,
    n_best: best,
    heads: true,
    tree: true,
    pin: pushes.pins ?? null,
    prefix_tokens: pushes.prefix?.length ? pushes.prefix : null,
    ablate_heads: pushes.dropped ?? [],
  });
  return found.translations[0];
}

export function explain(model, text, target, step, layer, head) {
  return post("/api/explain", { model, text, target, step: step + 1, layer, head });
}
