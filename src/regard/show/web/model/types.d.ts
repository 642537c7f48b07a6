// The types of the model that runs in a page, for the type checker alone.

/** `regard.gpt.Config` as JSON: what makes one GPT differ from another. */
interface ModelConfig {
  vocab_size: number;
  context_length: number;
  num_layers: number;
  num_heads: number;
  d_model: number;
  num_kv_heads: number;
  head_dim: number;
  intermediate_size: number;
  norm: "layer" | "rms";
  norm_eps: number;
  positions: "learned" | "rotary";
  rotary_base: number;
  rotary_scaling: { factor: number; low: number; high: number; original_length: number } | null;
  activation: "gelu" | "gelu_tanh" | "swiglu";
  qk_norm: boolean;
  /** Of each layer: the latest keys that a query sees, or null for all. */
  windows: (number | null)[];
  eos_token_id: number[];
}

/** What a file says of the model in it; its weights and its tokenizer are blocks of their own. */
interface ModelData {
  config: ModelConfig;
  /** The tensors in the block of weights, in order. */
  tensors: PackedField[];
  /** The likeliest tokens that are kept for each position. */
  likeliest: number;
  /** The most characters that a text may have. */
  characters: number;
  /** The layers as they are on any text, without sizes and evidence. */
  layers: Layer[];
  /** The tokens of each text of the file. */
  ids: number[][];
  /** Where the attention of a score goes, in words. */
  targets: Record<string, string>;
  min_scores: Record<string, number>;
}

interface HeadScores {
  /** Whether no labels were tested, as of texts that a page reads by itself. */
  untested?: boolean;
}

interface Layer {
  /** Whether it was computed in this page, so that nothing of it is rounded. */
  live?: boolean;
}

/** Numbers of a matrix by rows: row r begins at `at + r · step`. */
interface WideMatrix {
  data: Float64Array;
  at: number;
  step: number;
}

interface NarrowMatrix {
  data: Float32Array;
  at: number;
  step: number;
}

/** A linear map: (columns, depth), and a bias for each column. */
interface Linear {
  weight: Float32Array;
  bias: Float32Array | null;
}

/** A norm's weight, and the bias of a LayerNorm. */
type Norm = Linear;

interface LayerWeights {
  attentionNorm: Norm;
  qkv: Linear;
  queryNorm: Float32Array | null;
  keyNorm: Float32Array | null;
  out: Linear;
  feedForwardNorm: Norm;
  up: Linear;
  down: Linear;
}

interface ModelWeights {
  tokens: Float32Array; // V · d
  positions: Float32Array | null; // context · d
  layers: LayerWeights[];
  norm: Norm;
  unembedding: Float32Array; // V · d
}

/** The keys and values of one layer, for at most `capacity` tokens. */
interface LayerCache {
  capacity: number;
  k: Float32Array; // G · capacity · D
  v: Float32Array; // G · D · capacity: transposed, since weights are summed over tokens
}

/** Some rows of the residual stream on their way through a layer. */
interface LayerStep {
  layer: number;
  x: WideMatrix;
  row: number;
  rows: number;
  /** The position of the first row. */
  first: number;
  cache: LayerCache;
  limits: LayerLimits;
  note: LayerNote | null;
}

/** What a layer's attention was computed from, of all tokens that were read. */
interface LayerRecord {
  q: Float32Array; // H · T · D
  lse: Float64Array; // H · T
  /** The outputs of the heads at some queries, to compare what the map gives with what the model used. */
  sampled: { row: number; output: Float64Array }[]; // H · D each
}

/** What a layer's attention leaves out. */
interface LayerLimits {
  window: number | null;
  edges: EdgeCut[];
  /** Heads whose output is replaced by zeros. */
  heads: Set<number | null>;
}

/** Who takes notes while the model runs. Rows count from the first token of the run. */
interface LayerNote {
  /** Queries (rows, H · D) before they are used. */
  queries?(layer: number, first: number, rows: number, q: WideMatrix): void;
  /** The log-sum-exp and the weights of one query of one head; they begin at `at`. */
  row?(
    layer: number,
    first: number,
    row: number,
    head: number,
    lse: number,
    weights: Float64Array,
    at: number,
  ): void;
  /** The heads' outputs (rows, H · D). */
  outputs(layer: number, first: number, rows: number, heads: WideMatrix): void;
  /** What the attention or the MLP adds to the residual stream (rows, d_model). */
  added?(layer: number, isMlp: boolean, added: WideMatrix): void;
}

/** A tokenizer as `model_block.py` describes it. */
interface TokenizerData {
  /** Whether its symbols are bytes; else they are characters. */
  bytes: boolean;
  /** Of every id. */
  pieces: string[];
  /** Pairs of ids, each followed by the id of both together, those that are merged first first. */
  merges: number[];
  special: { id: number; text: string }[];
  /** The tokens before every text. */
  prefix: number[];
  /** First and last code points of ranges. */
  letters: number[];
  numbers: number[];
  spaces: number[];
}

/** Reports how far a long answer is, line by line. */
type Tell = (line: CaptureLine & GenerationLine) => void;

interface ReadQuestion {
  text: string;
  /** How many tokens of it; null for all. */
  first: number | null;
  /** Tokens that the model generated after it. */
  continuation: number[];
}

/** The answer to a text that the model cannot read. */
interface TooLong {
  too_long: { tokens: number; most: number };
}

interface CutQuestion {
  /** The text that is read again. */
  text: number;
  cuts: Cut[];
}

interface GenerateQuestion {
  text: string;
  tokens: number;
  temperature: number;
}

/** A text that was read in the page. */
interface LiveText {
  number: number;
  meta: TextMeta;
}

interface Answers {
  load: [object, true];
  read: [ReadQuestion, LiveText | TooLong];
  cut: [CutQuestion, LiveText];
  randomLoss: [{ text: number }, number | null];
  remove: [{ text: number }, TextMeta];
  generate: [GenerateQuestion, true];
}

/** The parts of a logit by layer and head, and its directions as the outputs of the layers' heads see them. */
interface LogitParts {
  logit: number;
  embedding: number;
  heads: number[][];
  mlps: number[];
  rest: number;
  directions: Float64Array[]; // H · D of each layer
}

type Reading = import("./reading.js").Reading;
type LanguageModel = import("./forward.js").LanguageModel;
