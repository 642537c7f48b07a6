// Types of `split_characters.js`, global as those of `types.d.ts`.

/** A token without marks of pieces. */
interface SplitToken {
  /** What it adds to the text: "" if it only goes on with a character. */
  text: string;
  /** The token that begins the character which it goes on with, or its own number. */
  first: number;
  /** Which piece of a character it is, from 1; 0 if it is whole. */
  piece: number;
  /** How many that character has. */
  pieces: number;
  /** Whether it begins with a piece of the character that the token before ends with. */
  joins: boolean;
}
