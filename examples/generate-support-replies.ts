// Generates the dataset of docs/guides/preference-tuning.md: replies of support, and which of two is the better one.
//
//   scripts/node examples/generate-support-replies.ts [--seed 42] [--rows 120] [--held-out 40] [--out examples]
import { writeFileSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { cases, preferences, writtenReplies } from './replies/replies.ts'

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: '42' },
    rows: { type: 'string', default: '120' },
    'held-out': { type: 'string', default: '40' },
    out: { type: 'string', default: import.meta.dirname },
  },
})
const rows = Number(values.rows)
const all = cases(rows + Number(values['held-out']), Number(values.seed))
const write = (name: string, lines: object[]) =>
  writeFileSync(path.join(values.out, name), lines.map((line) => `${JSON.stringify(line)}\n`).join(''))
write('support-replies.jsonl', writtenReplies(all.slice(0, rows)))
write('support-replies.preferences.jsonl', preferences(all.slice(0, rows)))
write('support-replies.heldout.jsonl', preferences(all.slice(rows)))
