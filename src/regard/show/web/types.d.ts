// The types of the page's data, for the type checker alone: browsers never see this file.
// Names here are global, so that modules use them without imports.

/** What the reader looks at; `state.js` lists every name with its default. */
type State = typeof import("./state.js").DEFAULTS;

/** What every view is handed. */
interface App {
  source: Source;
  runs: import("./runs/edited_runs.js").EditedRuns;
  /** Scores, labels and sentences of heads. */
  headRows: import("./data/head_rows.js").HeadRows;
  readonly meta: Meta;
  readonly state: State;
  set(changes: Partial<State>): void;
  on(listener: (state: State) => void): void;
  /** Shows a message for some seconds; "" takes it back. */
  status(message: string, seconds?: number): void;
}

/** Where a view stands. */
type ViewPlace = [root: HTMLElement, app: App];

interface View {
  show(state: State): void;
  hide(): void;
}

type ViewEntry = import("./views.js").ViewEntry;

// ---- What there is: `meta`, made by `Contents.meta` in Python

/** The constants and words that Python and the page share. */
interface SharedSettings {
  /** Cells to a side of a tile. */
  tile: number;
  /** Pixels to a side of a thumbnail. */
  thumb: number;
  scores: ScoreWords[];
  /** The names of characters that nobody sees. */
  invisible: Record<string, string>;
  measures: Measures;
}

/** The constants of scores, labels, sentences and thumbnails, which the model of a page computes. */
interface Measures {
  /** Tokens that count as local, the query's own among them. */
  near: number;
  /** Of the eviction score: the numbers of first and of latest keys that are kept. */
  policy: { first: number; latest: number };
  /** Queries that have to see a sink key, if not more than half of them do. */
  min_queries: number;
  /** Scores that many heads have beside their main function. */
  secondary: string[];
  /** Above uniform attention, and times the interval, that a label needs. */
  margin: number;
  widening: number;
  /** Normalised entropy from which, and up to which, it is worth a sentence. */
  wide: number;
  narrow: number;
  /** Queries for each row of a thumbnail, and the weights of a head that are computed for it, at most. */
  sampled: number;
  most_weights: number;
}

interface ScoreWords {
  name: string;
  title: string;
  /** One sentence that says what it measures. */
  about: string;
}

interface Meta extends SharedSettings {
  model: string;
  texts: TextMeta[];
  can: { generate: boolean; capture: boolean; values: boolean; cut: boolean; retained: boolean };
  time: TrainingRun | null;
  survey: Survey | null;
  example: StageExample;
  /** The lines of a generation that was recorded when the page was made. */
  generation: GenerationLine[] | null;
  /** What a reader sees first. */
  start: HeadOfLayer | null;
  /** Keys that the steps of a row show, beside the first one and the query's own. */
  strongest: number;
  /** By how much a saved page's weights are off, at most; a served page's are not. */
  precision?: { relative: number; absolute: number; rows: number };
  /** The lookup at the telling token of the first text, recorded where the page has no model. */
  lookup?: Lookup | null;
  /** Heads of the first text that the file leaves out to stay small, as "4.0". */
  left_out?: string[];
  /** What rounding the weights of a saved page's model changed, measured on its first text. */
  rounding?: Rounding | null;
}

/** A head, by its layer's key and its number in the model. */
interface HeadOfLayer {
  layer: string;
  head: number;
}

/** The probability of the token that the model expects after a position, with heads cut. */
interface Lookup {
  position: number;
  /** The heads that look it up. */
  heads: HeadOfLayer[];
  /** Without them; null if it is below all that are known, undefined while the model runs. */
  off: number | null | undefined;
  /** Without as many random heads, for each draw. */
  random: (number | null)[];
}

interface Rounding {
  /** The mean loss before and after, and */
  losses: [number, number] | null;
  /** the share of positions with the same likeliest token; null without predictions. */
  same: number | null;
  /** The largest change of a head's score. */
  score: number;
  /** Heads whose label changed. */
  labels: number;
}

