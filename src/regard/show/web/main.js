// @ts-check
// Starts the page: opens the source, makes the views when they are first wanted, and follows the state.

import { element, reveal } from "./common/dom.js";
import { makeTheme } from "./common/theme.js";
import { RunBanner } from "./runs/banner.js";
import { EditedRuns } from "./runs/edited_runs.js";
import { open } from "./source/source.js";
import { makeState } from "./state.js";
import { VIEWS } from "./views.js";

/** @param {string} id */
const find = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

async function start() {
  makeTheme(/** @type {HTMLButtonElement} */ (find("theme")));
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault(); // what stands behind # is the reader's place
    find("main").focus();
  });
  find("main").append(element("p", { class: "empty", text: "Opening…" }));
  let source;
  try {
    source = await open();
  } catch (error) {
    const text = `The page could not be opened. ${error.message}`;
    find("main").replaceChildren(element("p", { class: "empty", text }));
    return;
  }
  find("main").replaceChildren();
  run(source);
}

/** @typedef {View & { root: HTMLElement }} MadeView */

/** @param {Source} source */
function run(source) {
  const state = makeState();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer = 0;
  /** @type {App} */
  const app = {
    source,
    runs: /** @type {any} */ (null), // below, because it needs the rest
    get meta() {
      return source.meta;
    },
    get state() {
      return settled(source.meta, state.now);
    },
    // A token was chosen to follow a query; after another one the likeliest is shown.
    set: (changes) =>
      state.set(
        changes.row === undefined || changes.row === app.state.row ? changes : { token: -1, ...changes },
      ),
    on: (listener) => state.on(() => listener(app.state)),
    /** Says something in passing; "" takes it back. */
    status(message, seconds = 6) {
      clearTimeout(timer);
      find("status").textContent = message;
      if (message) timer = setTimeout(() => (find("status").textContent = ""), seconds * 1000);
    },
  };
  app.runs = new EditedRuns(app);
  const banner = new RunBanner(app);
  find("main").before(banner.box);
  const views = VIEWS.filter((view) => !view.needs || view.needs(app.meta));
  /** @type {Map<typeof VIEWS[number], MadeView>} */
  const made = new Map();
  /** @type {MadeView | null} */
  let current = null;

  find("model").textContent = app.meta.model;
  makeTabs(views, app);
  const texts = makeTexts(app);

  const follow = () => {
    const view = views.find((one) => one.name === app.state.view) ?? views[0];
    if (!made.has(view)) {
      const root = element("section", { class: "view", id: `view-${view.name}`, role: "tabpanel" });
      root.setAttribute("aria-labelledby", `tab-${view.name}`);
      find("main").append(root);
      made.set(view, { root, ...view.make(root, app) });
    }
    const now = /** @type {MadeView} */ (made.get(view));
    if (current !== now) {
      if (current) current.root.hidden = true;
      current?.hide();
      now.root.hidden = false;
      current = now;
    }
    for (const one of views) {
      const tab = find(`tab-${one.name}`);
      tab.setAttribute("aria-selected", String(one === view));
      tab.tabIndex = one === view ? 0 : -1;
      if (one === view) reveal(tab, find("tabs"));
    }
    texts.value = String(app.state.text);
    banner.draw();
    now.show(app.state);
  };
  state.on(follow);
  addEventListener("regard-theme", follow);
  addEventListener("unhandledrejection", (event) => {
    event.preventDefault();
    if (event.reason?.name !== "AbortError") app.status(event.reason?.message ?? "Something went wrong.");
  });
  follow();
}

/**
 * The state with what it leaves open filled in, and what does not exist replaced by the first that does.
 * @param {Meta} meta
 * @param {State} now
 * @returns {State}
 */
function settled(meta, now) {
  const known = Number.isInteger(now.text) && meta.texts[now.text] && !meta.texts[now.text].removed;
  const text = known ? now.text : 0;
  const layers = meta.texts[text].layers;
  /** @param {string | undefined} key */
  const named = (key) => layers.find((one) => one.key === key);
  const layer = named(now.layer) ?? named(meta.start?.layer) ?? layers[0];
  const wanted = [now.head, layer.key === meta.start?.layer ? meta.start.head : -1];
  const head = wanted.find((one) => layer.heads.includes(one)) ?? layer.heads[0];
  /**
   * @param {number} value
   * @param {number} size
   */
  const within = (value, size) => (Number.isInteger(value) && value >= 0 && value < size ? value : -1);
  return {
    ...now,
    text,
    head,
    layer: layer.key,
    row: within(now.row, layer.rows),
    col: within(now.col, layer.cols),
  };
}

/**
 * @param {typeof VIEWS} views
 * @param {App} app
 */
function makeTabs(views, app) {
  const tabs = views.map((view) => {
    const names = { class: "tab", id: `tab-${view.name}`, text: view.title };
    const tab = element("button", { ...names, type: "button", role: "tab" });
    tab.setAttribute("aria-controls", `view-${view.name}`);
    tab.addEventListener("click", () => app.set({ view: view.name }));
    return tab;
  });
  find("tabs").addEventListener("keydown", (event) => {
    const at = tabs.findIndex((tab) => tab === document.activeElement);
    /** @type {Record<string, number>} */
    const places = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 };
    const to = places[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = tabs.at(to % tabs.length);
    next?.focus();
    next?.click();
  });
  find("tabs").append(...tabs);
  find("tabs").hidden = tabs.length < 2;
}

/** @param {App} app */
function makeTexts(app) {
  const select = /** @type {HTMLSelectElement} */ (find("text"));
  const fill = () => {
    const options = app.runs
      .titles()
      .map(({ number, title }) => element("option", { value: String(number), text: title }));
    select.replaceChildren(...options);
    select.value = String(app.state.text);
    find("text-choice").hidden = options.length < 2;
  };
  fill();
  addEventListener("regard-texts", fill); // a view that captured a new text says so
  select.addEventListener("change", () => {
    const text = Number(select.value);
    const original = app.meta.texts[text].edited?.text ?? text;
    const whole = { row: -1, col: -1, token: -1, x: -1, y: -1, zoom: 0 };
    app.set(original === app.runs.original ? { text } : { text, ...whole }); // the same tokens stay in view
  });
  return select;
}

start();
