// The search tree: from the start at the left, one column per step, the displayed output on top.
import { END, FONT_FAMILY, displayToken, element, formatPercent, svgElement, textWidth } from "./dom.js";

const GAP = 36; // pixels between two columns
const ROW = 32;
const BOX = 24; // height of a node
const PADDING = 8;
const MAX_CHARACTERS = 16;
const TOKEN_FONT = `600 14px ${FONT_FAMILY}`;
const PERCENT_FONT = `13px ${FONT_FAMILY}`;

export function tree(view) {
  const nodes = layout(view);
  const root = nodes[0];
  // the lines of the displayed output lie above the others
  const edges = nodes.filter((node) => node.parent).sort((a, b) => Number(a.best ?? false) - Number(b.best ?? false)).map(edge);
  const width = Math.max(...nodes.map((node) => node.x + node.width)) + 2;
  const height = Math.max(...nodes.map((node) => node.y)) + BOX + 4;
  return element("div", {},
    element("div", { class: "scroll tree", tabindex: 0, role: "group", "aria-label": "search tree" },
      svgElement("svg", { width, height, role: "group", "aria-label": "hypotheses" }, ...edges, ...nodes.map((node) => box(view, node, node === root)))));
}

// The nodes with their position, the root first. A parent stands in the row of its first child.
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
  const starts = widths.map((_, depth) => 2 + widths.slice(0, depth).reduce((total, width) => total + width + GAP, 0));
  pack(root);
  const place = (node, row) => {
    Object.assign(node, { x: starts[node.depth], y: 2 + row * ROW });
    node.children.forEach((child) => place(child, row + child.offset));
  };
  place(root, 0);
  return all;
}

// Set the offset of every child from the row of its parent: the first has 0, each of the others stands in the first
// row in which its whole subtree is below its siblings'. Returns the first and last row of the subtree at each depth.
function pack(node) {
  node.children.sort((a, b) => Number(b.best ?? false) - Number(a.best ?? false) || b.logProb - a.logProb);
  const first = { [node.depth]: 0 };
  const last = { [node.depth]: 0 };
  for (const child of node.children) {
    const rows = pack(child);
    const depths = Object.keys(rows.first);
    child.offset = Math.max(0, ...depths.filter((depth) => depth in last).map((depth) => last[depth] + 1 - rows.first[depth]));
    for (const depth of depths) {
      first[depth] ??= rows.first[depth] + child.offset;
      last[depth] = rows.last[depth] + child.offset;
    }
  }
  return { first, last };
}

function label(token) {
  if (token === null) return END;
  const text = displayToken(token);
  return text.length > MAX_CHARACTERS ? `${text.slice(0, MAX_CHARACTERS - 1)}…` : text;
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
  const name = isRoot ? "start" : `${node.label}: ${node.percent} after its predecessors, ${formatPercent(Math.exp(node.logProb))} for the sequence so far`;
  return svgElement("g", {
    transform: `translate(${node.x},${node.y})`, class: `${node.best ? "best" : ""} ${isEnd ? "end" : ""} ${isRoot ? "root" : ""}`,
    ...(isEnd || isRoot ? {} : {
      role: "button", tabindex: 0, "aria-label": `${name}. Force the output up to here.`, "data-focus": `tree ${prefix().join(" ")}`,
      onclick: force, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); force(); } },
    }),
  },
  svgElement("title", {}, name),
  svgElement("rect", { width: node.width, height: BOX, rx: 6 }),
  svgElement("text", { class: "token", x: PADDING, y: 17 }, node.label),
  node.percent && svgElement("text", { class: "percent", x: PADDING + node.labelWidth + 6, y: 17 }, node.percent));
}

// From the right edge of the parent's box to the left edge of the node's box.
function edge({ parent, x, y, best }) {
  const [x1, y1, y2] = [parent.x + parent.width, parent.y + BOX / 2, y + BOX / 2];
  const bend = x - GAP / 2;
  return svgElement("path", { d: y1 === y2 ? `M${x1},${y1} H${x}` : `M${x1},${y1} H${bend - 8} Q${bend},${y1} ${bend},${y1 + 8} V${y2 - 8} Q${bend},${y2} ${bend + 8},${y2} H${x}`, class: best ? "best" : "" });
}
