// The types of a survey's data, made by `survey_rows.py`. Names here are global.

/** What a survey of a corpus found of every head. */
interface Survey {
  model: string;
  windows: number;
  tokens: number;
  /** The names of all scores. */
  names: string[];
  heads: SurveyRow[];
}

interface SurveyRow {
  layer: string;
  head: number;
  label: string | null;
  labels: string[];
  sentence: string;
  /** Those that are defined. */
  scores: Record<string, number>;
}

/** The examples of a head, strongest first, with the tokens and distances of its strong weights. */
interface SurveyHead {
  examples: SurveyExample[];
  queries: { token: string; share: number }[];
  keys: { token: string; share: number }[];
  distances: { from: number; below: number; share: number }[];
}

/** Tokens of a window around a query and its strongest keys. */
interface SurveyExample {
  window: number;
  weight: number;
  /** The place of the query among the tokens. */
  query: number;
  /** Of the tokens in the window. */
  positions: number[];
  tokens: string[];
  /** Places of keys, with the query's weights. */
  keys: [number, number][];
}
