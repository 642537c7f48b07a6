// @ts-check
// Starts the page: opens the source, makes the views when they are first wanted, and follows the state.

import { element, makeButton, reveal } from "./parts/dom.js";
import { openGlossary } from "./parts/glossary.js";
import { HeadRows } from "./data/head_rows.js";
import { isPictureAlone } from "./data/patch_layout.js";
import { ProgressPanel } from "./parts/progress_panel.js";
import { makeTheme } from "./parts/theme.js";
import { ReadingBox } from "./reading/reading_box.js";
import { makeTextChoice } from "./reading/text_choice.js";
import { RunBanner } from "./runs/banner.js";
import { EditedRuns } from "./runs/edited_runs.js";
import { makeState, namesMap, typedText } from "./state.js";
import { Story } from "./story/story.js";
import { offeredViews } from "./views.js";

/** @param {string} id */
const find = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/**
 * Starts the page.
 * @param {(onProgress: (progress: OpeningProgress) => void) => Promise<Source>} open
 */
export async function start(open) {
  makeTheme(/** @type {HTMLButtonElement} */ (find("theme")));
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault(); // what stands behind # is the reader's place
    find("main").focus();
  });
  const panel = new ProgressPanel("opening");
  find("main").append(panel.box);
  panel.show("Opening");
  let source;
  try {
    source = await open(({ doing, done, of, cancel }) =>
      panel.show(doing[0].toUpperCase() + doing.slice(1), { done, of, unit: "layers", cancel }),
    );
  } catch (error) {
    const text = `The page could not be opened. ${error.message}`;
    find("main").replaceChildren(element("p.empty", text));
    return;
  }
  find("main").replaceChildren();
  run(source);
}

/** @typedef {{ root: HTMLElement, view: View }} MadeView */

/** @param {Source} source */
function run(source) {
  /** @type {Map<number, string>} */
  const typed = new Map(); // texts that a link spells out, by their numbers
  const state = makeState(typed, (now) => settled(source.meta, now).view);
  find("glossary").addEventListener("click", () => openGlossary());
  addEventListener("regard-term", (event) => {
    const { label, hint } = /** @type {CustomEvent} */ (event).detail;
    openGlossary(label, hint);
  });
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer = 0;
  /** @type {App} */
  const app = {
    source,
    runs: /** @type {any} */ (null), // below, because it needs the rest
    headRows: new HeadRows(source),
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
  const views = offeredViews(app.meta);
  /** @type {Map<ViewEntry, MadeView>} */
  const made = new Map();
  /** @type {MadeView | null} */
  let current = null;

  makeTabs(views, app);
  const texts = makeTextChoice(app, /** @type {HTMLSelectElement} */ (find("text")), find("text-choice"));
  const reading = new ReadingBox(app, typed);
  find("text-choice").after(reading.box);
  const story = new Story(app, reading);
  find("main").before(story.box);
  addEventListener("regard-texts", () => {
    texts.fill();
    reading.fill();
  });

  const follow = () => {
    const view = views.find((one) => one.name === app.state.view) ?? views[0];
    if (!made.has(view)) {
      const root = element("section.view", { id: `view-${view.name}`, role: "tabpanel" });
      root.setAttribute("aria-labelledby", `tab-${view.name}`);
      find("main").append(root);
      made.set(view, { root, view: new view.View(root, app) });
    }
    const now = /** @type {MadeView} */ (made.get(view));
    if (current !== now) {
      if (current) current.root.hidden = true;
      current?.view.hide();
      now.root.hidden = false;
      current = now;
    }
    for (const one of views) {
      const tab = find(`tab-${one.name}`);
      tab.setAttribute("aria-selected", String(one === view));
      tab.tabIndex = one === view ? 0 : -1;
      if (one === view) reveal(tab, find("tabs"));
    }
    find("model").textContent = app.meta.texts[app.state.text].model;
    texts.show();
    banner.draw();
    story.show(app.state);
    now.view.show(app.state);
  };
  state.on(follow);
  source.attach?.(app);
  addEventListener("regard-theme", follow);
  addEventListener("unhandledrejection", (event) => {
    event.preventDefault();
    if (event.reason?.name !== "AbortError") app.status(event.reason?.message ?? "Something went wrong.");
  });
  follow();
  const wanted = typedText(location.hash);
  if (wanted && app.meta.can.capture) reading.readThis(wanted);
}

/**
 * The state with what it leaves open filled in, and what does not exist replaced by the first that does.
 * @param {Meta} meta
 * @param {State} now
 * @returns {State}
 */
function settled(meta, now) {
  const known = Number.isInteger(now.text) && meta.texts[now.text] && !meta.texts[now.text].removed;
  const text = known ? now.text : meta.texts.findIndex(({ removed }) => !removed);
  const layers = meta.texts[text].layers;
  const named = (/** @type {string | undefined} */ key) => layers.find((one) => one.key === key);
  const layer = named(now.layer) ?? named(meta.start?.layer) ?? layers[0];
  const wanted = [now.head, layer.key === meta.start?.layer ? meta.start.head : -1];
  const head = wanted.find((one) => layer.heads.includes(one)) ?? layer.heads[0];
  const within = (/** @type {number} */ value, /** @type {number} */ size) =>
    Number.isInteger(value) && value >= 0 && value < size ? value : -1;
  return {
    ...now,
    text,
    head,
    view: offeredViews(meta).some(({ name }) => name === now.view) ? now.view : firstView(meta, text),
    layer: layer.key,
    row: within(now.row, layer.rows),
    col: within(now.col, layer.cols),
  };
}

/**
 * The view of a page whose address names none that there is.
 * @param {Meta} meta
 * @param {number} text
 */
function firstView(meta, text) {
  if (meta.survey) return "survey";
  const { tokens, predictions } = meta.texts[text];
  if (isPictureAlone(meta.texts[text])) return "image";
  // Text says what the model expects, and where it looked it up.
  return tokens && predictions && !namesMap(location.hash) ? "text" : "map";
}

/**
 * @param {ViewEntry[]} views
 * @param {App} app
 */
function makeTabs(views, app) {
  const tabs = views.map((view) => {
    const names = { class: "tab", id: `tab-${view.name}`, role: "tab", "aria-controls": `view-${view.name}` };
    return makeButton(view.title, () => app.set({ view: view.name }), names);
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
