// @ts-check
// The secret that opens the server's data. The address that was printed holds it as ?token=…; the page takes it out
// of the address bar and keeps it where only pages of the same origin can read it, for reloading and other tabs.

const NAME = "regard-token";

/**
 * The token, or "" if there is none.
 * @returns {string}
 */
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
