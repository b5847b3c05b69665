// Downloads with their progress.
const GZIP = [0x1f, 0x8b];

// The bytes of a file; a compressed one is decompressed. `onBytes(n)` is called as they arrive.
export async function download(address, onBytes) {
  const response = await fetch(address).catch(() => null);
  if (!response?.ok) throw new Error(`The file ${address} could not be loaded; copy the page's folder again.`);
  const parts = [];
  for (const reader = response.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    onBytes(value.length);
  }
  const file = new Blob(parts);
  const start = new Uint8Array(await file.slice(0, GZIP.length).arrayBuffer());
  const isCompressed = GZIP.every((byte, i) => start[i] === byte); // some servers decompress it themselves
  const stream = isCompressed ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.stream();
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