interface TextMeta {
  title: string;
  /** The name of the model that read it. */
  model: string;
  tokens: string[] | null;
  target_tokens: string[] | null;
  /** The names of the tokens of a vision tower. */
  [patches: `patches_${number}`]: string[];
  /** The pictures that the model read; null without any. */
  pictures: PicturesMeta | null;
  /** The first token that was generated. */
  boundary: number | null;
  layers: Layer[];
  /** Of the words and sentences of each list of tokens the first tokens, and the number of all tokens. */
  spans: Partial<Record<TokenList, Record<UnitName, number[]>>>;
  /** What the cells of a map can stand for, beside weights. */
  shades: ShadeName[];
  /**
   * After which queries there are contributions to a logit: where to begin, which ones, and to which tokens,
   * likeliest first; null for all.
   */
  predicted: { start: number; positions: number[] | null; tokens: number[] | null } | null;
  /** The query that a reader sees first; null for a text that is gone. */
  telling: number | null;
  /** Attention that could not be captured. */
  missing: { name: string; kind: string }[];
  /** Modules that mix tokens without being attention, as convolutions do. */
  others: { name: string; kind: string }[];
  /** What the model expected on average; null if it makes no predictions. */
  predictions: { loss: number | null; tokens: number; likeliest: number } | null;
  /** What was cut, if this is not the model's own run. */
  edited: EditedRun | null;
  /** A text or an edited run that is gone; its number is not used again. */
  removed: boolean;
}

/** A run of the model with something cut. */
interface EditedRun {
  /** The number of the text that the model read; null if its own run is not on this page. */
  text: number | null;
  cuts: Cut[];
  /** The interventions in the library's words. */
  edits: string[];
  /** What it did to the predictions; null if there are none. */
  changes: Changes | null;
  /** The mean loss with random heads cut instead; null if it is not known. */
  random?: number | null;
}

/** A head, or edges from some queries to some keys; spans are [first, after the last]. */
type Cut = { kind: "head"; layer: string; head: number } | EdgeCut;

interface EdgeCut {
  kind: "edges";
  layer: string;
  /** null means every head of the layer. */
  head: number | null;
  queries: [number, number];
  keys: [number, number];
}

/** The mean loss without and with the cuts, and the tokens whose probability changed the most. */
interface Changes {
  before: number | null;
  after: number | null;
  most: { position: number; before: number; after: number }[];
}

/** What the model expects after a position. */
interface LikelyToken {
  id: number;
  token: string;
  probability: number;
}

interface Prediction {
  position: number;
  likeliest: LikelyToken[];
  /** The token that follows in the text; null if none does. */
  next: { token: string | null; probability: number; rank: number; loss: number } | null;
}

/** Spans of tokens, one after another: every token belongs to one. */
type UnitName = "words" | "sentences";

/** What stands on an axis of a layer. */
interface TokenAxis {
  /** The tokens of its list, or its units; null if they are not known. */
  tokens: string[] | null;
  /** The one that the axis begins with. */
  from: number;
  layout: PatchLayout;
  inUnits?: boolean;
}

/** The units along an axis of a layer. */
interface UnitAxis {
  /** Where each begins on the axis, and the size of the axis. */
  edges: number[];
  /** The texts of all units of the list of tokens. */
  texts: string[];
  /** The one that the axis begins with. */
  from: number;
}

/**
 * What a cell stands for: the weight; the weight times the norm of what the value adds to the residual stream; or
 * what it adds to the logit of a token.
 */
type ShadeName = "weights" | "values" | "logit";

/** What the cells of a map and the shades of a text stand for. */
interface Quantity {
  shade: ShadeName;
  units: "tokens" | UnitName;
  /** The text whose words and sentences are taken. */
  unitsOf: number;
  /** Whether they are those of a head less those of another. */
  difference?: boolean;
  /** Of shade "logit": the query, and the token that may follow it. */
  position: number;
  token: number;
  /** Whether the weights are those of a linear layer, which have either sign. */
  linear?: boolean;
}

