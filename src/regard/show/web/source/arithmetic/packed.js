// @ts-check
// The binary blocks that a saved file carries, back into arrays: base64, then deflate, then byte planes.
// It knows bytes; what they stand for is the business of `saved_weights.js`.

/**
 * The bytes of a block from its text.
 * @param {string} text
 */
async function inflate(text) {
  const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * @param {string} text
 * @returns {Uint8Array<ArrayBuffer>}
 */
function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const out = new Uint8Array(binary.length);
  for (let i = 0; i < out.length; i++) out[i] = binary.charCodeAt(i);
  return out;
}

/**
 * The text that a block holds.
 * @param {string} text
 */
export async function unpackText(text) {
  return new TextDecoder().decode(await inflate(text));
}

/**
 * What a block of JSON holds.
 * @param {string} text
 * @returns {Promise<any>}
 */
export async function unpackJson(text) {
  return JSON.parse(await unpackText(text));
}

/**
 * The arrays of a block, by name. `fields` lists them in order: {name, type, shape}, where the type is
 * "u8", "u32", "i16" (plus 128; given as floats), "f16", "f24" (a float32 without its last byte), "f32" or "f64".
 * @param {string} name
 * @param {string} text
 * @param {PackedField[]} fields
 * @returns {Promise<Arrays>}
 */
export async function unpackArrays(name, text, fields) {
  return unpack(name, await inflate(text), fields);
}

/**
 * The same from a block's bytes.
 * @param {string} name
 * @param {Uint8Array} all
 * @param {PackedField[]} fields
 * @returns {Arrays}
 */
export function unpack(name, all, fields) {
  /** @type {Record<string, ReturnType<typeof read>>} */
  const out = {};
  let at = 0;
  for (const field of fields) {
    const count = field.shape.reduce((a, b) => a * b, 1);
    const planes = { u8: 1, u32: 4, i16: 2, f16: 2, f24: 3, f32: 4, f64: 8 }[field.type];
    out[field.name] = read(all.subarray(at, at + planes * count), count, field.type);
    at += planes * count;
  }
  if (at !== all.length) throw new Error(`The block "${name}" is ${all.length} bytes long, expected ${at}.`);
  return /** @type {Arrays} */ (/** @type {unknown} */ (out));
}

/**
 * @param {Uint8Array} planes
 * @param {number} count
 * @param {PackedField["type"]} type
 */
function read(planes, count, type) {
  if (type === "u8") return planes.slice();
  const size = type === "f64" ? 8 : type === "i16" || type === "f16" ? 2 : 4;
  const drop = type === "f24" ? 1 : 0; // the plane that is not there
  const bytes = new Uint8Array(size * count); // of the numbers one after another, the least significant first
  for (let plane = drop; plane < size; plane++) {
    const own = planes.subarray((plane - drop) * count, (plane - drop + 1) * count);
    for (let i = 0; i < count; i++) bytes[size * i + plane] = own[i];
  }
  if (type === "u32") return new Uint32Array(bytes.buffer);
  if (type === "f64") return new Float64Array(bytes.buffer);
  if (size === 4) return new Float32Array(bytes.buffer);
  const [words, out] = [new Uint16Array(bytes.buffer), new Float32Array(count)];
  const table = halves();
  for (let i = 0; i < count; i++) out[i] = type === "f16" ? table[words[i]] : ((words[i] - 128) << 16) >> 16;
  return out;
}

/** @type {Float32Array | null} */
let table = null;

/** Every float16 as a float32. */
function halves() {
  if (table) return table;
  table = new Float32Array(1 << 16);
  for (let bits = 0; bits < 1 << 16; bits++) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 0) table[bits] = sign * fraction * 2 ** -24;
    else if (exponent === 31) table[bits] = fraction ? NaN : sign * Infinity;
    else table[bits] = sign * (1024 + fraction) * 2 ** (exponent - 25);
  }
  return table;
}
