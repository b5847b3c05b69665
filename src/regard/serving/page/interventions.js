// Interventions: pins {step: {source: weight}}, prefix (tokens to force), ablated [[layer, head]].
import { formatWeight, isolatedToken, position } from "./dom.js";

export const noInterventions = () => ({ pins: {}, prefix: [], ablated: [] });

export function isEmpty({ pins, prefix, ablated }) {
  return Object.keys(pins).length + prefix.length + ablated.length === 0;
}

export const isAblated = ({ ablated }, layer, head) => ablated.some(([l, h]) => l === layer && h === head);

// Whether the distribution of a step can differ from the model's own, given the same output so far.
export function changesDistribution({ pins, ablated }, step) {
  return ablated.length > 0 || Object.keys(pins).some((pinned) => Number(pinned) <= step);
}

// The pins of the steps before `end`.
export function pinsBefore({ pins }, end) {
  return Object.fromEntries(Object.entries(pins).filter(([step]) => Number(step) < end));
}

export function withHead({ ablated }, layer, head, ablate) {
  const others = ablated.filter(([l, h]) => l !== layer || h !== head);
  return { ablated: ablate ? [...others, [layer, head]] : others };
}

// An ensemble has one layer, with a head for each of its members.
export const headPlace = ({ head_name: name }, layer, head) => (name === "member" ? `member ${head}` : `layer ${layer}, head ${head}`);

function withoutPin({ pins }, step, i) {
  const { [step]: weights = {}, ...otherSteps } = pins;
  const { [i]: _, ...otherWeights } = weights;
  return { pins: Object.keys(otherWeights).length ? { ...otherSteps, [step]: otherWeights } : otherSteps };
}

// Every intervention in words, with a function that returns the change that removes it from given interventions.
export function* listed({ pins, prefix, ablated }, sourceTokens, model) {
  if (prefix.length) yield [`prefix: ${prefix.map(isolatedToken).join(" ")}`, () => ({ prefix: [] })];
  for (const [step, weights] of Object.entries(pins))
    for (const [i, weight] of Object.entries(weights))
      yield [`step ${step}: ${isolatedToken(sourceTokens[i] ?? "")}${position(sourceTokens, i)} ${formatWeight(weight)}`, (latest) => withoutPin(latest, step, i)];
  for (const [layer, head] of ablated)
    yield [`${headPlace(model, layer, head)} ablated`, (latest) => withHead(latest, layer, head, false)];
}

// Why displayed weights are 0, in words; empty if no displayed head is ablated.
export function ablationNote({ interventions, model, layer, head }) {
  const shown = layer ?? model.attention_layer;
  const isMember = model.head_name === "member";
  const subject = isMember ? `The attention of member ${head}` : `Head ${head} of layer ${shown}`;
  if (head !== null) return isAblated(interventions, shown, head) ? `${subject} is ablated: its weights and its output are 0.` : "";
  const count = interventions.ablated.filter(([l]) => l === shown).length;
  if (!count) return "";
  return `${count} of ${model.heads} ${isMember ? "members" : `heads of layer ${shown}`} ${count === 1 ? "is ablated and counts" : "are ablated and count"} as 0 in this average.`;
}
