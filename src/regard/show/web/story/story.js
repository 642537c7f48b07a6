// @ts-check
// The page's first line, above the text: what the model expects after the telling token, which head looked it up, and
// a switch that turns the lookup off. Below it are texts to try.

import { element, makeButton, makeSwitch } from "../parts/dom.js";
import { latest } from "../parts/controls.js";
import { percent } from "../data/format.js";
import { PLAIN } from "../data/quantity.js";
import { LOOKS_UP, recordedLookup, turnOff } from "./lookup.js";

/** Texts in which something is said twice. */
const EXAMPLES = {
  "a rhyme": "The cat sat on the mat. The dog sat on the log. The cat sat on the",
  "a new name":
    "Mary Quill met Tom Vexley at the harbour. Tom Vexley was late, and Mary Quill left. Then Tom Vex",
  "no sense": "blue stone river lamp seven dust. blue stone river lamp seven dust. blue stone river",
};

/** @typedef {{ open(): void, readThis(text: string): void }} TextReader the box for texts to read */

/** The story; `show()` follows the state. */
export class Story {
  /**
   * @param {App} app
   * @param {TextReader} reading
   */
  constructor(app, reading) {
    this.app = app;
    this.line = element("p.story-line");
    this.switch = makeSwitch("turn the lookup off", () => this.toggle());
    this.bars = element("ul.story-bars", { "aria-live": "polite" });
    this.below = element("p.quiet", { hidden: true }, "Below, every head is on.");
    const named = { class: "plain", "aria-label": "Hide the story" };
    const hide = makeButton("×", () => this.box.remove(), named);
    this.box = element(
      "section.story",
      { "aria-label": "What this page shows", hidden: true },
      element("div.story-top", this.line, hide),
      element("div.story-try", this.switch, this.bars, this.below),
    );
    if (app.meta.can.capture) this.box.append(this.examples(reading));
    /** @type {{ text: number, position: number, expected: LikelyToken } | null} */
    this.told = null;
    this.place = "";
    /** @type {AbortController | null} */
    this.running = null;
    this.look = latest((fresh) => this.find(fresh));
  }

  /** @param {TextReader} reading */
  examples(reading) {
    const buttons = Object.entries(EXAMPLES).map(([name, text]) =>
      makeButton(name, () => reading.readThis(text)),
    );
    const own = makeButton("your own text", () => reading.open());
    return element("p.story-examples", "Try ", ...buttons, own);
  }

  /** @param {State} state */
  show({ view, text, layer, head, row }) {
    const { telling, predictions, tokens, edited, layers } = this.app.meta.texts[text];
    const position = row >= 0 ? row : (telling ?? -1);
    const whole = layers.every(({ rows, cols }) => rows === tokens?.length && cols === rows);
    const tells = view === "text" && predictions && whole && !edited && position >= 0;
    if (!tells) this.box.hidden = true;
    const place = `${text} ${layer} ${head} ${position}`;
    if (!tells || place === this.place) return void (this.box.hidden = !tells);
    this.place = place;
    this.look();
  }

  /** @param {() => boolean} fresh */
  async find(fresh) {
    const { source, meta, state, headRows } = this.app;
    const { text, layer, head, row } = state;
    const position = row >= 0 ? row : (meta.texts[text].telling ?? 0);
    const [{ likeliest }, weights] = await Promise.all([
      source.prediction(text, position),
      source.row(text, layer, head, position, PLAIN),
    ]);
    if (!fresh()) return;
    this.running?.abort();
    this.told = { text, position, expected: likeliest[0] };
    const key = weights.indexOf(Math.max(...weights));
    const isCopy = meta.texts[text].tokens?.[key] === likeliest[0].token;
    this.line.replaceChildren(...this.words(key, weights[key], isCopy));
    const canTurnOff = meta.can.cut || recordedLookup(meta, text, position);
    this.switch.hidden = !canTurnOff;
    this.draw(null);
    this.box.hidden = false;
    if (!isCopy) return;
    const rows = await headRows.layer(0, layer); // a served page may still have to score them
    const isInduction = rows.some((one) => one.head === head && one.label === LOOKS_UP);
    if (fresh() && isInduction) this.line.append(element("span.quiet", " It is ", inductionTerm(), "."));
  }

