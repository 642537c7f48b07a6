// @ts-check
// Parts of the first view whose code comes after it, by name: whoever wants one gets it once it is there.

/** @type {Map<string, Function>} */
const parts = new Map();
/** @type {Map<string, ((part: any) => void)[]>} */
const waiting = new Map();

/**
 * Makes a part known.
 * @param {string} name
 * @param {Function} part
 */
export function addPart(name, part) {
  parts.set(name, part);
  for (const use of waiting.get(name) ?? []) use(part);
  waiting.delete(name);
}

/**
 * Calls `use` with a part, now or when it has come.
 * @template {Function} T
 * @param {string} name
 * @param {(part: T) => void} use
 */
export function withPart(name, use) {
  const part = parts.get(name);
  if (part) use(/** @type {T} */ (part));
  else waiting.set(name, [...(waiting.get(name) ?? []), use]);
}