/** A layer as it ran on a text. */
interface Layer {
  key: string;
  name: string;
  stack: string;
  number: number;
  /** The heads that were captured, by their numbers in the model. */
  heads: number[];
  kv_heads: number;
  /** Query heads for each key/value head. */
  group: number;
  width: number;
  value_width: number | null;
  scale: number;
  softcap: number | null;
  /** The recurrence of a linear layer in words, "" for softmax attention. */
  recurrence?: string;
  /** On a saved page: whether the recurrence of a linear layer has a delta rule. */
  delta_rule?: boolean;
  /** Whether heads have a learned sink logit. */
  sinks: boolean;
  /** Which keys queries see; "full" if all of them. */
  mask: string;
  /** What is added to the scores by position, and hides nothing; "" if nothing is. */
  bias: string;
  window: number | null;
  rows: number;
  cols: number;
  queries_of: TokenList;
  keys_of: TokenList;
  /** The token that the first query stands for; null if the tokens are not known. */
  queries_from: number | null;
  keys_from: number | null;
  evidence: Evidence;
  /** If its rows and columns are words or sentences. */
  units?: { name: UnitName; queries: UnitAxis; keys: UnitAxis };
  /** Where a saved page keeps it. */
  block?: string;
  mask_block?: string;
  values_block?: string;
}

type TokenList = "tokens" | "target_tokens" | `patches_${number}`;
type Axis = "queries" | "keys";

/** What is known of how far a layer's maps are from what the model computed. */
interface Evidence {
  certified: boolean;
  text: string;
  problem: string | null;
  /** Why the rows and columns are not known to be tokens; null or absent if they are. */
  unplaced?: string | null;
  difference: number | null;
  allowed: number | null;
  row_sums: number | null;
  rows: number;
  of: number;
}

/** What heads did at each evaluation of a training run. */
interface TrainingRun {
  name: string;
  steps: number[];
  text?: Record<string, ScoreHistory>;
  repeats?: Record<string, ScoreHistory>;
  /** What a monitor heard, of training batches. */
  batch?: Record<string, ScoreHistory>;
  /** The first alarms of a monitor, a sentence each. */
  alarms?: string[];
  validation: (number | null)[];
  sample: string[];
  loss: { steps: number[]; values: (number | null)[] };
}

interface ScoreHistory {
  heads: (number | null)[][][]; // step, layer, head
  null: (number | null)[]; // step
}

/** The small example that the stages share. */
interface StageExample {
  tokens: string[];
  x: number[][];
  projections: Record<"W_q" | "W_k" | "W_v", number[][]>;
  stages: Stage[];
}

interface Stage {
  name: string;
  about: string;
  mask: string;
  projected: boolean;
  heads: RowSteps[][];
  apart: number;
}

// ---- Where the numbers come from

/** A server, or the file itself: both answer the same questions. */
interface Source {
  meta: Meta;
  /** Called once the page stands, where it has to keep in step with something around it. */
  attach?(app: App): void;
  /** How many tiles to ask for at a time. */
  atOnce: number;
  thumbs(text: number, layer: string): Promise<Thumbs>;
  tile(question: TileQuestion, signal?: AbortSignal): Promise<Tile>;
  /** A weight for each key; the head or the layer may be "mean". */
  row: AskLine;
  /** A weight for each query. */
  column: AskLine;
  /** The same of one layer, which is there much sooner. */
  layerHeads(text: number, layer: string): Promise<HeadScores[]>;
  /** Where the logit of a token after a position comes from; token -1 is the likeliest. */
  attribution(text: number, position: number, token: number): Promise<Attribution>;
  steps(text: number, layer: string, head: number, row: number): Promise<RowSteps>;
  /** What cache policies keep of a layer's heads; it refuses for a text that Python has not measured. */
  retained(text: number, layer: string): Promise<LayerRetention>;
  prediction(text: number, position: number): Promise<Prediction>;
  /** What a survey kept of a head, where `meta.survey` is one that has this head. */
  surveyHead(layer: string, head: number): Promise<SurveyHead>;
  /** Runs the model again on a text, and unless `random` is false with random heads cut; gives the edited run's number. */
  cut(
    text: number,
    cuts: Cut[],
    onLine: (line: CaptureLine) => void,
    signal: AbortSignal,
    random?: boolean,
  ): Promise<number>;
  /** Removes a text or an edited run; gives the number of the text to show next. */
  remove(text: number): Promise<number>;
  /**
   * Has the model read a text; gives its number. It refuses, as `cut` and `generate` do, where `meta.can` says no, and
   * throws a `TooLongError` for a text of more tokens than the model can read.
   */
  capture(
    text: string,
    onLine: (line: CaptureLine) => void,
    signal: AbortSignal,
    options?: ReadingOptions,
  ): Promise<number>;
  generate(
    options: { text: string; tokens: number; temperature: number },
    onLine: (line: GenerationLine) => void,
    signal: AbortSignal,
  ): Promise<void>;
}

