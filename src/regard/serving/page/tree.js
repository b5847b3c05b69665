// What the search tried: a step to the right is a token more, the likeliest on top. A branch can be
// followed by force.
import { drawn, element, spelled } from "./dom.js";

const ACROSS = 96;
const DOWN = 26;

export function tree(view) {
  const branches = view.output.tree ?? [];
  const children = branches.map(() => []);
  const roots = [];
  branches.forEach((branch, n) => (branch.parent < 0 ? roots : children[branch.parent]).push(n));
  const order = (a, b) => branches[b].log_prob - branches[a].log_prob;
  const best = bestPath(view, branches, children, roots);
  const depths = [];
  branches.forEach((branch, n) => (depths[n] = branch.parent < 0 ? 0 : depths[branch.parent] + 1));
  const columns = Array.from({ length: Math.max(-1, ...depths) + 1 }, () => []);
  branches.forEach((_, n) => columns[depths[n]].push(n));
  const places = [];
  for (const column of columns) column.sort(order).forEach((n, y) => (places[n] = [depths[n] * ACROSS, y * DOWN]));
  const path = (n) => (n < 0 ? [] : [...path(branches[n].parent), branches[n].token]);
  const nodes = branches.map((branch, n) => node(view, branch, places[n], best.has(n), () => path(n)));
  const edges = branches.flatMap((branch, n) => branch.parent < 0 ? [] : [edge(places[branch.parent], places[n], best.has(n))]);
  const width = Math.max(1, ...places.map(([x]) => x + ACROSS));
  return element("div", {},
    element("p", { class: "hint" }, "Click a token to make the output begin with what leads to it. ■ ends an output."),
    element("div", { class: "scroll tree" },
      drawn("svg", { width, height: Math.max(0, ...columns.map((column) => column.length)) * DOWN + 8, role: "group", "aria-label": "the tree of the search" }, ...edges, ...nodes)));
}

function node(view, branch, [x, y], best, path) {
  const text = branch.token === null ? "■" : spelled(branch.token);
  const probability = (100 * Math.exp(branch.log_prob)).toPrecision(2);
  const follow = () => branch.token !== null && view.begin(path());
  return drawn("g", {
    transform: `translate(${x + 4},${y + 18})`, class: `${best ? "best" : ""} ${branch.token === null ? "end" : ""}`,
    ...(branch.token === null ? {} : { role: "button", tabindex: 0, onclick: follow, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); follow(); } } }),
  }, drawn("title", {}, `${text}: ${probability} % up to here`), drawn("text", {}, text.length > 11 ? `${text.slice(0, 10)}…` : text));
}

function edge([x1, y1], [x2, y2], best) {
  const from = x1 + ACROSS - 26;
  return drawn("path", { d: `M${from},${y1 + 14} C${from + 16},${y1 + 14} ${x2 - 14},${y2 + 14} ${x2},${y2 + 14}`, class: best ? "best" : "" });
}

// The branches of the output that is shown.
function bestPath(view, branches, children, roots) {
  const found = new Set();
  let at = roots;
  for (const token of view.output.tokens) {
    const next = at.find((n) => branches[n].token === token);
    if (next === undefined) break;
    found.add(next);
    at = children[next];
  }
  const end = at.find((n) => branches[n].token === null);
  if (end !== undefined && found.size === view.output.tokens.length) found.add(end);
  return found;
}
