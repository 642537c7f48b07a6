// @ts-check
// The file format of PDF: numbered objects, streams, and the table of where they are. It knows no drawing.

const LINE = new TextEncoder();

export class PdfFile {
  constructor() {
    /** @type {Uint8Array[]} */
    this.parts = [LINE.encode("%PDF-1.5\n%\u00e2\u00e3\u00cf\u00d3\n")];
    this.size = this.parts[0].length;
    /** @type {number[]} */
    this.places = []; // of the objects, from the first
  }

  /** The number of an object that is to come. */
  reserve() {
    this.places.push(-1);
    return this.places.length;
  }

  /**
   * Writes an object and returns its number.
   * @param {string} body
   * @param {number} [number] that was reserved
   */
  add(body, number = this.reserve()) {
    this.places[number - 1] = this.size;
    this.write(LINE.encode(`${number} 0 obj\n${body}\nendobj\n`));
    return number;
  }

  /**
   * Writes a stream, compressed, and returns its number.
   * @param {string} entries of its dictionary
   * @param {Uint8Array<ArrayBuffer>} bytes
   */
  async addStream(entries, bytes) {
    const packed = await deflated(bytes);
    const number = this.reserve();
    this.places[number - 1] = this.size;
    const head = `<< ${entries} /Filter /FlateDecode /Length ${packed.length} >>`;
    this.write(LINE.encode(`${number} 0 obj\n${head}\nstream\n`));
    this.write(packed);
    this.write(LINE.encode("\nendstream\nendobj\n"));
    return number;
  }

  /**
   * The whole file.
   * @param {number} root the catalogue's number
   * @param {number} info
   */
  finish(root, info) {
    const count = this.places.length + 1;
    const lines = this.places.map((place) => `${String(place).padStart(10, "0")} 00000 n \n`);
    const table = `xref\n0 ${count}\n0000000000 65535 f \n${lines.join("")}`;
    const trailer = `trailer\n<< /Size ${count} /Root ${root} 0 R /Info ${info} 0 R >>\nstartxref\n${this.size}\n%%EOF\n`;
    this.write(LINE.encode(table + trailer));
    const out = new Uint8Array(this.size);
    let at = 0;
    for (const part of this.parts) {
      out.set(part, at);
      at += part.length;
    }
    return out;
  }

  /** @param {Uint8Array} bytes */
  write(bytes) {
    this.parts.push(bytes);
    this.size += bytes.length;
  }
}

/**
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Promise<Uint8Array>}
 */
async function deflated(bytes) {
  const packed = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(packed).arrayBuffer());
}

/**
 * Bytes as digits between angle brackets.
 * @param {number[]} bytes
 */
export function hexBytes(bytes) {
  return `<${bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("")}>`;
}

/**
 * A text as a PDF file holds titles and the like.
 * @param {string} text
 * @param {boolean} [marked] whether a mark of the order of bytes comes first
 */
export function hexText(text, marked = true) {
  const whole = text.toWellFormed?.() ?? text;
  const codes = Array.from({ length: whole.length }, (_, n) => whole.charCodeAt(n));
  return hexBytes((marked ? [0xfeff, ...codes] : codes).flatMap((code) => [code >> 8, code & 255]));
}