/** Answers a question: the question by its name, and what it is about. */
type AskPage = (name: keyof Answers, question: any, signal?: AbortSignal) => Promise<any>;

type AskLine = (
  text: number,
  layer: string,
  head: number | "mean",
  index: number,
  quantity?: Quantity,
) => Promise<Float32Array>;

interface Thumbs {
  pictures: Uint8Array; // heads · thumb · thumb
  sinks: { key: number; share: number }[]; // head
}

/** Cells of 2^z × 2^z tokens or other units, `settings.tile` to a side or fewer at the edges. */
interface Tile {
  mass: Float32Array; // of what a cell stands for
  max: Float32Array; // the greatest weight; 0 where cells stand for something else; -1: hidden by the mask
  rows: number;
  cols: number;
}

/** A tile with the canvas that it was painted on. */
interface PaintedTile extends Tile {
  canvas?: HTMLCanvasElement;
  style?: string;
  clipped?: boolean; // whether a number lies beyond the end of the colours
}

/** A token that may follow a position. */
interface Candidate {
  id: number;
  token: string;
  probability: number | null;
}

/** The parts of a token's logit: embedding, heads, MLPs and rest add up to it. */
interface Attribution {
  position: number;
  token: Candidate;
  candidates: Candidate[];
  logit: number;
  embedding: number;
  heads: Record<string, number[]>; // by the layer's key
  mlps: Record<string, number>;
  rest: number;
}

/** What one head does on a text. */
interface HeadScores {
  /** Of a head that attends among patches. */
  outliers?: Outlier[];
  layer: string;
  head: number;
  kv_head: number;
  label: string | null;
  labels?: string[];
  /** The key that receives the most. */
  sink_key?: number | null;
  /** The labels in words, such as "looks 24 back". */
  label_words?: string[];
  /** What the head does, in one sentence. */
  sentence?: string;
  scores: Record<string, Score>;
}

interface Score {
  value: number | null;
  null?: number | null;
  shuffled?: number | null;
  low?: number | null;
  high?: number | null;
  without_sink?: number | null;
}

/** The whole computation of one row. */
interface RowSteps {
  row: number;
  position: number;
  q: number[];
  keys: KeySteps[];
  output: number[] | null;
  visible: number;
  lse: number | null;
  sum: number;
  scale: number;
  softcap: number | null;
  shapes: { T: number; S: number; D: number; E: number | null; H: number; G: number };
}

interface KeySteps {
  key: number;
  k: number[];
  score: number;
  scaled: number;
  capped: number;
  added: number;
  visible: boolean;
  weight: number;
  v: number[] | null;
}

/** What cache policies keep of the attention of a layer's heads, beside two baselines: "random" and "best". */
interface LayerRetention {
  /** Why the layer was not measured, as a sentence; it then has nothing else. */
  why?: string;
  heads: number[];
  tokens: number;
  policies: string[];
  budgets: number[]; // numbers of keys, increasing
  shares: (number | null)[][][]; // policy, budget, head; null where nothing is lost
  needed: (number | null)[][]; // policy, head: the budget that keeps 95 %, null if none does
}

/** How a text is read. */
interface ReadingOptions {
  /** How many tokens; all by default. */
  first?: number;
  /** The ids of tokens that the model generated, which are read after the text. */
  continuation?: number[];
}

/** What a server does before it has something to show; `doing` as in "reading the text". */
interface OpeningProgress {
  doing: string;
  done: number;
  of: number;
  cancel(): void;
}

interface CaptureLine {
  /** `share` of the whole, from 0 to 1, where it is known more finely than by layers. */
  progress?: { doing: string; done: number; of: number; share?: number };
  text?: number;
  /** The text has more tokens than can be read. */
  too_long?: { tokens: number; most: number };
}

interface GenerationLine {
  start?: GenerationStart;
  step?: GenerationStep;
  /** What was found when a step was computed without the cache, after the others. */
  again?: { step: number; seconds: number; difference: number; same: boolean };
  end?: { why: string };
  /** The number of the text, with what was generated, that the page holds. */
  captured?: number;
}

