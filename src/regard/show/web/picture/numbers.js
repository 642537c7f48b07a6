// @ts-check
// Numbers as files: CSV for any program, NPY for NumPy.

/**
 * A table as CSV: each row is a list of numbers and texts.
 * @param {TableRow[]} rows
 */
export function writeCsv(rows) {
  const lines = rows.map((cells) =>
    cells.map((cell) => (typeof cell === "string" ? quoted(cell) : (cell ?? ""))).join(","),
  );
  return new Blob([lines.join("\r\n"), "\r\n"], { type: "text/csv" });
}

/**
 * Quoted, and never a formula to a program that opens it.
 * @param {string} text
 */
function quoted(text) {
  if (/^\w*$/.test(text)) return text;
  const safe = (/^[=+\-@\t]/.test(text) ? `'${text}` : text).replace(/"/g, '""');
  return `"${safe.toWellFormed?.() ?? safe}"`;
}

/**
 * NumPy's own format, version 1.0.
 * @param {Float32Array<ArrayBuffer>} values
 * @param {number} rows
 * @param {number} cols
 */
export function writeNpy(values, rows, cols) {
  const words = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows}, ${cols}), }`;
  const header = `${words}${" ".repeat(63 - ((10 + words.length) % 64))}\n`;
  const magic = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0];
  const start = new Uint8Array([...magic, header.length & 255, header.length >> 8]);
  return new Blob([start, header, values], { type: "application/octet-stream" });
}
