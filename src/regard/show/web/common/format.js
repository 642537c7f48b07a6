// Numbers as a reader wants them: few digits, a real minus sign, units.

const minus = (text) => (/^-0\.?0*$/.test(text) ? text.slice(1) : text.replace("-", "−"));

/** A weight with four digits that count. */
export function exact(weight) {
  if (weight === 0) return "0";
  if (weight >= 1e-4) return String(Number(weight.toPrecision(4)));
  return weight.toExponential(2).replace("e-", "e−");
}

/** The same, and a dash for what is not a number. */
export function weight(x) {
  return x === null || x === undefined || Number.isNaN(x) ? "–" : exact(x);
}

/** A share with few digits, for labels: 0.31. */
export function share(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  return minus(Math.abs(x) >= 0.995 ? x.toFixed(1) : x.toFixed(2));
}

/** Any number, with so many decimals; −∞ and the like as signs. */
export function number(x, digits = 3) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (x !== 0 && Math.abs(x) < 0.5 * 10 ** -digits) return minus(x.toExponential(1));
  return minus(x.toFixed(digits));
}

/** A score by its name: shares with two digits, entropy and distance with as many as they need. */
export function score(name, x) {
  if (name === "distance") return x === null || x === undefined ? "–" : number(x, Math.abs(x) < 10 ? 1 : 0);
  return share(x);
}

export function count(n) {
  return n.toLocaleString("en-US");
}

/** 1.5 MiB. */
export function bytes(n) {
  for (const unit of ["bytes", "KiB", "MiB", "GiB"]) {
    if (n < 1024 || unit === "GiB")
      return `${unit === "bytes" || n >= 100 ? Math.round(n) : n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
}

/** 12.3 ms. */
export function milliseconds(seconds) {
  const ms = seconds * 1000;
  return ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : `${ms >= 100 ? ms.toFixed(0) : ms.toFixed(1)} ms`;
}

/** "one head", "2 heads". */
export function some(n, thing) {
  return n === 1 ? `one ${thing}` : `${count(n)} ${thing}s`;
}