interface GenerationStart {
  tokens: string[];
  layers: number;
}

/** The same number of both ways. */
interface BothWays {
  cached: number;
  recomputed: number;
}

/** The seconds of both ways; null where a token was not computed without the cache. */
interface BothTimes {
  cached: number;
  recomputed: number | null;
}

interface GenerationStep {
  token: string;
  token_id: number;
  position: number;
  seconds: BothTimes;
  computed: BothWays;
  keys_read: BothWays;
  cache_bytes: number;
  /** Between the logits of both ways, and whether both choose the same token; null without the second. */
  difference: number | null;
  same: boolean | null;
}

/** A saved page's block of data. */
interface PackedField {
  name: string;
  type: "u8" | "u32" | "i16" | "f16" | "f24" | "f32" | "f64";
  shape: number[];
}

interface SavedData {
  meta: Meta;
  blocks: Record<string, PackedField[]>;
  sinks: Record<string, Thumbs["sinks"]>[]; // text
  heads: HeadScores[][]; // text
  attributions: Attribution[][]; // text
  retained: (Record<string, LayerRetention> | null)[]; // text, layer
  words: string[][]; // text: of the tokens that are likely somewhere
  /** The model that this file holds; null if there is none. */
  model: ModelData | null;
}

/** The arrays of a block by name: of a layer, of its mask, of its values, or of a text's thumbnails. */
interface Arrays {
  q: Float32Array; // H · T · D, and
  k: Float32Array; // G · S · D, in steps if there are any:
  q_step?: Float32Array; // H · D
  k_step?: Float32Array; // G · D
  mean: Float32Array; // G · D, of the keys
  lse: Float32Array | Float64Array; // H · T
  offsets: Uint32Array;
  ranges: Uint32Array;
  relative?: Float32Array;
  dense?: Float32Array;
  v: Float32Array; // G · S · E, in steps if there are any:
  v_step?: Float32Array; // G · E
  factors: Float32Array; // H · S
  decay: Float32Array; // of a linear layer, H · S or H · S · D
  beta: Float32Array; // H · S
  skip: Float32Array; // H
  pictures: Uint8Array;
  ids: Uint32Array; // of the words of a text's predictions
  places: Uint32Array; // T · k, in these words
  probabilities: Float32Array; // T · k
  losses: Float32Array; // T − 1
  ranks: Uint32Array; // T − 1
}

/** One head as `weights.js` computes with it. */
interface HeadArrays {
  T: number;
  S: number;
  D: number;
  q: Float32Array; // T · D
  k: Float32Array; // S · D, less their mean
  mean: Float32Array; // D
  lse: Float32Array | Float64Array; // T
  scale: number;
  softcap: number | null;
  /** Query i sees the keys `ranges[2n]` to before `ranges[2n + 1]` for n from `offsets[i]` to `offsets[i + 1]`. */
  offsets: Uint32Array; // T + 1
  ranges: Uint32Array;
  /** What is added to the scores, by key − query + T − 1. */
  relative: Float32Array | null;
  /** The same for every query and key. */
  dense: Float32Array | null;
}

/** The arrays of one head of a linear layer: q and k (S · D each) as they enter the recurrence, with norm and scale. */
interface LinearArrays extends Pick<HeadArrays, "T" | "S" | "D" | "q" | "k" | "offsets" | "ranges"> {
  /** The logarithm of what each token leaves of the state: S, or S · D if channels decay apart. */
  decay: Float32Array;
  /** How strongly each token is written, S. */
  beta: Float32Array;
  /** What a token's own weight has beside the recurrence. */
  skip: number;
  deltaRule: boolean;
}

type HeadMap = import("./source/arithmetic/weights.js").HeadMap;
type Head = import("./source/arithmetic/weights.js").Head;

/** What a tile, a row or a column is made of beside the weights. */
interface TileParts {
  /** Of each key: what its weights are multiplied with. */
  factors?: Float32Array | null;
  /** Where the units of the queries begin, and their end; null for tokens. */
  queries?: number[] | null;
  /** The same for the keys. */
  keys?: number[] | null;
}

// ---- A saved page asks, and its worker answers: `remote_weights.js` and `responder.js`

