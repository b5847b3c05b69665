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
  node.append(...children.filter((child) => child != null));
  return node;
}

// A token for display: whitespace becomes visible.
export function displayToken(token) {
  return token.trim() === "" ? token.replace(/\s/g, "␣") || "∅" : token;
}

// The direction of a text is that of its first letter.
const RIGHT_TO_LEFT = /^\P{L}*[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;

export function direction(tokens) {
  return RIGHT_TO_LEFT.test(tokens.join("")) ? "rtl" : "ltr";
}

export const formatWeight = (weight) => (Math.abs(weight) < 0.005 ? "0" : weight.toFixed(2));
