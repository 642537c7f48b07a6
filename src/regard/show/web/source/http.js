// @ts-check
// The transport of a served page: HTTP requests to the server that it came from, with the server's token.

let token = "";

/**
 * `fetch` with the server's token, and a sentence for a server that is gone.
 * @param {string} path
 * @param {{ method?: string, headers?: Record<string, string>, body?: string, signal?: AbortSignal }} options
 */
async function reach(path, options) {
  try {
    return await fetch(path, {
      ...options,
      headers: { ...options.headers, authorization: `Bearer ${token}` },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer any more. Start it again, and reload this page.");
  }
}

/**
 * An answer from the server, or an error with the server's own sentence.
 * @param {string} path
 * @param {Record<string, string | number>} query
 * @param {AbortSignal} [signal]
 */
async function ask(path, query, signal) {
  const named = Object.entries(query).map(([name, value]) => [name, String(value)]);
  const response = await reach(`api/${path}?${new URLSearchParams(named)}`, { signal });
  if (response.status === 204) throw new DOMException("The text was removed.", "AbortError");
  if (!response.ok) throw new Error(await problem(response));
  return response;
}

/**
 * @param {Response} response
 * @returns {Promise<string>}
 */
async function problem(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text || `The server answered ${response.status}.`;
  }
}

/**
 * Lines of JSON as they come.
 * @template T
 * @param {string} path
 * @param {object} body
 * @param {(line: T) => void} onLine
 * @param {AbortSignal} [signal]
 * @returns {Promise<T | null>}
 */
async function follow(path, body, onLine, signal) {
  const response = await reach(`api/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok || !response.body) throw new Error(await problem(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  /** @type {T | null} */
  let last = null;
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : (lines.pop() ?? "");
    for (const line of lines) {
      if (!line.trim()) continue;
      const parsed = JSON.parse(line);
      if (parsed.error) throw new Error(parsed.error);
      onLine(parsed);
      last = parsed;
    }
    if (done) return last;
  }
}

/** @returns {Transport} */
export function openHttp() {
  token = takeToken();
  return { ask, follow };
}

const NAME = "regard-token";

/** The token, or "" if there is none. */
export function takeToken() {
  const token = new URLSearchParams(location.search).get("token");
  if (token !== null) history.replaceState(null, "", location.pathname + location.hash);
  try {
    if (token !== null) localStorage.setItem(NAME, token);
    return token ?? localStorage.getItem(NAME) ?? "";
  } catch {
    return token ?? ""; // the browser keeps nothing: reloading needs the printed address
  }
}
