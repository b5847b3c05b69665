// The search tree: one column per step, the most probable hypotheses on top.
import { displayToken, element, svgElement } from "./dom.js";

const COLUMN_WIDTH = 96;
const ROW_HEIGHT = 26;
const END = "■";

export function tree(view) {
  const branches = view.output.tree ?? [];
  const children = branches.map(() => []);
  const roots = [];
  branches.forEach((branch, n) => (branch.parent < 0 ? roots : children[branch.parent]).push(n));
  const byProbability = (a, b) => branches[b].log_prob - branches[a].log_prob;
  const best = outputPath(view, branches, children, roots);
  const depths = [];
  branches.forEach((branch, n) => (depths[n] = branch.parent < 0 ? 0 : depths[branch.parent] + 1));
  const columns = Array.from({ length: Math.max(-1, ...depths) + 1 }, () => []);
  branches.forEach((_, n) => columns[depths[n]].push(n));
  const positions = [];
  for (const column of columns) column.sort(byProbability).forEach((n, row) => (positions[n] = [depths[n] * COLUMN_WIDTH, row * ROW_HEIGHT]));
  const prefix = (n) => (n < 0 ? [] : [...prefix(branches[n].parent), branches[n].token]);
  const nodes = branches.map((branch, n) => node(view, branch, positions[n], best.has(n), () => prefix(n)));
  const edges = branches.flatMap((branch, n) => branch.parent < 0 ? [] : [edge(positions[branch.parent], positions[n], best.has(n))]);
  const width = Math.max(1, ...positions.map(([x]) => x + COLUMN_WIDTH));
  return element("div", {},
    element("p", { class: "hint" }, `Click a token to force the output up to and including that token. ${END} marks the end of an output.`),
    element("div", { class: "scroll tree" },
      svgElement("svg", { width, height: Math.max(0, ...columns.map((column) => column.length)) * ROW_HEIGHT + 8, role: "group", "aria-label": "search tree" }, ...edges, ...nodes)));
}

function node(view, branch, [x, y], best, prefix) {
  const isEnd = branch.token === null;
  const text = isEnd ? END : displayToken(branch.token);
  const probability = (100 * Math.exp(branch.log_prob)).toPrecision(2);
  const force = () => view.forcePrefix(prefix());
  return svgElement("g", {
    transform: `translate(${x + 4},${y + 18})`, class: `${best ? "best" : ""} ${isEnd ? "end" : ""}`,
    ...(isEnd ? {} : { role: "button", tabindex: 0, onclick: force, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); force(); } } }),
  }, svgElement("title", {}, `${text}: prefix probability ${probability} %`), svgElement("text", {}, text.length > 11 ? `${text.slice(0, 10)}…` : text));
}

function edge([x1, y1], [x2, y2], best) {
  const from = x1 + COLUMN_WIDTH - 26;
  return svgElement("path", { d: `M${from},${y1 + 14} C${from + 16},${y1 + 14} ${x2 - 14},${y2 + 14} ${x2},${y2 + 14}`, class: best ? "best" : "" });
}

// The branches of the displayed output.
function outputPath(view, branches, children, roots) {
  const path = new Set();
  let candidates = roots;
  for (const token of view.output.tokens) {
    const next = candidates.find((n) => branches[n].token === token);
    if (next === undefined) break;
    path.add(next);
    candidates = children[next];
  }
  const end = candidates.find((n) => branches[n].token === null);
  if (end !== undefined && path.size === view.output.tokens.length) path.add(end);
  return path;
}
