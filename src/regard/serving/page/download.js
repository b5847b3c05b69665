// Downloads of a picture as PNG or SVG, and of its numbers as JSON.
import { element } from "./dom.js";

const SCALE = 2; // pixels of the PNG per unit of the SVG, unless it exceeds what browsers can draw:
const [MAX_SIDE, MAX_AREA] = [16_384, 2 ** 26];

// Buttons that download what `picture()` (an SVG element) and `data()` return; `report` receives an error message.
export function downloads(name, picture, data, report) {
  const svg = () => serialize(picture());
  const makers = {
    PNG: async () => save(`${name}.png`, await png(picture())),
    SVG: () => save(`${name}.svg`, new Blob([svg()], { type: "image/svg+xml" })),
    JSON: () => save(`${name}.json`, new Blob([JSON.stringify(data(), null, 1)], { type: "application/json" })),
  };
  return Object.entries(makers).map(([format, make]) =>
    element("button", { type: "button", class: "download", "aria-label": `Download ${name} as ${format}`, onclick: async () => {
      try { await make(); } catch { report(`The ${name} could not be saved as ${format}.`); }
    } }, format));
}

// As XML, which permits few control characters.
function serialize(svg) {
  return new XMLSerializer().serializeToString(svg).replace(/[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu, "\uFFFD");
}

async function png(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(serialize(svg))}`;
  await image.decode();
  const [width, height] = ["width", "height"].map((side) => Number(svg.getAttribute(side)));
  const scale = Math.min(SCALE, MAX_SIDE / Math.max(width, height), Math.sqrt(MAX_AREA / (width * height)));
  const canvas = element("canvas", { width: Math.floor(scale * width), height: Math.floor(scale * height) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png"));
}

function save(name, blob) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
