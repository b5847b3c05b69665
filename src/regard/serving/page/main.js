// The page: one input text, and a view of the output of every model.
import { element } from "./dom.js";
import { installTooltips } from "./glossary.js";
import { isEmpty, noInterventions } from "./interventions.js";
import { fromHash, toHash } from "./permalink.js";
import { SUPERSEDED, View } from "./view.js";

const EXAMPLES = 3;
const COPIED = 2000; // milliseconds that the confirmation of a copy stays
const RETRY = 2000; // milliseconds after which an address that could not be changed is changed
const IME = 229; // key code of a key that an input method handles; Safari no longer calls it composing
const byId = (id) => document.getElementById(id);
const setStatus = (text) => { byId("status").textContent = text; };

// The engine computes translations: a server's, or one in the browser. It may lack `explain` and `selfAttention`.
const content = JSON.parse(byId("content").textContent);
const fields = [...byId("form").elements];
for (const field of fields) field.disabled = true; // until the engine is ready
const { open } = await import(`./${content.engine}`);
const engine = await open(content, setStatus).catch((error) => { setStatus(error.message); throw error; });
for (const field of fields) field.disabled = false;
const { models, examples, suggestions, maxBeamSize } = engine;
const defaultSize = Math.min(5, maxBeamSize);

function setOptions(beamSize, nBest) {
  byId("beam-size").value = Math.min(beamSize || defaultSize, maxBeamSize);
  byId("n-best").value = Math.min(nBest || defaultSize, maxBeamSize);
}

// Only the button checks the fields: a number that is missing or out of range is replaced by one that is allowed.
function options() {
  const size = (id, absent) => (byId(id).value = Math.min(maxBeamSize, Math.max(1, Math.trunc(Number(byId(id).value)) || absent)));
  return { beamSize: size("beam-size", defaultSize), nBest: size("n-best", 1) };
}

for (const id of ["beam-size", "n-best"]) byId(id).max = maxBeamSize;
setOptions();

const describe = ({ name, kind, decoder, attention, right_to_left, parameters }) => [
  `${name}: ${[kind, decoder, attention === "none" ? "no attention" : attention && `attention: ${attention}`].filter(Boolean).join(", ")}`,
  ...(right_to_left ? ["tokens in reverse order"] : []),
  ...(parameters ? [`${parameters.toLocaleString("en")} parameters`] : []),
].join(", ");
byId("summary").textContent = models.length > 1 ? "Two models side by side" : describe(models[0]);

byId("attribution").textContent = [...new Set(models.map((model) => model.attribution).filter(Boolean))].join(" ");

let text = examples[0].source; // the text that is translated; the one in the form may be edited
let starting = 1; // the number of states that are being displayed
let retry; // timer
const sideBySide = models.length > 1;
const views = models.map((model, number) => new View(number, model, { engine, options, setStatus, changed, translated, selected, sideBySide }));
byId("views").classList.toggle("side-by-side", sideBySide);
byId("views").append(...views.map((view) => view.node));

// The address holds the state.
function changed() {
  clearTimeout(retry);
  if (starting) return;
  try {
    history.replaceState(null, "", isDefault() ? location.pathname + location.search : toHash(state()));
  } catch { // browsers limit the number of changes within a few seconds
    retry = setTimeout(changed, RETRY);
  }
}

function translated(line) {
  text = line;
}

// The other view follows to the same step.
function selected(view) {
  for (const other of views) if (other !== view && other.step !== view.step) other.goToStep(view.step);
}

function state() {
  const parts = views.map(({ interventions, layer, head, rank }) => ({ interventions, layer, head, rank }));
  return { text, ...views[0].searchOptions, step: Math.max(...views.map((view) => view.step)), views: parts };
}

function isDefault() {
  const { beamSize, nBest, step, views: parts } = state();
  return text === examples[0].source && beamSize === defaultSize && nBest === defaultSize && step === 0
    && parts.every(({ interventions, layer, rank }) => isEmpty(interventions) && layer === null && rank === 0);
}

// A text is displayed in all views or, if it fails in one, in none: each view calls the function with its own error,
// if any, and receives the first error of any view.
function agreement() {
  const errors = [];
  let resolve;
  const settled = new Promise((settle) => { resolve = settle; });
  return (error) => {
    errors.push(error);
    if (errors.length === views.length) resolve(errors.find((each) => each !== undefined));
    return settled;
  };
}

// Returns the error message, if any, or SUPERSEDED.
async function run(request) {
  setStatus("Translating…");
  const agree = agreement();
  const errors = await Promise.all(views.map((view) => request(view, agree)));
  if (errors.includes(SUPERSEDED)) return SUPERSEDED;
  const error = errors.find((each) => each !== undefined);
  setStatus(error ?? "");
  return error;
}

function translate() {
  const line = byId("text").value.replace(/\n+$/, "").replace(/\n+/g, " ");
  return run((view, agree) => view.translate(line, agree));
}

// The state without a hash.
const initial = () => ({
  text: examples[0].source, beamSize: defaultSize, nBest: defaultSize, step: 0,
  views: models.map(() => ({ interventions: noInterventions(), layer: null, head: null, rank: 0 })),
});

// `event`: a change of the hash; absent at the start, when the state without a hash is shown already.
async function restore(event) {
  const saved = fromHash(location.hash, views.length) ?? (event && initial());
  if (!saved) return;
  byId("text").value = saved.text;
  setOptions(saved.beamSize, saved.nBest);
  starting++;
  const error = await run((view, agree) => view.restore({ ...saved, view: saved.views[view.number] }, agree));
  starting--;
  if (error === undefined || error === SUPERSEDED) changed();
}

views.forEach((view, number) => view.show(examples[number]));
byId("text").value = text;
starting--;
restore();
addEventListener("hashchange", restore);

const lines = suggestions.length >= EXAMPLES ? suggestions.slice(0, EXAMPLES) : [examples[0].source, ...suggestions];
byId("examples").append("Try ", ...lines.filter(Boolean).map((line) => element("button", {
  type: "button", class: "example", dir: "auto", onclick: () => { byId("text").value = line; translate(); },
}, line)));

byId("form").addEventListener("submit", (event) => { event.preventDefault(); translate(); });
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== IME) { event.preventDefault(); translate(); }
});

byId("copy-link").addEventListener("click", async () => {
  const button = byId("copy-link");
  button.textContent = (await copy(new URL(toHash(state()), location.href).href)) ? "Link copied" : "Copy failed";
  setTimeout(() => { button.textContent = "Copy link"; }, COPIED);
});

// Outside localhost, an address without TLS has no clipboard interface.
async function copy(address) {
  if (navigator.clipboard) return navigator.clipboard.writeText(address).then(() => true, () => false);
  const field = element("textarea", { class: "offscreen" });
  field.value = address;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  byId("copy-link").focus();
  return copied;
}

// The theme follows the system until the user chooses one.
const isDark = () => getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
const repaint = () => views.forEach((view) => view.keepFocus(() => view.heads.render()));
const storage = () => { try { return localStorage; } catch { return null; } }; // which a browser may deny
const theme = storage()?.getItem("theme");
if (theme) document.documentElement.dataset.theme = theme;
byId("theme").addEventListener("click", () => {
  const chosen = document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  storage()?.setItem("theme", chosen);
  repaint();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
installTooltips();
