// The page: a text in, a view of every model out.
import { View } from "./view.js";

const { models, examples, max_beam_size: maxBeamSize } = JSON.parse(document.getElementById("content").textContent);
const at = (id) => document.getElementById(id);
const status = at("status");
const say = (text) => { status.textContent = text; };
const options = () => ({ beam: Number(at("beam").value) || 5, best: Number(at("best").value) || 1 });

for (const id of ["beam", "best"]) {
  at(id).max = maxBeamSize;
  at(id).value = Math.min(5, maxBeamSize);
}

const { kind, decoder, attention, parameters } = models[0];
at("about").textContent = models.length > 1
  ? "two models side by side"
  : `${models[0].name}: ${[kind, decoder, `attention ${attention}`].filter(Boolean).join(", ")}${parameters ? `, ${parameters.toLocaleString("en")} parameters` : ""}`;

const views = models.map((model, number) => new View(number, model, options, say));
at("views").classList.toggle("beside", views.length > 1);
at("views").append(...views.map((view) => view.node));
views.forEach((view, number) => view.show(examples[number]));
at("text").value = examples[0].source;

async function ask() {
  say("translating …");
  const text = at("text").value.replace(/\n+/g, " ");
  const wrong = await Promise.all(views.map((view) => view.ask(text)));
  say(wrong.find(Boolean) ?? "");
}

at("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); }
});

// Light or dark: the system's choice until somebody makes one.
const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset.theme = theme;
at("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
  localStorage.setItem("theme", document.documentElement.dataset.theme = dark ? "light" : "dark");
});
