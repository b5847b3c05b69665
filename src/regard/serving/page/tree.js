// The search tree: from the start at the left, one column per step, the displayed output on top.
import { END, FONT_FAMILY, displayToken, formatPercent, scrollBox, svgElement, textWidth } from "./dom.js";
import { sum } from "./weights.js";

const [MIN_GAP, MAX_GAP] = [22, 44]; // pixels between two columns
const ROW = 32;
const BOX = 24; // height of a node
const PADDING = 8;
const MAX_CHARACTERS = 16;
const TOKEN_FONT = `600 14px ${FONT_FAMILY}`;
const PERCENT_FONT = `13px ${FONT_FAMILY}`;

export function tree(view) {
  const { nodes, gap } = layout(view);
  const root = nodes[0];
  // the lines of the displayed output lie above the others
  const edges = nodes.filter((node) => node.parent).sort((a, b) => Number(a.best ?? false) - Number(b.best ?? false)).map((node) => edge(node, gap));
  const width = Math.max(...nodes.map((node) => node.x + node.width)) + 2;
  const height = Math.max(...nodes.map((node) => node.y)) + BOX + 4;
  return scrollBox("search tree",
    svgElement("svg", { width, height, role: "group", "aria-label": "hypotheses" }, ...edges, ...nodes.map((node) => box(view, node, node === root))), "tree");
}

// The nodes with their position, the root first, and the gap between two columns: so small that the tree fits in the
// window, where that is possible. A node stands in the first free row of its column that is not above
// its parent; every column has the order of a depth-first walk, so that no two edges cross.
function layout(view) {
  const root = { token: "<s>", label: "<s>", depth: 0, children: [], best: true, logProb: 0 };
  const nodes = (view.output.tree ?? []).map(({ token, log_prob: logProb }) => ({ token, logProb, children: [], label: label(token) }));
  (view.output.tree ?? []).forEach(({ parent }, n) => {
    nodes[n].parent = parent < 0 ? root : nodes[parent];
    nodes[n].parent.children.push(nodes[n]);
    nodes[n].depth = nodes[n].parent.depth + 1;
    nodes[n].percent = formatPercent(Math.exp(nodes[n].logProb - nodes[n].parent.logProb));
  });
  markOutput(root, view.output.tokens);
  const all = [root, ...nodes];
  for (const node of all) {
    node.labelWidth = textWidth(node.label, TOKEN_FONT);
    node.width = 2 * PADDING + node.labelWidth + (node.percent ? 6 + textWidth(node.percent, PERCENT_FONT) : 0);
  }
  const widths = [];
  for (const { depth, width } of all) widths[depth] = Math.max(widths[depth] ?? 0, width);
  const free = (view.width - 4 - sum(widths)) / Math.max(1, widths.length - 1);
  const gap = Math.min(MAX_GAP, free >= MIN_GAP ? free : MAX_GAP);
  const starts = widths.map((_, depth) => 2 + sum(widths.slice(0, depth)) + depth * gap);
  const next = widths.map(() => 0); // the first free row of each column
  const place = (node, row) => {
    const free = Math.max(row, next[node.depth]);
    next[node.depth] = free + 1;
    Object.assign(node, { x: starts[node.depth], y: 2 + free * ROW });
    node.children.sort((one, other) => Number(other.best ?? false) - Number(one.best ?? false) || other.logProb - one.logProb);
    node.children.forEach((child) => place(child, free));
  };
  place(root, 0);
  return { nodes: all, gap };
}

function label(token) {
  if (token === null) return END;
  const characters = [...displayToken(token)];
  return characters.length > MAX_CHARACTERS ? `${characters.slice(0, MAX_CHARACTERS - 1).join("")}…` : characters.join("");
}

// Mark the nodes of the displayed output.
function markOutput(root, tokens) {
  let node = root;
  for (const token of [...tokens, null]) {
    node = node.children.find((child) => child.token === token);
    if (!node) return;
    node.best = true;
  }
}

function box(view, node, isRoot) {
  const isEnd = node.token === null;
  const prefix = () => { const tokens = []; for (let n = node; n.parent; n = n.parent) tokens.unshift(n.token); return tokens; };
  const force = () => view.forcePrefix(prefix());
  const name = isRoot ? "start" : `${node.label}: ${node.percent} given the preceding tokens, ${formatPercent(Math.exp(node.logProb))} for the sequence so far`;
  return svgElement("g", {
    transform: `translate(${node.x},${node.y})`, class: `${node.best ? "best" : ""} ${isEnd ? "end" : ""} ${isRoot ? "root" : ""}`,
    ...(isEnd || isRoot ? {} : {
      role: "button", tabindex: 0, "aria-label": `${name}. Force the output up to and including this token.`, "data-focus": `tree ${prefix().join(" ")}`,
      onclick: force, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); force(); } },
    }),
  },
  svgElement("title", {}, name),
  svgElement("rect", { width: node.width, height: BOX, rx: 6 }),
  svgElement("text", { class: "token", x: PADDING, y: 17 }, node.label),
  node.percent && svgElement("text", { class: "percent", x: PADDING + node.labelWidth + 6, y: 17 }, node.percent));
}

// From the right edge of the parent's box to the left edge of the node's box.
function edge({ parent, x, y, best }, gap) {
  const [x1, y1, y2] = [parent.x + parent.width, parent.y + BOX / 2, y + BOX / 2];
  const start = x - gap; // the columns are as wide as their widest node
  const curve = y1 === y2 ? `H${x}` : `H${start} C${start + gap / 2},${y1} ${x - gap / 2},${y2} ${x},${y2}`;
  return svgElement("path", { d: `M${x1},${y1} ${curve}`, class: best ? "best" : "" });
}
