// @ts-check
// Numbers as a file that any program opens: CSV.

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
  return `"${safe.toWellFormed()}"`;
}
