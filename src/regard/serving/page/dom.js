// Elements from names, attributes and children. Text is inserted as text, never as markup.

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svgElement(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, setting] of Object.entries(value)) node.style.setProperty(property, setting);
    else if (name.startsWith("aria-")) node.setAttribute(name, String(value));
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null && child !== false));
  return node;
}

// A part of a view: a title with tools at its end, one line of explanation, and the content.
export function panel(title, { hint = null, help = null, tools = [], name = "" }, ...children) {
  return element("div", { class: `panel ${name}`, role: "group", "aria-label": title },
    element("div", { class: "panel-head" },
      element("h3", {}, title), help && helpButton(help, title), element("span", { class: "tools" }, ...tools)),
    hint && element("p", { class: "hint" }, hint), ...children);
}

// A box that scrolls where its content is too large, with the keyboard too.
export function scrollBox(name, content, className = "") {
  return element("div", { class: `scroll ${className}`, tabindex: 0, role: "group", "aria-label": name }, content);
}

export function helpButton(key, subject) {
  return element("button", { type: "button", class: "help", "data-help": key, "aria-label": `Help: ${subject}` }, "?");
}

export const END = "</s>";
const LEFT_JOINER = /^‿(?=.)/u; // marks the side of a punctuation mark that touches its neighbour
const RIGHT_JOINER = /(?<=.)‿$/u;

// A token for display: whitespace becomes visible, marks of the tokenizer are left out.
export function displayToken(token) {
  if (token.trim() === "") return token.replace(/\s/g, "␣") || "∅";
  return token.replace(LEFT_JOINER, "").replace(RIGHT_JOINER, "");
}

// The direction of a text is that of its first letter.
const RIGHT_TO_LEFT = /^\P{L}*[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;

export function direction(tokens) {
  return RIGHT_TO_LEFT.test(tokens.join("")) ? "rtl" : "ltr";
}

// A token for a text without markup: isolated if it is written from right to left, which would move what follows it.
export function isolatedToken(token) {
  const text = displayToken(token);
  return direction([text]) === "rtl" ? `\u2068${text}\u2069` : text;
}

// The position of a token among `tokens`, for a text that names it, if it occurs more than once.
export const position = (tokens, i) => (tokens.indexOf(tokens[i]) === tokens.lastIndexOf(tokens[i]) ? "" : ` (${i})`);

export const formatWeight = (weight) => (Math.abs(weight) < 0.005 ? "0" : weight.toFixed(2));

// A probability in percent with two significant digits; small ones with one decimal place.
export function formatPercent(probability) {
  const percent = 100 * probability;
  if (percent >= 99.95) return "100 %";
  if (percent < 0.05) return "< 0.1 %";
  return `${percent >= 10 ? percent.toFixed(percent > 99 ? 1 : 0) : percent.toFixed(1)} %`;
}

let canvas;

// The width of a text in pixels.
export function textWidth(text, font) {
  canvas ??= document.createElement("canvas").getContext("2d");
  canvas.font = font;
  return canvas.measureText(text).width;
}

export const FONT_FAMILY = 'system-ui, "Noto Sans", "Noto Sans CJK SC", "Noto Sans Devanagari", "Noto Naskh Arabic", sans-serif';