/** What both a worker and one end of a channel are. */
interface Port {
  postMessage(message: ToWorker | FromWorker, transfer?: Transferable[]): void;
  onmessage: ((event: MessageEvent) => void) | null;
  /** Of a worker that cannot start or that fails; a channel has no such event. */
  addEventListener(type: "error", listener: (event: ErrorEvent) => void): void;
}

/** What a long computation awaits between its parts, to let others go first; it throws to stop it. */
type Pause = () => Promise<void>;

interface LayerQuestion {
  text: number;
  layer: string;
}

interface TileQuestion extends LayerQuestion {
  head: number;
  z: number;
  i: number;
  j: number;
  quantity: Quantity;
}

/** About a row or a column; the head or the layer may be "mean". */
interface LineQuestion extends LayerQuestion {
  head: number | "mean";
  index: number;
  quantity: Quantity;
}

interface StepsQuestion extends LayerQuestion {
  head: number;
  row: number;
}

interface AttributionQuestion {
  text: number;
  position: number;
  /** -1 is the likeliest. */
  token: number;
}

/** Every question with its answer, by the name of the method that answers it. */
interface Answers {
  tile: [TileQuestion, Tile];
  row: [LineQuestion, Float32Array];
  column: [LineQuestion, Float32Array];
  steps: [StepsQuestion, RowSteps];
  thumbs: [LayerQuestion, Thumbs];
  layerHeads: [LayerQuestion, HeadScores[]];
  attribution: [AttributionQuestion, Attribution];
  prediction: [{ text: number; position: number }, Prediction];
  retained: [LayerQuestion, LayerRetention];
  surveyHead: [HeadOfLayer, SurveyHead];
}

type ToWorker =
  | ({ kind: "open" } & SavedData)
  | { kind: "ask"; id: number; name: keyof Answers; question: object }
  | { kind: "stop"; id: number }
  /** A block's text, or why there is none. */
  | { kind: "block"; name: string; text?: string; error?: string };

type FromWorker =
  | { kind: "ready" }
  /** A block is needed. */
  | { kind: "block"; name: string }
  | { kind: "answer"; id: number; answer: unknown }
  /** How far a long answer is. */
  | { kind: "line"; id: number; line: object }
  | { kind: "error"; id: number; error: string };

// ---- What is drawn

interface Size {
  width: number;
  height: number;
}

/** A point in pixels, from the upper left. */
type Point = [number, number];

/** A tile's level, row and column. */
type TilePlace = [number, number, number];

/** From a weight to a place on the colour ramp. */
interface ColourScale {
  scale: string;
  top: number;
  bottom: number;
  /** Whether numbers below 0 have colours, too: 0 is then in the middle. */
  signed: boolean;
  at(weight: number): number;
}

type ThemeName = "light" | "dark";

interface Ramp {
  colours: number[][];
  pixels: Uint32Array;
}

