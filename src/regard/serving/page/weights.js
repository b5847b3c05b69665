// Arithmetic on attention weights, as on the server.

const MIN_WEIGHT = 0.04;

// Pinned weights keep their value; the others share the rest in proportion.
export function applyPins(weights, pins) {
  const pinned = sum(Object.values(pins));
  const free = weights.reduce((total, weight, i) => (i in pins ? total : total + weight), 0);
  const rest = Math.max(0, 1 - pinned);
  return weights.map((weight, i) => (i in pins ? pins[i] : free > 0 ? (weight * rest) / free : 0));
}

// The rows of one layer: of one head, or the average over its heads if `head` is null.
export function headWeights(heads, layer, head) {
  return heads.map((step) => {
    const rows = step[layer];
    if (head !== null) return rows[head];
    return rows[0].map((_, i) => sum(rows.map((row) => row[i])) / rows.length);
  });
}

// Whether a weight is drawn as a line of the alignment; in a row of small weights, the largest are.
export const isDrawn = (weight, row) => weight > 0 && weight >= Math.min(MIN_WEIGHT, 0.5 * Math.max(...row));

export const sum = (weights) => weights.reduce((total, weight) => total + weight, 0);
