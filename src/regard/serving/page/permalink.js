// The state of the page in the hash of its address.
import { noInterventions } from "./interventions.js";

// `state`: text, beamSize, nBest, step (from 0), views [{interventions, layer, head, rank}].
export function toHash(state) {
  const parameters = new URLSearchParams({ text: state.text, beam: state.beamSize, outputs: state.nBest });
  if (state.step) parameters.set("step", state.step);
  state.views.forEach(({ interventions: { pins, prefix, ablated }, layer, head, rank }, number) => {
    const set = (name, value) => parameters.set(number ? `${name}${number + 1}` : name, value);
    if (prefix.length) set("prefix", JSON.stringify(prefix));
    if (Object.keys(pins).length) set("pins", JSON.stringify(pins));
    if (ablated.length) set("ablate", ablated.map((pair) => pair.join(":")).join(","));
    if (layer !== null) set("head", head === null ? `${layer}` : `${layer}:${head}`);
    if (rank) set("rank", rank + 1);
  });
  return `#${parameters}`;
}

// The state in a hash; null if there is none. What cannot be read is left out.
export function fromHash(hash, models) {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  if (!parameters.has("text")) return null;
  const number = (name) => Math.max(0, Math.trunc(Number(parameters.get(name))) || 0);
  const views = Array.from({ length: models }, (_, n) => {
    const name = (base) => (n ? `${base}${n + 1}` : base);
    const [layer = null, head = null] = pairs(parameters.get(name("head")))[0] ?? [];
    return {
      interventions: {
        ...noInterventions(),
        prefix: tokens(parameters.get(name("prefix"))),
        pins: pins(parameters.get(name("pins"))),
        ablated: pairs(parameters.get(name("ablate"))).filter((pair) => pair.length === 2),
      },
      layer, head, rank: Math.max(0, number(name("rank")) - 1),
    };
  });
  return { text: parameters.get("text"), beamSize: number("beam"), nBest: number("outputs"), step: Math.max(0, number("step")), views };
}

function parsed(value) {
  try {
    return JSON.parse(value);
  } catch {
    return null;
  }
}

function tokens(value) {
  const list = parsed(value);
  return Array.isArray(list) && list.every((token) => typeof token === "string") ? list : [];
}

function pins(value) {
  const steps = parsed(value);
  if (steps === null || typeof steps !== "object" || Array.isArray(steps)) return {};
  const isIndex = (key) => /^\d+$/.test(key);
  const entries = Object.entries(steps).filter(([step, weights]) => isIndex(step) && weights && typeof weights === "object");
  return Object.fromEntries(entries.map(([step, weights]) =>
    [step, Object.fromEntries(Object.entries(weights).filter(([i, weight]) => isIndex(i) && typeof weight === "number"))]));
}

function pairs(value) {
  return (value ?? "").split(",").filter((pair) => /^\d+(:\d+)?$/.test(pair)).map((pair) => pair.split(":").map(Number));
}
