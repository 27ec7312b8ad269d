// The table of families: docs/reference/families.json, which the service reads, and families.md beside it.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { type FamilyTrial, familyTrials } from '../../contract/families.ts'
import { root } from '../../lib/root.ts'

/** `yes`, or the sentence that a user gets. `architecture`: the family's name in transformers. */
export type Row = Partial<Record<FamilyTrial | 'architecture', string>>

const json = path.join(root, 'docs/reference/families.json')
const markdown = path.join(root, 'docs/reference/families.md')

/** Writes rows over those of the same families. `names`: of all families, in order; rows of others are removed. */
export function writeRows(rows: Readonly<Record<string, Row>>, names: readonly string[]): void {
  const earlier: Record<string, Row> = existsSync(json) ? JSON.parse(readFileSync(json, 'utf8')) : {}
  const all = { ...earlier, ...rows }
  const ordered = Object.fromEntries(names.flatMap((name) => (all[name] ? [[name, all[name]]] : [])))
  writeFileSync(json, `${JSON.stringify(ordered, null, 2)}\n`)
  writeFileSync(markdown, markdownOf(ordered))
}

/**
 * Leaves of the rows of these families only their architecture: the service refuses what failed before, and it is to be
 * tried again.
 */
export function emptyRows(names: readonly string[], all: readonly string[]): void {
  const earlier: Record<string, Row> = JSON.parse(readFileSync(json, 'utf8'))
  const rows = names.flatMap((name) => {
    const architecture = earlier[name]?.architecture
    return architecture ? [[name, { architecture }]] : []
  })
  writeRows(Object.fromEntries(rows), all)
}

const order = Object.keys(familyTrials) as FamilyTrial[]

function markdownOf(rows: Record<string, Row>): string {
  const notes: string[] = []
  const cell = (text: string | undefined) => {
    if (text === undefined) return ''
    if (/^(yes|merged only|none)$/.test(text)) return text
    const number = notes.includes(text) ? notes.indexOf(text) + 1 : notes.push(text)
    return `[${number}](#notes)`
  }
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`
  const table = Object.entries(rows).map(([name, row]) =>
    line([`\`${name}\``, ...order.map((each) => cell(row[each]))]),
  )
  const escaped = (text: string) => text.replace(/[<>|*_[\]]/g, (sign) => `\\${sign}`)
  return `# Families of models

What was tried of each family, with a tiny checkpoint of its structure and, where there are any, its real vocabulary and
chat template: the results of \`npm run test:families\`, which writes this page and \`families.json\`. The service reads
that file for what it says of a base.

${line(['Family', ...order.map((each) => familyTrials[each])])}
${line(['', ...order].map(() => '---'))}
${table.join('\n')}

A cell without a text was not reached. Trained adapters are served, asked and exported; each is compared with what the
trainer computes, by the comparison of a deployment or the check of an export. *Served merged* is the export of the
merged weights in GGUF, which the engine answers with.

## Notes

${notes.map((note, index) => `${index + 1}. ${escaped(note)}`).join('\n')}
`
}
