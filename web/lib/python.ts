/** A JSON value as Python writes it. `by`: the indentation of the line that it stands in. */
export function pythonValue(value: unknown, by = ''): string {
  const inner = `${by}    `
  if (value === null || value === undefined) return 'None'
  if (typeof value === 'boolean') return value ? 'True' : 'False'
  if (typeof value !== 'object') return JSON.stringify(value)
  const [open, close, lines] = Array.isArray(value)
    ? ['[', ']', value.map((item) => pythonValue(item, inner))]
    : ['{', '}', Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${pythonValue(each, inner)}`)]
  if (lines.length === 0) return `${open}${close}`
  return `${open}\n${lines.map((line) => `${inner}${line},\n`).join('')}${by}${close}`
}
