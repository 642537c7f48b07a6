// The types of pictures as lists of drawing commands, for the type checker alone.

/** What maps a drawing's points to the picture's, as a canvas has it: x′ = a·x + c·y + e, y′ = b·x + d·y + f. */
type Matrix = [a: number, b: number, c: number, d: number, e: number, f: number];

/** Red, green and blue from 0 to 255, and how much covers the ground, from 0 to 1. */
type Colour = [red: number, green: number, blue: number, alpha: number];

/** A line's beginning, a line, a curve with its two control points, or the end of a closed line. */
type Segment =
  | ["M", number, number]
  | ["L", number, number]
  | ["C", number, number, number, number, number, number]
  | ["Z"];

/** A font by what every reader of documents has of its kind. */
interface PrintFont {
  size: number;
  family: "sans" | "serif" | "mono";
  bold: boolean;
  italic: boolean;
}

interface FillCommand {
  kind: "fill";
  path: Segment[];
  colour: Colour;
}

interface StrokeCommand {
  kind: "stroke";
  path: Segment[];
  colour: Colour;
  width: number;
  dash: number[];
}

/** Text from its start on the baseline, which is the matrix's origin; it is `width` wide. */
interface TextCommand {
  kind: "text";
  text: string;
  font: PrintFont;
  colour: Colour;
  matrix: Matrix;
  width: number;
  /** What stays in place where another font is wider. */
  align: "left" | "center" | "right";
}

interface ImageCommand {
  kind: "image";
  image: PixelImage;
  /** From the unit square, whose upper left is the image's. */
  matrix: Matrix;
  smooth: boolean;
}

interface PixelImage {
  width: number;
  height: number;
  data: Uint8ClampedArray; // red, green, blue, alpha
}

/** Until its "end", nothing outside of the path is seen. */
interface ClipCommand {
  kind: "clip";
  path: Segment[];
}

type DrawingCommand =
  FillCommand | StrokeCommand | TextCommand | ImageCommand | ClipCommand | { kind: "end" };

/** A picture that stands on its own: its size in pixels of a page, a title, and what is drawn. */
interface Picture extends Size {
  title: string;
  commands: DrawingCommand[];
}

/** Measures a text in pixels. */
type MeasureText = (text: string, font: string) => number;

/** The words around an exported picture: a heading, lines below it, and notes at its foot. */
interface FigureWords {
  heading: string;
  lines: string[];
  notes: string[];
  /** A sentence that must not be overlooked, or "". */
  warning: string;
}

/** What a picture's colours and patterns mean. */
interface FigureKeys {
  bar: { scale: ColourScale; marks: [number, string][] } | null;
  hatch: string;
  dashed: string;
}

/** What a view offers for export: pictures, and where there are some the numbers behind them. */
interface Exported {
  /** Of the file, without its ending. */
  name(): string;
  picture(): Promise<Picture>;
  /** Files of numbers, by their endings in capitals. */
  numbers?: Record<string, () => Promise<Blob>>;
}

/** A font that every reader of PDF files has. */
type CoreFont =
  | "Helvetica"
  | "Helvetica-Bold"
  | "Helvetica-Oblique"
  | "Times-Roman"
  | "Courier"
  | "Courier-Bold"
  | "Symbol"
  | "ZapfDingbats";

/** A picture of letters, and where it is: in thousandths of a letter, from the start of the baseline, upwards. */
interface GlyphPicture {
  image: PixelImage;
  left: number;
  bottom: number;
  wide: number;
  high: number;
  /** How far the next letter is. */
  advance: number;
}

type DrawGlyph = (text: string, font: PrintFont, colour: Colour) => GlyphPicture;

/** A canvas that remembers. */
type Recording = import("./recording.js").Recording;
