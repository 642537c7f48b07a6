// @ts-check
// What the page's texts are called: texts that one model read, or captures of several models.

/**
 * Whether the page shows captures of more than one model.
 * @param {Pick<Meta, "texts">} meta
 */
export function haveSeveralModels({ texts }) {
  const models = texts.filter(({ removed }) => !removed).map(({ model }) => model);
  return new Set(models).size > 1;
}

/**
 * What a choice among them is called.
 * @param {Pick<Meta, "texts">} meta
 */
export function textsName(meta) {
  return haveSeveralModels(meta) ? "Capture" : "Text";
}

/**
 * A text's title; of several models also which one read it.
 * @param {Pick<Meta, "texts">} meta
 * @param {number} text
 */
export function captureTitle(meta, text) {
  const { title, model } = meta.texts[text];
  return haveSeveralModels(meta) && model !== title ? `${title}, ${model}` : title;
}
