// The results of a batch survive what a kill or a full disk leaves behind.
import assert from 'node:assert/strict'
import { appendFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { openResults } from '../../server/features/batches/results.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-results-'))
after(() => rmSync(folder, { recursive: true }))
const answer = (custom_id: string) => ({ custom_id, request_id: `b.${custom_id}`, status: 200, body: '{"usage":{}}' })
const ids = (file: string) =>
  readFileSync(file, 'utf8')
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line).custom_id)

for (const [name, rest, kept] of [
  ['half a line', '{"id":"x","custom', ['a']],
  ['a line of two halves', '{"id":"x","cust{"id":"y","custom_id":"c"}\n', ['a']],
  ['a line without its end', '{"id":"x","custom_id":"b","response":null}', ['a', 'b']],
] as const)
  test(`${name} at the end costs no other line`, async () => {
    const target = path.join(folder, name)
    const first = await openResults(target)
    first.add(answer('a'))
    await first.sync()
    await first.close()
    appendFileSync(first.output, rest)
    const second = await openResults(target)
    assert.deepEqual([second.completed, second.has('a'), second.has('b')], [kept.length, true, kept.length === 2])
    second.add(answer('d'))
    second.add({ custom_id: 'e', error: { code: 'x', message: 'y' } })
    await second.close()
    assert.deepEqual(ids(second.output), [...kept, 'd'])
    assert.deepEqual(ids(second.errors), ['e'])
  })
