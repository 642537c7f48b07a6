// The types of what carries the page's questions to where they are answered: `answers.py` in Python.

/** Carries questions for numbers, and jobs of the model that send lines while they run. */
interface Transport {
  /** The answer, or an error with a sentence for the reader. */
  ask(name: string, query: Record<string, string | number>, signal?: AbortSignal): Promise<Response>;
  /** Gives each line of a job to `onLine`, and the last one in the end; null if there was none. */
  follow<T>(name: string, body: object, onLine: (line: T) => void, signal?: AbortSignal): Promise<T | null>;
}

/** What the reader has selected, as a notebook's widget knows it. `layer` is a layer's key. */
interface NotebookSelection {
  view: string;
  text: number;
  layer: string;
  head: number;
  row: number;
  col: number;
}

/** What the page says through the port that the notebook gave it. `id` numbers the page's questions. */
type ToKernel =
  | { kind: "ask"; id: number; name: string; query: Record<string, string> }
  | { kind: "job"; id: number; name: string; body: object }
  | { kind: "stop"; id: number }
  | { kind: "select"; selection: NotebookSelection };

/** What it is told. */
type FromKernel =
  | { kind: "answer"; id: number; content: ArrayBuffer }
  | { kind: "line"; id: number; line: object }
  | { kind: "end"; id: number }
  | { kind: "error"; id: number; error: string }
  | { kind: "removed"; id: number; error: string } // a question about a text that is not there any more
  | { kind: "select"; selection: NotebookSelection }
  | { kind: "theme"; theme: "light" | "dark" } // of the notebook around the page
  | { kind: "waiting"; message: string }
  | { kind: "gone"; message: string };

/** What anywidget gives a widget's module: the model's traits, its messages and its events. */
interface NotebookModel {
  get(name: string): any;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: object): void;
  on(name: string, callback: (...args: any[]) => void): void;
  off(name: string, callback: (...args: any[]) => void): void;
}
