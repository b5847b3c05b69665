// Arithmetic on the weights of one look; the same as the server's.

// Weights that are pinned stand as they are, the free ones share what is left in their proportions.
export function pinned(weights, pins) {
  const held = Object.values(pins).reduce((sum, weight) => sum + weight, 0);
  const free = weights.reduce((sum, weight, i) => (i in pins ? sum : sum + weight), 0);
  const left = Math.max(0, 1 - held);
  return weights.map((weight, i) => (i in pins ? pins[i] : free > 0 ? (weight * left) / free : 0));
}

// The rows of one layer: of one head, or the average of its heads.
export function ofHead(heads, layer, head) {
  return heads.map((step) => {
    const rows = step[layer];
    if (head !== null) return rows[head];
    return rows[0].map((_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length);
  });
}

export const total = (weights) => weights.reduce((sum, weight) => sum + weight, 0);
