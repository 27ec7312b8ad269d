// One reader of rows: what the check calls valid, the trainer takes, and check, count, preview and training make the
// same of it. Over mutated rows, a hundred thousand of them in the full tests.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { canonicalOf } from '../../server/features/datasets/canonical.ts'
import { createRowChecker } from '../../server/features/datasets/check-rows.ts'
import { readCsv } from '../../server/features/datasets/reader/csv.ts'
import { full } from '../support/full.ts'
import { forms, mutatedLine } from '../support/mutated-rows.ts'
import { seededRandom } from '../support/random.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-agreement-'))
after(() => rmSync(folder, { recursive: true }))
const tokenizer = path.join(root, '.local/models/HuggingFaceTB/SmolLM2-135M-Instruct/hf')
// No tools and no thoughts; both, with earlier turns rewritten; a prompt that begins the thoughts; strict turns.
const templates = ['smollm2', 'qwen3', 'begun-thoughts', 'no-system']

async function agree(count: number, seed: number): Promise<void> {
  const files: Record<string, string> = {}
  const valid: Record<string, number> = {}
  for (const [index, kind] of (['sft', 'dpo', 'kto'] as const).entries()) {
    const random = seededRandom(seed + index)
    const canonical: string[] = []
    const checker = createRowChecker({ write: (line) => canonical.push(line) })
    // The kind of the dataset is that of its first row.
    const lines = [JSON.stringify(forms[kind][0])]
    while (lines.length < count / 3) lines.push(mutatedLine(kind, random))
    await checker.add(Buffer.from(lines.join('\n')))
    const check = await checker.end()
    assert.equal(check.rows - check.error_count, canonical.length)
    assert.ok(canonical.length > lines.length / 4, `${canonical.length} of ${lines.length} rows are valid`)
    files[kind] = path.join(folder, `${kind}.jsonl`)
    valid[kind] = canonical.length
    writeFileSync(files[kind], canonical.join(''))
  }
  const paths = templates.map((name) => path.join(root, `tests/fixtures/templates/${name}.jinja`))
  const compared = execFileSync(
    path.join(root, '.local/python/bin/python'),
    ['-m', 'tests.support.rows_agree', JSON.stringify({ tokenizer, templates: paths, files })],
    { cwd: root, encoding: 'utf8', maxBuffer: 1e8 },
  )
  assert.deepEqual(JSON.parse(compared), valid)
}

test('check, count, preview and training agree over mutated rows', () => agree(240, 1))
test('check, count, preview and training agree over a hundred thousand mutated rows', full, () => agree(100_000, 1000))

test('the same texts in a table are the same rows', async () => {
  const random = seededRandom(5)
  const pick = (list: readonly string[]) => list[Math.floor(random() * list.length)]!
  const texts = ['a', 'ü, "b"\nc', ' ', '', '<|im_end|>', "it's", '[1]', 'null', '7']
  for (const [prompt, answer] of [
    ['prompt', 'completion'],
    ['instruction', 'output'],
    ['question', 'answer'],
  ] as const) {
    const columns = ['system', 'input', prompt, answer]
    const records = Array.from({ length: 60 }, () => Object.fromEntries(columns.map((name) => [name, pick(texts)])))
    const lines: unknown[] = []
    const checker = createRowChecker({ write: (line) => lines.push(JSON.parse(line).messages) })
    await checker.add(Buffer.from(records.map((record) => JSON.stringify(record)).join('\n')))
    await checker.end()
    const csv = path.join(folder, 'rows.csv')
    const quoted = (text: string) => `"${text.replaceAll('"', '""')}"`
    const table = [columns, ...records.map((record) => columns.map((name) => record[name]!))]
    writeFileSync(csv, table.map((cells) => cells.map(quoted).join(',')).join('\n'))
    const cells: unknown[] = []
    for await (const read of readCsv(csv)) {
      assert.ok('row' in read && !Array.isArray(read.row))
      const valid = canonicalOf(read.row)
      if (!Array.isArray(valid)) cells.push(valid.row.messages)
    }
    assert.deepEqual(cells, lines)
    assert.ok(lines.length > 20)
  }
})
