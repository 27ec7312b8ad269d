// JSON that people read in diffs: what is at most `width` long stands on one line.

export const compactJson = (value: unknown, width: number): string =>
  `${pretty(JSON.parse(JSON.stringify(value)), width, '')}\n`

function pretty(value: unknown, width: number, indentation: string): string {
  const line = JSON.stringify(value, null, 1).replace(/\n */g, ' ')
  if (indentation.length + line.length <= width || typeof value !== 'object' || value === null) return line
  const [open, close] = Array.isArray(value) ? '[]' : '{}'
  const inside = `${indentation}  `
  const items = Object.entries(value).map(([name, item]) => {
    const key = Array.isArray(value) ? '' : `${JSON.stringify(name)}: `
    return `${inside}${key}${pretty(item, width - key.length, inside)}`
  })
  return `${open}\n${items.join(',\n')}\n${indentation}${close}`
}
