import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { z } from 'zod'
import { exportEventTypes } from '../../contract/exports.ts'
import { jobEventTypes } from '../../contract/fine-tuning.ts'
import { webhookEventTypes } from '../../contract/webhooks.ts'
import { root } from '../../lib/root.ts'
import { fieldRows } from '../../scripts/docs/fields.ts'
import { referencePages } from '../../scripts/docs/pages.ts'
import { describeConfig, readConfig } from '../../server/config.ts'

const page = (name: string) => readFileSync(path.join(root, 'docs/reference', name), 'utf8')

test('the reference pages are up to date with the schemas; `npm run docs` writes them', () => {
  const pages = referencePages()
  for (const [name, text] of Object.entries(pages))
    assert.equal(page(name), text, `docs/reference/${name} is out of date`)
  // Written by `npm run test:families`.
  const others = ['families.md']
  const there = globSync('*.md', { cwd: path.join(root, 'docs/reference') })
  assert.deepEqual(there.sort(), [...Object.keys(pages), ...others].sort())
})

test('every setting and event type is in a reference page', () => {
  for (const { name } of describeConfig(readConfig({})))
    assert.ok(page('settings.md').includes(`| \`${name}\` |`), name)
  for (const type of [...webhookEventTypes, ...jobEventTypes, ...exportEventTypes])
    assert.ok(page('events.md').includes(`| \`${type}\` |`), type)
})

test('a setting’s default in the reference is the same on every machine', () => {
  assert.doesNotMatch(page('settings.md'), new RegExp(root))
  assert.match(page('settings.md'), /`TUNERY_THREADS` \| whole number, 1 to 1,024 \| one per core/)
})

test('a field without a description is an error that names it, at any depth', () => {
  const schema = z.object({ a: z.string().describe('A.'), b: z.array(z.object({ c: z.int() })).describe('B.') })
  assert.throws(() => fieldRows(schema, 'config.'), /No description: config\.b\[\]\.c\./)
})

test('the row of a field has its type, bounds, default and description', () => {
  const rows = fieldRows(
    z.object({
      rate: z.number().gt(0).max(0.1).optional().meta({ description: 'Rate.', 'x-default': 'by size' }),
      size: z.int().min(1).default(4).describe('Size.'),
      kind: z.enum(['a', 'b']).describe('Kind.'),
    }),
  )
  assert.deepEqual(rows, [
    { path: 'rate', type: 'number, above 0, at most 0.1', default: 'by size', description: 'Rate.' },
    { path: 'size', type: 'whole number, at least 1', default: '`4`', description: 'Size.' },
    { path: 'kind', type: '`a`, `b`', default: 'required', description: 'Kind.' },
  ])
})
