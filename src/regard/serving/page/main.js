// The page: one input text, and a view of the output of every model.
import { View } from "./view.js";

const { models, examples, max_beam_size: maxBeamSize } = JSON.parse(document.getElementById("content").textContent);
const byId = (id) => document.getElementById(id);
const setStatus = (text) => { byId("status").textContent = text; };
const options = () => ({ beamSize: Number(byId("beam-size").value) || 5, nBest: Number(byId("n-best").value) || 1 });

for (const id of ["beam-size", "n-best"]) {
  byId(id).max = maxBeamSize;
  byId(id).value = Math.min(5, maxBeamSize);
}

const { kind, decoder, attention, parameters } = models[0];
byId("summary").textContent = models.length > 1
  ? "Two models side by side"
  : `${models[0].name}: ${[kind, decoder, attention === "none" ? "no attention" : attention && `${attention.replaceAll("_", " ")} attention`].filter(Boolean).join(", ")}${parameters ? `, ${parameters.toLocaleString("en")} parameters` : ""}`;

const views = models.map((model, number) => new View(number, model, options, setStatus));
byId("views").classList.toggle("side-by-side", views.length > 1);
byId("views").append(...views.map((view) => view.node));
views.forEach((view, number) => view.show(examples[number]));
byId("text").value = examples[0].source;

async function translate() {
  setStatus("Translating …");
  const text = byId("text").value.replace(/\n+/g, " ");
  const errors = await Promise.all(views.map((view) => view.translate(text)));
  setStatus(errors.find(Boolean) ?? "");
}

byId("form").addEventListener("submit", (event) => { event.preventDefault(); translate(); });
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); translate(); }
});

// The theme follows the system until the user chooses one.
const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset.theme = theme;
byId("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
  localStorage.setItem("theme", document.documentElement.dataset.theme = dark ? "light" : "dark");
});
