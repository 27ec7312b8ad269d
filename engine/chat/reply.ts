// The parts of an answer, and what finds them in its text.

/** The first part of a call has `id`, `name` and empty `arguments`. The arguments follow as the model writes them. */
export type ReplyPart =
  | { kind: 'content'; text: string }
  | { kind: 'reasoning'; text: string }
  | { kind: 'tool_call'; index: number; id?: string; name?: string; arguments: string }

export interface ReplyParser {
  /** Parses the next piece of text, of any length. Returns the parts that are now certain. */
  push(text: string): ReplyPart[]
  /**
   * Ends the answer and returns what was held back. `cut`: it ends at the token limit, so that the beginning of a
   * marker at its end is not text.
   */
  finish(cut: boolean): ReplyPart[]
  /** Whether a call has started. */
  calledTools(): boolean
  /** Whether a stop sequence has ended the answer. */
  stopped(): boolean
}