interface Rectangle {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

interface Cell {
  row: number;
  col: number;
  /** Tokens to a side. */
  size: number;
}

interface CellWeights extends Cell {
  mass: number;
  max: number;
}

/** A tile that stands for a part of the picture, or what is missing there. */
interface DrawnTile {
  tile: PaintedTile | null;
  z: number;
  i: number;
  j: number;
  /** What shall be seen of it, in tokens. */
  part: Rectangle;
}

/** How tiles are painted. */
interface Look {
  reduce: string;
  scale: ColourScale;
  /** Whether every number is 0. */
  blank: boolean;
  pixels: Uint32Array;
  /** A name for all this together. */
  style: string;
}

/** The key that receives the most attention of a head, and its mean weight. */
type Sink = Thumbs["sinks"][number];
type Choice = import("./parts/dom.js").Choice;

/** All that a drawing of the large map needs. */
interface Scene {
  width: number;
  height: number;
  gutter: { left: number; top: number };
  /** Pixels for the labels of an axis, if not as many as the gutter has. */
  labelRoom?: Record<Axis, number>;
  /** The size of a screen's pixel in ours: 1 / devicePixelRatio. */
  pixel: number;
  camera: import("./map/camera.js").Camera;
  z: number;
  drawn: DrawnTile[];
  complete: boolean;
  /** How many of the needed tiles are not there yet. */
  missing: number;
  needed: number;
  look: Look;
  weightAt(row: number, col: number): number | null;
  meta: Meta;
  text: number;
  state: State;
  layer: Layer;
  quantity: Quantity;
  thumb: HTMLCanvasElement | null;
  sink: Sink | null;
  boundary: { key: number; query: number } | null;
  hover: Cell | null;
  cursor: Cell | null;
  marked: { row: number; col: number };
  colours: DrawingColours;
  fonts: { token: string; title: string; number: string };
}

/** A scene with what it is drawn on, and how much of the picture the map takes. */
interface Plate extends Scene {
  context: Drawing;
  shown: Size;
}

interface DrawingColours {
  paper: string;
  sunken: string;
  ink: string;
  soft: string;
  faint: string;
  line: string;
  strongLine: string;
  accent: string;
  hatch: string;
  lattice: string;
}

/** A part of the page that is drawn: where to, and its style. */
interface DrawnPart {
  context: SvgDrawing;
  style: CSSStyleDeclaration;
}

/** A canvas's context, or what remembers drawings in the same language. */
type Drawing = CanvasRenderingContext2D | SvgDrawing;

interface ChartAxis {
  title: string;
  low: number;
  high: number;
  say(value: number): string;
}

interface ChartSeries {
  name?: string;
  kind: string;
  points: [number, number | null][];
  /** What the curve is of, if it can be pointed at: a name to tell it from others, and one to read. */
  id?: string;
  about?: string;
}

/** A curve of a drawn chart that can be pointed at. */
interface ChartCurve {
  id: string;
  about: string;
  line: SVGElement;
  /** Its points, in pixels of the chart, and what each says. */
  places: Point[];
  values: string[];
}

interface ChartData {
  series: ChartSeries[];
  x: ChartAxis;
  y: ChartAxis;
  /** A short name; more is in the description. */
  label: string;
  description?: string;
  /** A place on the x axis. */
  mark?: number | null;
}

/** The weights of a row or a column, as the text is shaded by them. */
interface Shaded {
  token: number;
  weights: Float32Array;
  /** The token that the first weight belongs to. */
  from: number;
  /** The tokens that are left out of the shading. */
  without: Set<number>;
  /** The weight at the end of the colours. */
  top: number;
  /** Whether numbers may be below 0. */
  signed: boolean;
}

/** The strongest weights of a row or a column. */
interface Ranking {
  best: { token: number; w: number }[];
  /** Of all weights. */
  total: number;
  /** How many tokens have a weight. */
  seen: number;
}

/** What the chosen token attends to if `looking`, else what attends to it. */
interface TokenRanking {
  tokens: string[];
  shaded: Shaded;
  ranking: Ranking;
  looking: boolean;
  quantity: Quantity;
}

/** What the Text view writes: the tokens, and where on them the layer's queries and keys begin. */
interface WrittenText {
  tokens: string[];
  queries: number;
  keys: number;
  /** Where a second text begins, if one looks at another. */
  second?: number;
}

/** A name and a value to read beside the map. */
type Fact = [name: string, value: string];

/** The parts of a head's card in the gallery. */
interface HeadCard {
  card: HTMLLIElement;
  canvas: HTMLCanvasElement;
  /** Opens the head in the Map. */
  button: HTMLButtonElement;
  /** Takes the head to compare. */
  take: HTMLButtonElement;
  /** Cuts the head, where there is a model. */
  cut: import("./runs/head_switch.js").HeadSwitch;
  lines: HTMLElement;
  head: HeadScores;
}

/** A head of a layer on a text. */
interface HeadPlace {
  text: number;
  layer: string;
  head: number;
}

/** What the list of steps is made of: one row's computation, and the names around it. */
interface StepContext {
  work: RowSteps;
  layer: Layer | null;
  example: Stage | null;
  /** The query's token. */
  name: string;
  /** The token of a key. */
  key(index: number): string;
  /** Of all weights, added up on the page. */
  sum: number;
  /** The keys that are shown. */
  keys: KeySteps[];
  /** What the others get together. */
  rest: number;
  app: App;
  state: State;
}

/** Without what depends on how many keys are shown. */
type FoundSteps = Omit<StepContext, "keys" | "rest" | "app" | "state">;

interface NamedVector {
  name: string;
  values: number[];
}

interface StepEntry {
  title: string;
  about: string;
  shape: string;
  body: Node[];
}
