// The types of pictures and their patches, for the type checker alone. Names here are global.

/** The pictures of a text, made by `describe_pictures` in Python. */
interface PicturesMeta {
  /** How the colours were found, in a sentence. */
  about: string;
  /** null: not of this text. */
  images: (PictureMeta | null)[];
  /** What the tokens of each list are. */
  layouts: Partial<Record<TokenList, PatchLayout>>;
}

interface PictureMeta {
  /** A PNG file as a data address. */
  src: string;
  width: number;
  height: number;
}

interface PatchLayout {
  spans: PatchSpan[];
  /** Tokens with names, such as CLS. */
  special: [number, string][];
}

/** Tokens of a list, one after another, that are patches of one picture. */
interface PatchSpan {
  /** -1: the picture was not kept. */
  picture: number;
  first: number;
  rows: number;
  cols: number;
  tokens: number;
  /** For each token the number of its patch, row by row; null if they are in this order. */
  places: number[] | null;
}

/** A patch: its place in a picture, from 0, and the token that it is. */
interface Patch {
  /** The number of its span. */
  span: number;
  row: number;
  col: number;
}

/** A key that receives far more than other patches, and its mean weight. */
type Outlier = [number, number];

/** A part of the attention of one token, by what it goes to. */
interface KindShare {
  name: string;
  share: number;
  /** What uniform attention would give. */
  uniform: number;
}
