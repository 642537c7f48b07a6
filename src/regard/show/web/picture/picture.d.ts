// The types of exported pictures, for the type checker alone.

/** What maps a drawing's points to the picture's, as a canvas has it: x′ = a·x + c·y + e, y′ = b·x + d·y + f. */
type Matrix = [a: number, b: number, c: number, d: number, e: number, f: number];

/** Red, green and blue from 0 to 255, and how much covers the ground, from 0 to 1. */
type Colour = [red: number, green: number, blue: number, alpha: number];

interface PixelImage {
  width: number;
  height: number;
  data: Uint8ClampedArray; // red, green, blue, alpha
}

/** A picture that stands on its own, as an SVG file, and its size in pixels of a page. */
interface Picture extends Size {
  svg: string;
}

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
  /** The numbers in view, for a CSV file: rows, of which the first has their names. */
  table?(): TableRow[] | Promise<TableRow[]>;
}

type TableRow = (string | number | null)[];

/** A canvas that writes SVG. */
type SvgDrawing = import("./svg_drawing.js").SvgDrawing;
