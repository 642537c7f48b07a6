// @ts-check
// What the reader looks at, and the same in the address bar: #view=map&layer=3&head=5&zoom=12.
// A link may be shorter: #head=3.5&token=121 is layer 3, head 5 and row 121, and #text=Once… a text to be read.
// It knows names and values; it does not know what they mean to a view.

/**
 * Every name of the state with what it is at first, which also gives its type. What is as it is here is left
 * out of the address, and a name that is not here is not taken from one.
 */
export const DEFAULTS = {
  view: "", // the name of a view; "" is the first to look at
  text: 0,
  layer: "", // a layer's key; "" is the first
  head: -1, // a head's number in the model; -1 is the layer's first
  row: -1, // the chosen query, and
  col: -1, // key; -1 is none

  // Map
  x: -1, // the middle of the map, in keys and
  y: -1, // queries, and
  zoom: 0, // pixels a token; 0 is the whole map
  reduce: "mass", // or "max"
  colourTop: "head", // the colours suit the whole map of the head, the part in "view", or 0 to "one"

  // Map and Text
  shade: "weights", // or "values", weights times the norms of values; or "logit", contributions to a logit:
  token: -1, // the number of that token, which may follow the chosen query or the last; -1 is the likeliest
  units: "tokens", // or "words", or "sentences"
  scale: "linear", // or "log"
  sink: "in", // or "apart"

  // Text
  direction: "at", // shade what a token attends to ("at"), or what it is attended to "by"
  scope: "head", // weights of a "head", of its "layer" on average, or of "all" layers
  secondHead: "", // layer/head of another one that is shown in a second colour

  // Heads
  headScore: "", // the score of the matrix; "" is the first that says what a head finds
  label: "any", // only heads with this label, or with "none"
  layerFilter: "all", // only heads of the layer with this key
  pair: "", // the heads that are compared: text/layer/head,text/layer/head

  // Steps
  example: "", // a stage of the small example and its head, as in "3.1"; "" is the model

  // Cache
  cachePolicy: "", // the name of a policy; "" is the first

  // Survey
  surveyAcross: "", // the scores of the scatter; "" is the first that there is, and
  surveyUp: "", // the second
  surveyHead: "", // layer/head; "" is the highest

  // Time
  scoredOn: "", // "text", "repeats" or "batch"; "" is the first that there is
  score: "", // the name of a score; "" is the first that there is
  trainingStep: -1, // of an evaluation; -1 is the last
  chosenHead: "", // layer/head; "" is the strongest
};

/**
 * The names and values of an address's part after #, with short forms spelled out.
 * @param {string} hash
 */
function parts(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const [, layer, head] = /^(.+)\.(\d+)$/.exec(parts.get("head") ?? "") ?? [];
  if (layer !== undefined && !parts.has("layer")) {
    parts.set("layer", layer);
    parts.set("head", head);
  }
  const { token, next } = Object.fromEntries(parts);
  if (token !== undefined && !parts.has("row")) {
    parts.set("row", token);
    parts.delete("token");
  }
  if (next !== undefined) parts.set("token", next); // to whose logit heads contribute
  return parts;
}

/**
 * Whether an address without a view names a place in the map. #head=3.5&token=121 names one in a text.
 * @param {string} hash
 */
export function namesMap(hash) {
  const names = [...new URLSearchParams(hash.replace(/^#/, "")).keys()];
  const isShort = names.includes("token") && !names.includes("row");
  return (
    !isShort && names.some((name) => Object.hasOwn(DEFAULTS, name) && name !== "text" && name !== "view")
  );
}

/**
 * The text that an address asks to be read; "" if it names one by its number, or none.
 * @param {string} hash
 */
export function typedText(hash) {
  const text = parts(hash).get("text") ?? "";
  return Number.isFinite(Number(text)) ? "" : text;
}

/**
 * The state that an address's part after # describes; what it does not name is as by default.
 * @param {string} hash
 * @param {Map<number, string>} typed texts that an address spells out, by their numbers
 * @returns {State}
 */
export function parse(hash, typed = new Map()) {
  /** @type {Record<string, string | number>} */
  const state = { ...DEFAULTS };
  for (const [name, value] of parts(hash)) {
    if (!Object.hasOwn(DEFAULTS, name) || value === "") continue;
    const [spelled] = name === "text" ? ([...typed].find(([, text]) => text === value) ?? []) : [];
    const number = spelled ?? Number(value);
    if (typeof state[name] !== "number") state[name] = value.slice(0, 400);
    else if (Number.isFinite(number)) state[name] = number;
  }
  return /** @type {State} */ (state);
}

/**
 * The address's part after # for a state.
 * @param {State} state
 * @param {Map<number, string>} typed
 */
export function format(state, typed = new Map()) {
  const parts = new URLSearchParams();
  /** @type {Record<string, string | number>} */
  const defaults = DEFAULTS;
  for (const [name, value] of Object.entries(state)) {
    if (value === defaults[name] || value === "") continue;
    const spelled = typeof value === "number" ? String(+value.toFixed(3)) : String(value);
    const text = name === "text" ? typed.get(Number(value)) : undefined;
    parts.set(name === "token" ? "next" : name, text ?? spelled);
  }
  return "#" + parts.toString();
}

/**
 * The state and those who want to know when it changes.
 * `set` keeps the address bar up to date: a new view, text, layer or head can be gone back from.
 * @param {Map<number, string>} typed texts that were read in the page, by their numbers
 * @param {(state: State) => string} firstView the view of an address that names no view and no place
 */
export function makeState(typed, firstView) {
  /** @type {(() => void)[]} */
  const listeners = [];
  const read = () => {
    const now = parse(location.hash, typed);
    return { ...now, view: now.view || firstView(now) };
  };
  let state = read();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer = 0;

  const write = (/** @type {boolean} */ step) => {
    clearTimeout(timer);
    if (location.protocol === "about:") return; // a frame in a notebook has no address of its own
    const address = format(state, typed);
    if (address === location.hash || (address === "#" && !location.hash)) return;
    if (step) history.pushState(null, "", address);
    else timer = setTimeout(() => history.replaceState(null, "", format(state, typed)), 60); // browsers allow few
  };
  const tell = () => listeners.forEach((listener) => listener());
  addEventListener("popstate", () => {
    clearTimeout(timer);
    state = read();
    tell();
  });
  return {
    get now() {
      return state;
    },
    /** @param {Partial<State>} changes */
    set(changes) {
      const names = /** @type {(keyof State)[]} */ (Object.keys(changes));
      const changed = names.filter((name) => changes[name] !== state[name]);
      if (!changed.length) return;
      state = { ...state, ...changes };
      write(
        ["view", "text", "layer", "head"].some((name) => changed.includes(/** @type {keyof State} */ (name))),
      );
      tell();
    },
    /** @param {() => void} listener called when it changes */
    on(listener) {
      listeners.push(listener);
    },
  };
}
