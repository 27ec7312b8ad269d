/** A message of a valid row. Its content is missing only beside tool calls. */
export interface RowMessage {
  role: string
  content?: string | { type: 'text'; text: string }[] | null
  weight?: number
  tool_calls?: unknown[] | null
}

/** The text of a message's content. */
export const textOf = ({ content }: Pick<RowMessage, 'content'>): string =>
  typeof content === 'string' ? content : (content ?? []).map(({ text }) => text).join('')
