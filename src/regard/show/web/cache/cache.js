// @ts-check
// What a cache saves, measured while the model writes with it and without; and what one that forgets loses.
// It knows the lines that a generation sends (cli/opening.py) and the tables of `eviction.py`.

import { last } from "../common/arrays.js";
import { chart } from "../common/chart.js";
import { element } from "../common/dom.js";
import { bytes, count, milliseconds, some } from "../common/format.js";
import { visible } from "../common/tokens.js";
import { drawComputed } from "./computed.js";
import { policy } from "./policy.js";

const TOKENS = 24;

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @returns {View}
 */
export function cache(root, app) {
  const prompt = element("textarea", {
    class: "prompt",
    rows: 3,
    maxlength: 20000,
    "aria-label": "The text to go on with",
    spellcheck: "false",
  });
  const tokens = element("input", {
    type: "number",
    class: "place-input",
    min: 1,
    max: 256,
    value: TOKENS,
    "aria-label": "How many tokens to write",
  });
  const go = element("button", { class: "button strong", type: "button", text: "Generate" });
  const form = element(
    "div",
    { class: "cache-form" },
    prompt,
    element(
      "div",
      { class: "fields" },
      element("label", { class: "field" }, element("span", { class: "quiet small", text: "Tokens" }), tokens),
      go,
    ),
  );
  const lead = element("p", { class: "lead" });
  const said = element("p", { class: "note", role: "status" });
  const written = element("p", { class: "written", "aria-label": "What was written" });
  const table = element("table", { class: "measured" });
  const apartness = element("p", { class: "note" });
  const times = chart(240);
  const picture = element("canvas", { class: "computed", role: "img" });
  const [run, read] = [element("i", { class: "run" }), element("i", { class: "read" })];
  const measured = element(
    "section",
    { class: "cache-measured" },
    written,
    element(
      "div",
      { class: "cache-figures" },
      element("section", {}, element("h2", { text: "Measured" }), table, apartness),
      element("section", {}, element("h2", { text: "Time for each token" }), times),
      element(
        "section",
        { class: "whole" },
        element("h2", { text: "What goes through the model" }),
        element(
          "p",
          { class: "small quiet" },
          "A line a token written, a column a token of the text: ",
          element("span", { class: "computed-key" }, run, "computed"),
          element("span", { class: "computed-key" }, read, "kept in the cache and read"),
        ),
        picture,
      ),
    ),
  );
  const losing = element("section", {
    class: "cache-policy",
    "aria-label": "What a cache that forgets would lose",
  });
  root.append(
    element(
      "div",
      { class: "scroll", tabindex: "-1" },
      element("div", { class: "column" }, lead, form, said, measured, losing),
    ),
  );

  /** @type {State | null} */
  let state = null;
  /** @type {GenerationStart | null} */
  let start = null;
  /** @type {GenerationStep[]} */
  let steps = [];
  /** @type {AbortController | null} */
  let running = null; // what stops it
  const paintComputed = () => {
    if (!steps.length) return;
    drawComputed(
      picture,
      steps,
      getComputedStyle(run).backgroundColor,
      getComputedStyle(read).backgroundColor,
    );
  };
  new ResizeObserver(paintComputed).observe(picture);
  const lost = policy(losing, app, () => (start && steps.length ? { steps, start } : null));

  async function generate() {
    if (running) {
      running.abort();
      return;
    }
    running = new AbortController();
    go.textContent = "Stop";
    steps = [];
    start = null;
    said.textContent = "The prompt goes through the model, both ways…";
    written.replaceChildren();
    const { window, sinks } = lost.chosen();
    try {
      await app.source.generate(
        { text: prompt.value, tokens: Number(tokens.value), window, sinks },
        take,
        running.signal,
      );
    } catch (error) {
      said.textContent =
        error.name === "AbortError" ? `Stopped after ${some(steps.length, "token")}.` : error.message;
    } finally {
      running = null;
      go.textContent = "Generate";
    }
  }

  /**
   * One line of a generation.
   * @param {GenerationLine} line
   */
  function take(line) {
    if (line.start) {
      start = line.start;
      written.replaceChildren(element("span", { class: "quiet", text: start.tokens.map(plain).join("") }));
    } else if (line.step) {
      steps.push(line.step);
      written.append(
        element("span", {
          class: "tok new",
          text: plain(line.step.token),
          title: both(line.step.seconds),
        }),
      );
      said.textContent = `Token ${steps.length}, measured both ways.`;
      draw();
    } else if (line.end) {
      const why =
        { end: "The model ended the text.", context: "The model’s context is full.", tokens: "" }[
          line.end.why
        ] ?? "";
      said.textContent = `${some(steps.length, "token")} written, each measured both ways. ${why}`;
    }
  }

  function draw() {
    measured.hidden = !steps.length;
    if (!steps.length) return;
    const layers = start?.layers ?? 0;
    /** @param {(step: GenerationStep) => number} pick */
    const sum = (pick) => steps.reduce((total, step) => total + pick(step), 0);
    /** @param {(step: GenerationStep) => number} pick */
    const middle = (pick) => {
      const later = steps.length > 1 ? steps.slice(1) : steps; // the first one reads the whole prompt
      const sorted = later.map(pick).sort((a, b) => a - b);
      return sorted[Math.floor(sorted.length / 2)];
    };
    const latest = last(steps);
    /**
     * @param {"computed" | "keys_read" | "seconds"} name
     * @returns {(step: GenerationStep) => number}
     */
    const cached = (name) => (step) => step[name].cached;
    /**
     * @param {"computed" | "keys_read" | "seconds"} name
     * @returns {(step: GenerationStep) => number}
     */
    const anew = (name) => (step) => step[name].anew;
    /** @type {[string, number, number, (n: number) => string][]} */
    const rows = [
      ["Tokens × layers computed", sum(cached("computed")) * layers, sum(anew("computed")) * layers, count],
      ["Keys read, all layers and heads", sum(cached("keys_read")), sum(anew("keys_read")), count],
      ["Time for a token (median)", middle(cached("seconds")), middle(anew("seconds")), milliseconds],
      ["Time for the first, with the prompt", steps[0].seconds.cached, steps[0].seconds.anew, milliseconds],
      ["Held in memory", latest.held, 0, (n) => (n ? bytes(n) : "nothing")],
    ];
    const same = steps.filter((step) => step.same).length;
    const apart = Math.max(...steps.map((step) => step.difference));
    table.replaceChildren(
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          ...["", "with the cache", "without", ""].map((text) => element("th", { text, scope: "col" })),
        ),
      ),
      element(
        "tbody",
        {},
        ...rows.map(([title, a, b, say]) =>
          element(
            "tr",
            {},
            element("th", { text: title, scope: "row" }),
            element("td", { text: say(a) }),
            element("td", { text: say(b) }),
            element("td", {
              class: "quiet",
              text: a > 0 && b > 0 && b / a >= 1.05 ? `${(b / a).toFixed(b / a < 10 ? 1 : 0)}× less` : "",
            }),
          ),
        ),
      ),
    );
    const often = same === steps.length ? "every time" : `${same} times of ${steps.length}`;
    apartness.textContent = `The logits are at most ${apart.toExponential(1)} apart; both ways choose the same token ${often}.`;
    /**
     * @param {(step: GenerationStep) => number} pick
     * @returns {[number, number][]}
     */
    const points = (pick) => steps.map((step) => [step.position, pick(step) * 1000]);
    const high = Math.max(...steps.flatMap((step) => [step.seconds.cached, step.seconds.anew])) * 1000;
    times.draw({
      label: `The time for each token; for the last ${both(latest.seconds)}`,
      x: {
        title: "tokens before it",
        low: steps[0].position,
        high: Math.max(latest.position, steps[0].position + 1),
        say: (x) => (Number.isInteger(x) ? String(x) : ""),
      },
      y: { title: "milliseconds", low: 0, high: high * 1.05, say: String },
      series: [
        { name: "without", kind: "other", points: points(anew("seconds")) },
        { name: "with", kind: "own", points: points(cached("seconds")) },
      ],
    });
    paintComputed();
    if (state) lost.show(state);
  }

  go.addEventListener("click", generate);
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate();
  });

  return {
    show(now) {
      const first = state === null;
      state = now;
      const recorded = app.meta.generation;
      const can = app.meta.can.generate;
      form.hidden = !can;
      if (first) prompt.value = opening(app.meta.texts[state.text]);
      if (!can && recorded && !steps.length) recorded.forEach(take);
      lead.textContent = can
        ? "Let the model go on with a text. Every token is computed twice, with the cache and without it, " +
          "and both are measured."
        : recorded
          ? "A generation that was recorded when this page was made: every token was computed twice, with the " +
            "cache and without it, and both were measured."
          : "Generating needs the model itself: run regard inspect to see here what a cache saves. What one that " +
            "forgets would lose is known from the maps.";
      if (!can && recorded) said.textContent = "";
      draw();
      lost.show(state);
    },
    hide() {
      running?.abort();
    },
  };
}

/** @param {string} token */
const plain = (token) =>
  token
    .split("\n")
    .map((line) =>
      line
        .split(" ")
        .map((part) => part && visible(part))
        .join(" "),
    )
    .join("\n");

/** @param {BothWays} seconds */
const both = ({ cached, anew }) => `${milliseconds(cached)} with the cache, ${milliseconds(anew)} without`;

/**
 * The first sentence of a text, to begin with.
 * @param {TextMeta} text
 */
function opening({ tokens }) {
  const text = (tokens ?? [])
    .filter((token) => !/^<[^>]*>$/.test(token))
    .join("")
    .trim();
  const end = text.slice(0, 400).search(/[.!?\n](\s|$)/);
  return end > 0 ? text.slice(0, end + 1) : text.slice(0, 200);
}