  /**
   * @param {number} key the key that the head attends to most
   * @param {number} weight
   * @param {boolean} isCopy whether that key is the token that is expected
   */
  words(key, weight, isCopy) {
    const { app } = this;
    const { text, position, expected } = /** @type {NonNullable<Story["told"]>} */ (this.told);
    const tokens = app.meta.texts[text].tokens ?? [];
    const { layer, head } = app.state;
    const follows = tokens[position + 1] === expected.token;
    const next = follows ? this.word(position + 1, "from") : expected.token;
    const about =
      follows && next !== expected.token ? `${percent(expected.probability)} for its beginning` : "";
    const go = () => document.querySelectorAll(".text-body .tok")[key]?.scrollIntoView({ block: "center" });
    const place = isCopy ? "here" : `“${tokens[key].trim() || tokens[key]}”`;
    const here = makeButton(place, go, { class: "plain" });
    const share = `${percent(weight)} of its attention`;
    return [
      "After ",
      element("em", this.word(position, "to").trim()),
      " the model expects ",
      element("em", { title: about }, next.trim() || next),
      ` (${percent(expected.probability)}). `,
      isCopy ? `Head ${layer}.${head} looked it up, ` : `Head ${layer}.${head} attends most to `,
      here,
      isCopy ? ": " : " (",
      element(
        "span.quiet",
        isCopy ? `${share} is on what followed “${this.word(position, "to").trim()}” before.` : `${share}).`,
      ),
    ];
  }

  /**
   * The word around a token, up "to" it or "from" it.
   * @param {number} token
   * @param {"to" | "from"} part
   */
  word(token, part) {
    const { tokens, spans } = this.app.meta.texts[this.told?.text ?? 0];
    const edges = spans.tokens?.words ?? [];
    const start = edges.findLast((edge) => edge <= token) ?? token;
    const end = edges.find((edge) => edge > token) ?? token + 1;
    return (tokens ?? []).slice(part === "to" ? start : token, part === "to" ? token + 1 : end).join("");
  }

  async toggle() {
    const { told, app } = this;
    if (!told) return;
    this.running?.abort();
    if (this.switch.getAttribute("aria-checked") === "true") return this.draw(null);
    this.running = new AbortController();
    const { signal } = this.running;
    this.switch.setAttribute("aria-checked", "true");
    this.draw({ position: told.position, heads: [], off: undefined, random: [] });
    try {
      await turnOff(
        app,
        told.text,
        told.position,
        told.expected,
        (one) => signal.aborted || this.draw(one),
        signal,
      );
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  /**
   * The probability as a bar, and beside it those with heads cut; null if the lookup is on.
   * @param {Lookup | null} lookup
   */
  draw(lookup) {
    this.switch.setAttribute("aria-checked", String(lookup !== null));
    const before = this.told?.expected.probability ?? 0;
    const count = lookup?.heads.length ?? 0;
    const rows = [bar("as it is", [before], before)];
    if (lookup) {
      const off = lookup.off === undefined ? [] : [lookup.off];
      rows.push(bar(count ? `without ${headNames(lookup.heads)}` : "the model runs again…", off, before));
    }
    if (lookup?.random.length) {
      const others = count > 1 ? `without ${count} random heads` : "without a random head";
      rows.push(bar(lookup.random.length > 1 ? `${others}, drawn twice` : others, lookup.random, before));
    }
    this.bars.replaceChildren(...rows);
    this.below.hidden = !lookup;
  }
}

/** The name of such a head; the glossary opens at it. */
function inductionTerm() {
  const detail = { label: "Induction head" };
  const open = () => dispatchEvent(new CustomEvent("regard-term", { detail }));
  return makeButton("an induction head", open, { class: "plain" });
}

/**
 * Several heads are cut because all are labelled so; a single one may be that on which the page opens.
 * @param {HeadOfLayer[]} heads
 */
function headNames(heads) {
  const names = heads.map(({ layer, head }) => `${layer}.${head}`);
  return heads.length === 1 ? `head ${names}` : `the ${heads.length} induction heads ${names.join(", ")}`;
}

/**
 * Probabilities as a bar that moves to their mean from the one before.
 * @param {string} name
 * @param {(number | null)[]} probabilities null is below those that are known; empty while they are coming
 * @param {number} before
 */
function bar(name, probabilities, before) {
  const says = probabilities.map((one) => (one === null ? "hardly any" : percent(one))).join(", ");
  const mean = probabilities.reduce((sum, one) => (sum ?? 0) + (one ?? 0), 0) ?? 0;
  const track = element("span.story-track", { "aria-hidden": "true", "--share": before }, element("i"));
  if (probabilities.length)
    requestAnimationFrame(() => track.style.setProperty("--share", String(mean / probabilities.length)));
  return element("li", element("span", name), track, element("b", says));
}
