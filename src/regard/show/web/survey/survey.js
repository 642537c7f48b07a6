// @ts-check
// Every head over a whole corpus, as `regard survey` found it: a scatter of the heads over two scores, and what the
// survey kept of the chosen one.

import { headName } from "../heads/order.js";
import { chart } from "../parts/chart.js";
import { select } from "../parts/controls.js";
import { element } from "../parts/dom.js";
import { count, some } from "../data/format.js";
import { inListOrder, scoreAbout, scoreTitle } from "../data/score_words.js";
import { exportMenu } from "../picture/menu.js";
import { viewFigure } from "../picture/figure.js";
import { titleOnly } from "../picture/words.js";
import { PageView } from "../view.js";
import { HeadPanel } from "./head_panel.js";
import { chosenRow, chosenScores, scatterChart, surveyRows } from "./rows.js";

export class SurveyView extends PageView {
  /** @param {ViewPlace} place */
  constructor(...place) {
    super(...place);
    const { root, app } = this;
    this.survey = /** @type {Survey} */ (app.meta.survey); // there is no such view without one
    this.across = select("Horizontal score", (surveyAcross) => app.set({ surveyAcross }));
    this.up = select("Vertical score", (surveyUp) => app.set({ surveyUp }));
    this.which = select("Head", (surveyHead) => app.set({ surveyHead }));
    const save = exportMenu(app, {
      name: () => `survey-${this.names.across}-${this.names.up}`,
      picture: async () => {
        const titles = [this.names.across, this.names.up].map(scoreTitle).join(" and ");
        return viewFigure([this.column], titleOnly(`${this.survey.model || "Survey"}: ${titles}`));
      },
      table: () => surveyRows(this.survey),
    });
    const controls = element("div.bar-of-choices", this.across, this.up, this.which, save);
    this.lead = element("p.lead");
    this.about = element("p.note");
    this.scatter = chart(380, (surveyHead) => app.set({ surveyHead }));
    this.panel = new HeadPanel(app);
    const key = "A filled dot is a head with a label. Choose one with a click, or in the list above.";
    const plot = element(
      "section",
      { "aria-label": "Every head" },
      this.lead,
      this.about,
      this.scatter,
      element("p.note", key),
    );
    const grid = element("div.survey-grid", plot, this.panel.box);
    this.column = element("div.column.survey-column", grid);
    root.append(controls, element("div.scroll", this.column));
    this.names = chosenScores(this.survey, app.state);
    const { model, windows, tokens, heads } = this.survey;
    const read = `${some(windows, "window")} (${count(tokens)} tokens)`;
    this.lead.textContent = `${some(heads.length, "head")} of ${model || "a model"}, over ${read} of a corpus.`;
  }

  /** @param {State} state */
  show(state) {
    this.names = chosenScores(this.survey, state);
    const { across, up } = this.names;
    const names = inListOrder(this.survey.names);
    this.across.fill(names, across, scoreTitle);
    this.up.fill(names, up, scoreTitle);
    this.about.textContent = [across, up].map(definition).join(" ");
    const row = chosenRow(this.survey, state.surveyHead, up);
    const chosen = row ? headName(row) : "";
    this.which.fill(this.survey.heads.map(headName), chosen, (name) => name.replace("/", "."));
    this.scatter.draw(scatterChart(this.survey, this.names, chosen));
    if (row) this.panel.show(row);
  }
}

/**
 * A score's title and what it measures, as a sentence.
 * @param {string} name
 */
function definition(name) {
  const [title, about] = [scoreTitle(name), scoreAbout(name)];
  return about && `${title[0].toUpperCase()}${title.slice(1)}: ${about[0].toLowerCase()}${about.slice(1)}`;
}
