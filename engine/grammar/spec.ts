// What an answer is held to while it is decoded.

/** `tag` is XGrammar's structural tag: `{ type: 'structural_tag', format }`. */
export type GrammarSpec = { kind: 'json_object' } | { kind: 'json_schema'; schema: Record<string, unknown> } | { kind: 'structural_tag'; tag: object }
