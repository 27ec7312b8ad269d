// Content of a message as chat templates read it: text, or parts of text and pictures.

export type TemplatePart = { type: 'text'; text: string } | { type: 'image' }
export type TemplateContent = string | TemplatePart[]

export const asParts = (content: TemplateContent): TemplatePart[] =>
  typeof content === 'string' ? [{ type: 'text', text: content }] : content

/** Joins contents that are not empty. */
export function joinContents(contents: readonly TemplateContent[], separator: string): TemplateContent {
  const filled = contents.filter((content) => content.length > 0)
  if (filled.every((content) => typeof content === 'string')) return filled.join(separator)
  return filled.flatMap((content, index) => [
    ...(index > 0 && separator !== '' ? asParts(separator) : []),
    ...asParts(content),
  ])
}
